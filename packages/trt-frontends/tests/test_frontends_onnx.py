"""Models in ONNX's format at the doors: `compile`, `trtc compile`, `trtc explain`, `trtc export onnx`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from trtc.app import app
from typer.testing import CliRunner

import trt_frontends
import trt_portable
from trt_converters import DYNAMO_CONVERTERS
from trt_core import Input, InputError, SettingsError
from trt_frontends import onnx_models
from trt_frontends.custom_engine_cache import BaseEngineCache
from trt_frontends.onnx_models import explain_onnx, export_onnx
from trt_runtime.program.interface import DynamicSize

pytestmark = pytest.mark.sampled(4)

WEIGHTS = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def save_model(path: Path, *extra: Any, outputs: int = 1) -> Path:
    nodes = [
        helper.make_node("MatMul", ["in.1", "w"], ["m"], name="dense"),
        helper.make_node("Relu", ["m"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    values = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, []),
    ]
    graph = helper.make_graph(
        [*nodes, *extra],
        "graph",
        [helper.make_tensor_value_info("in.1", TensorProto.FLOAT, ["batch", 4])],
        values[:outputs],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def expected(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ torch.from_numpy(WEIGHTS))


@pytest.fixture
def batch() -> Input:
    return Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))


def test_a_model_is_compiled_called_and_saved_like_a_module(tmp_path: Path, batch: Input) -> None:
    compiled = trt_frontends.compile(save_model(tmp_path / "m.onnx"), [batch])
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x), expected(x))
    torch.testing.assert_close(compiled(in_1=x), expected(x))
    trt_frontends.save(compiled, tmp_path / "m.trtp")
    loaded = trt_frontends.load(tmp_path / "m.trtp")
    torch.testing.assert_close(loaded(x), expected(x))
    with pytest.raises(InputError, match="compiled for 1 to 8"):
        compiled(torch.randn(9, 4))


def test_several_outputs_are_a_tuple(tmp_path: Path, batch: Input) -> None:
    compiled = trt_frontends.compile(str(save_model(tmp_path / "m.onnx", outputs=2)), kwarg_inputs={"in.1": batch})
    x = torch.randn(3, 4)
    y, z = compiled(x)
    torch.testing.assert_close(y, expected(x))
    torch.testing.assert_close(z, expected(x).sum())


def test_results_are_called_as_the_model_calls_them(tmp_path: Path, batch: Input) -> None:
    compiled = trt_frontends.compile(save_model(tmp_path / "m.onnx", outputs=2), [batch])
    trt_frontends.save(compiled, tmp_path / "m.trtp")
    for found in (compiled, trt_frontends.load(tmp_path / "m.trtp")):
        y, z = found.outputs
        assert (y.name, y.shape, z.name) == ("y", (DynamicSize("batch", 1, 2, 8), 8), "z")
    said = CliRunner().invoke(app, ["run", str(tmp_path / "m.trtp")]).output
    assert said.startswith("y: float32 (2, 8)") and "\nz: float32 ()" in said
    mine = Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dimensions={0: "rows"})
    compiled = trt_frontends.compile(tmp_path / "m.onnx", [mine])
    assert [size.name for spec in (*compiled.inputs, *compiled.outputs) for size in spec.shape[:1]] == ["rows"] * 2


def test_loops_run_as_often_as_an_input_says(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Add", ["state", "state"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [3]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)],
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("times", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    x = torch.tensor([1.0, -2.0, 3.0])
    compiled = trt_frontends.compile(path, [x, Input((), dtype=torch.int64, tensor_domain=(0, 6))])
    for times in (0, 1, 5):
        torch.testing.assert_close(compiled(x, torch.tensor(times)), x * 2**times)
    with pytest.raises(InputError, match="tensor_domain"):
        compiled(x, torch.tensor(6))
    with pytest.raises(InputError, match=r"how often a loop runs(.|\n)*tensor_domain"):
        trt_frontends.compile(path, [x, Input((), dtype=torch.int64)])


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="'in_1' is given twice"):
        trt_frontends.compile(path, [torch.zeros(2, 4)], kwarg_inputs={"in.1": torch.zeros(2, 4)})
    with pytest.raises(InputError, match=r"no input 'in'(.|\n)*'in\.1'"):
        trt_frontends.compile(path, kwarg_inputs={"in": torch.zeros(2, 4)})
    with pytest.raises(InputError, match=r"does not say its range(.|\n)*trtc takes --shapes \S+=1x"):
        trt_frontends.compile(path)
    with pytest.raises(InputError, match=r"takes torch\.float32 of shape"):
        trt_frontends.compile(path, [torch.zeros(2, 5)])
    with pytest.raises(InputError, match=r"takes torch\.float32 of shape"):
        trt_frontends.compile(path, [torch.zeros(2, 4, dtype=torch.int64)])
    with pytest.raises(InputError, match="2 inputs for a model that has 1"):
        trt_frontends.compile(path, [torch.zeros(2, 4), torch.zeros(2, 4)])
    with pytest.raises(InputError, match="no file"):
        trt_frontends.compile(tmp_path / "none.onnx")


def test_what_is_refused_is_told_by_node(tmp_path: Path, batch: Input) -> None:
    path = save_model(tmp_path / "m.onnx", helper.make_node("Det", ["y"], ["q"], name="det"))
    with pytest.raises(InputError, match=r"cannot be an engine[\s\S]*node 3 \(det\): UNSUPPORTED_NODE"):
        trt_frontends.compile(path, [batch])
    report = explain_onnx(path)
    assert report.coverage == 0.75
    assert trt_frontends.explain(path) == report
    with pytest.raises(SettingsError, match="min_block_size"):
        trt_frontends.explain(path, min_blok_size=3)  # type: ignore[call-overload]
    (refused,) = (node for node in report.nodes if not node.supported)
    assert (refused.index, refused.name, refused.operator, refused.code) == (3, "det", "Det", "UNSUPPORTED_NODE")


def test_names_that_are_no_text_are_told(tmp_path: Path, batch: Input) -> None:
    path = save_model(tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes().replace(b"dense", b"\xff\xfense"))
    with pytest.raises(InputError, match=r"NodeProto.name is b'\\xff\\xfense', which is no text in UTF-8"):
        trt_frontends.compile(path, [batch])
    report = explain_onnx(path)
    assert report.coverage == 0.0 and "is no text in UTF-8" in report.errors[0]
    assert json.loads(report.to_json())["nodes"][0]["name"] == "\\xff\\xfense" and "\\xfense" in report.to_text()


def test_missing_files_of_weights_are_told(tmp_path: Path, batch: Input) -> None:
    path = save_model(tmp_path / "model.onnx")
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    report = explain_onnx(path).to_text()
    assert "'weights' of the constant" in report and "cannot be read: No such file or directory" in report
    assert ": :" not in report and "Errno" not in report
    with pytest.raises(InputError, match="the files of its weights lie where it says"):
        trt_frontends.compile(path, [batch])


def test_the_command_line_explains(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx", helper.make_node("Det", ["y"], ["q"], name="det"))
    result = CliRunner().invoke(app, ["explain", str(path), "--json", str(tmp_path / "r.json"), "--fail-under", "0.9"])
    assert result.exit_code == 1
    assert (
        "3 of 4 nodes can be in an engine" in result.output and "node 3 'det', Det: UNSUPPORTED_NODE" in result.output
    )
    assert json.loads((tmp_path / "r.json").read_text())["nodes"][3]["code"] == "UNSUPPORTED_NODE"


def test_the_command_line_compiles(tmp_path: Path) -> None:
    path, target = save_model(tmp_path / "m.onnx"), tmp_path / "m.trtp"
    arguments = ["compile", str(path), "-o", str(target)]
    result = CliRunner().invoke(app, [*arguments, "--shape", "in.1=1x4:2x4:8x4"])
    assert result.exit_code == 0, result.output
    x = torch.randn(8, 4)
    torch.testing.assert_close(trt_frontends.load(target)(x), expected(x))
    assert CliRunner().invoke(app, [*arguments, "--shape", "in.1=1x4"]).exit_code == 2  # the file exists
    target.unlink()
    for shape in ("in.1=1y4", "in.1=1x4:2x4", "none=1x4"):
        assert CliRunner().invoke(app, [*arguments, "--shape", shape]).exit_code == 2


def test_a_compilation_tells_its_phases(tmp_path: Path, batch: Input, caplog: pytest.LogCaptureFixture) -> None:
    path, told = save_model(tmp_path / "m.onnx"), list[tuple[str, int, int]]()
    trt_frontends.compile(path, [batch], progress=lambda *what: told.append(what))
    assert told == [("parsing", 0, 1), ("building engines", 0, 1), ("building engines", 1, 1)]
    result = CliRunner().invoke(app, ["compile", str(path), "-o", str(tmp_path / "m.trtp"), "--shape", "in.1=1x4"])
    assert result.exit_code == 0, result.output
    lines = [message for name, _, message in caplog.record_tuples if name == "torch_tensorrt"]
    assert [line.partition(":")[0] for line in lines] == ["parsed", "built", "saved"]


def test_a_dry_run_is_refused(tmp_path: Path, batch: Input) -> None:
    with pytest.raises(SettingsError, match=r"explain_onnx\('.*m.onnx'\)"):
        trt_frontends.compile(save_model(tmp_path / "m.onnx"), [batch], dry_run=True)


@pytest.mark.parametrize(
    "given",
    [{"precision": "half"}, {"enable_autocast": True}, {"torch_executed_ops": {"aten.relu"}}, {"max_error": 0.1}],
    ids=lambda given: next(iter(given)),
)
def test_settings_of_graphs_are_refused(given: dict[str, Any], tmp_path: Path, batch: Input) -> None:
    path, wanted = save_model(tmp_path / "m.onnx"), f"{next(iter(given))} is for models of PyTorch"
    with pytest.raises(SettingsError, match=wanted):
        trt_frontends.compile(path, [batch], **given)
    with pytest.raises(SettingsError, match=wanted):
        export_onnx(path, **given)


def test_converters_and_settings_make_nothing_of_nodes_of_onnx(tmp_path: Path, batch: Input) -> None:
    path = save_model(tmp_path / "m.onnx")
    with pytest.raises(SettingsError, match="registry is for models of PyTorch"):
        trt_frontends.compile(path, [batch], registry=DYNAMO_CONVERTERS.copy())
    for option in (["--setting", "min_block_size=3"], ["--min-block-size", "3"]):
        assert CliRunner().invoke(app, ["explain", str(path), *option]).exit_code == 2


class Kept(BaseEngineCache):
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def save(self, hash: str, blob: bytes, *args: Any, **kwargs: Any) -> None:  # noqa: A002
        self.kept[hash] = blob

    def load(self, hash: str, *args: Any, **kwargs: Any) -> bytes | None:  # noqa: A002
        return self.kept.get(hash)


def test_engines_of_a_model_are_kept_in_a_cache_of_the_users_own(tmp_path: Path, batch: Input) -> None:
    cache, x = Kept(), torch.randn(3, 4)
    for _ in range(2):
        compiled = trt_frontends.compile(save_model(tmp_path / "m.onnx"), [batch], custom_engine_cache=cache)
        torch.testing.assert_close(compiled(x), expected(x))
        assert len(cache.kept) == 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = self.features(x).mean((2, 3))
        return self.head(pooled), torch.softmax(pooled, -1)


def test_a_module_goes_out_as_an_onnx_model() -> None:
    torch.manual_seed(0)
    model = Net().eval()
    images = Input(min_shape=(1, 3, 8, 8), opt_shape=(2, 3, 8, 8), max_shape=(4, 3, 8, 8))
    session = onnxruntime.InferenceSession(export_onnx(model, (images,)), providers=["CPUExecutionProvider"])
    compiled = trt_frontends.compile(model, arg_inputs=(images,))
    (source,) = session.get_inputs()
    for count in (1, 4):
        x = torch.randn(count, 3, 8, 8)
        found = [torch.from_numpy(array) for array in session.run(None, {source.name: x.numpy()})]
        for ours, theirs in zip(compiled(x), found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        product = x @ y
        return product, torch.cat([x, x], 1), product.argmax(-1)


def test_sizes_go_out_by_the_names_that_users_gave_them() -> None:
    rows, kept = {0: "batch", 1: "rows"}, {0: "batch"}
    x = Input(min_shape=(1, 2, 4), opt_shape=(2, 3, 4), max_shape=(4, 9, 4), dimensions=rows)
    y = Input(min_shape=(1, 4, 2), opt_shape=(2, 4, 2), max_shape=(4, 4, 9), dimensions=kept)
    session = onnxruntime.InferenceSession(export_onnx(Pairs(), (x, y)), providers=["CPUExecutionProvider"])
    assert [end.shape for end in session.get_inputs()] == [["batch", "rows", 4], ["batch", 4, "y_2"]]
    doubled = ["batch", "output_1_1", 4]
    assert [end.shape for end in session.get_outputs()] == [["batch", "rows", "y_2"], doubled, ["batch", "rows"]]
    given = torch.randn(3, 5, 4), torch.randn(3, 4, 7)
    found = session.run(None, dict(zip("xy", (value.numpy() for value in given), strict=True)))
    for array, expected in zip(found, Pairs()(*given), strict=True):
        torch.testing.assert_close(torch.from_numpy(array), expected)


class Several(nn.Module):
    """Results in another order than they are computed, two with axes swapped, one twice."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x @ x.mT
        last = product.relu() * 2
        return last, product.mT, (x + 1).transpose(0, 1), last


def test_results_go_out_as_the_model_returns_them() -> None:
    x = torch.randn(2, 3, 4)
    session = onnxruntime.InferenceSession(export_onnx(Several(), (x,)), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert len(found) == 4
    for array, expected in zip(found, Several()(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(array), expected)


class ReturnsItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x + 1


def test_what_is_compiled_does_not_go_out(batch: Input) -> None:
    compiled = trt_frontends.compile(nn.Linear(4, 8).eval(), arg_inputs=[batch], min_block_size=1)
    with pytest.raises(InputError, match="compiled already"):
        export_onnx(compiled, [batch])


def test_programs_are_not_written_as_if_they_were_onnx_models(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx")
    found = CliRunner().invoke(app, ["compile", str(path), "-o", str(tmp_path / "n.onnx"), "--shapes", "in.1=2x4"])
    assert found.exit_code == 2 and "trtc export onnx" in found.output
    assert not (tmp_path / "n.onnx").exists()


def test_results_that_no_engine_computes_do_not_go_out() -> None:
    with pytest.raises(InputError, match=r"no single engine(.|\n)*the result x"):
        export_onnx(ReturnsItsInput(), (torch.ones(2),))


def test_the_command_line_exports(tmp_path: Path) -> None:
    path, target = save_model(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    result = CliRunner().invoke(app, ["export", "onnx", str(path), "-o", str(target)])
    assert result.exit_code == 0, result.output
    onnx.checker.check_model(onnx.load(target))
    result = CliRunner().invoke(app, ["export", "onnx", str(path), "-o", str(tmp_path / "x.onnx"), "--shapes", "x=1x4"])
    assert result.exit_code == 2 and "goes out with the shapes that it has" in result.output


def test_the_command_line_exports_models_of_libraries_for_sizes_that_vary(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    options = ["--random-weights", "--shapes", "x=1x3x32x32:2x3x32x32:4x3x32x32"]
    result = CliRunner().invoke(app, ["export", "onnx", "torchvision:squeezenet1_1", "-o", str(target), *options])
    assert result.exit_code == 0, result.output
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    assert [end.shape for end in session.get_inputs()] == [["batch", 3, 32, 32]]
    assert session.run(None, {"x": np.zeros((3, 3, 32, 32), np.float32)})[0].shape == (3, 1000)


def test_a_second_build_of_a_model_comes_from_the_engine_cache(
    tmp_path: Path, batch: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = onnx_models.build_network
    monkeypatch.setattr(
        onnx_models, "build_network", lambda *given, **named: built.append(given[-1]) or build(*given, **named)
    )
    path, x, settings = save_model(tmp_path / "m.onnx"), torch.randn(3, 4), {"engine_cache_dir": tmp_path / "engines"}
    for _ in range(2):
        compiled = trt_frontends.compile(path, [batch], **settings)
        torch.testing.assert_close(compiled(x), expected(x))
        assert len(built) == 1
    trt_frontends.compile(path, [Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(9, 4))], **settings)
    assert len(built) == 2  # another range
    model = onnx.load(path)
    onnx.save_model(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    trt_frontends.compile(path, [batch], **settings)
    assert len(built) == 3  # another file
    data = bytearray((tmp_path / "weights").read_bytes())
    data[3] ^= 0x80  # the sign of the first weight
    (tmp_path / "weights").write_bytes(data)
    changed = trt_frontends.compile(path, [batch], **settings)
    assert len(built) == 4
    assert not torch.equal(changed(x), expected(x))
    (tmp_path / "weights").write_bytes(data + b"what no weight names")
    trt_frontends.compile(path, [batch], **settings)
    assert len(built) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="files of holes")
def test_files_of_holes_that_no_weight_needs_are_not_read(tmp_path: Path, batch: Input) -> None:
    """What describes a model to the cache read all that it names, a terabyte of nothing too."""
    model = onnx.load(save_model(tmp_path / "m.onnx"))
    unused = model.training_info.add().algorithm.initializer.add(name="unused", data_type=TensorProto.FLOAT, dims=[1])
    unused.data_location = TensorProto.EXTERNAL
    unused.external_data.add(key="location", value="holes")
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "holes").touch()
    os.truncate(tmp_path / "holes", 1 << 40)
    x = torch.randn(3, 4)
    compiled = trt_frontends.compile(tmp_path / "m.onnx", [batch], engine_cache_dir=tmp_path / "engines")
    torch.testing.assert_close(compiled(x), expected(x))


@pytest.mark.parametrize(
    ("names", "called"),
    [
        (["class", "self"], ["class_", "self_"]),
        (["lambda", "None"], ["lambda_", "None_"]),
        (["input", "input_1"], ["input", "input_1"]),
        (["torch", "torch_"], ["torch_", "torch__"]),
        (["a b", "1x"], ["a_b", "_1x"]),
        (["__private", "x" * 2000], ["input__private", "x" * 200]),
        (["\u00b2", "x\u00b2"], ["_", "x_"]),
    ],
)
def test_inputs_with_names_that_mean_something_to_python(names: list[str], called: list[str], tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in names]
    result = helper.make_tensor_value_info("class_out", TensorProto.FLOAT, [2, 4])
    graph = helper.make_graph([helper.make_node("Sub", names, ["class_out"])], "named", ends, [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    compiled = trt_frontends.compile(tmp_path / "m.onnx")
    x, y = torch.rand(2, 4), torch.rand(2, 4)
    trt_frontends.save(compiled, tmp_path / "m.trtp")
    for model in (compiled, trt_frontends.load(tmp_path / "m.trtp")):
        assert [spec.name for spec in model.inputs] == called
        for result in (model(x, y), model(**dict(zip(called, (x, y), strict=True)))):
            torch.testing.assert_close(result, x - y)
        torch.testing.assert_close(torch.compile(model, backend="eager")(x, y), x - y)
    if names != ["input", "input_1"]:  # of which PyTorch's own export makes a module with one of them twice
        for model in (compiled, trt_frontends.load(tmp_path / "m.trtp")):
            torch.testing.assert_close(torch.export.export(model, (x, y)).module()(x, y), x - y)


def save_sum(path: Path, *ends: list[int | str]) -> Path:
    """A model of inputs `x`, `y`, ... of some extents, which adds up all elements of all of them."""
    names = ["x", "y", "z"][: len(ends)]
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in zip(names, ends, strict=True)]
    nodes = [helper.make_node("ReduceSum", [name], [f"{name}_sum"], keepdims=0) for name in names]
    nodes.append(helper.make_node("Sum", [f"{name}_sum" for name in names], ["out"]))
    graph = helper.make_graph(nodes, "sums", values, [helper.make_tensor_value_info("out", 1, [])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.mark.parametrize("name", ["batch", "batch size", "N", "past + 1", "class", "2n", "Gr\u00f6\u00dfe", "b" * 300])
def test_dimensions_of_one_name_are_one(name: str, tmp_path: Path, batch: Input) -> None:
    path = save_sum(tmp_path / "m.onnx", [name, 4], [name, 4], [f"{name}_", 4])
    compiled = trt_frontends.compile(path, [batch, batch, batch])
    trt_frontends.save(compiled, tmp_path / "m.trtp")
    for model in (compiled, trt_frontends.load(tmp_path / "m.trtp")):
        x, y, z = (spec.shape[0].name for spec in model.inputs)
        assert x == y == name[:200] and (z != x or len(name) > 200)
        assert model(torch.ones(3, 4), torch.ones(3, 4), torch.ones(5, 4)) == 44
        with pytest.raises(InputError, match="dimension 0 of input y is 5, and must be 3"):
            model(torch.ones(3, 4), torch.ones(5, 4), torch.ones(3, 4))


def test_a_dimension_has_the_name_that_the_user_gave_it_in_any_input(tmp_path: Path, batch: Input) -> None:
    path = save_sum(tmp_path / "m.onnx", ["n", 4], ["n", 4])
    rows, columns = (
        Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dimensions={0: name})
        for name in ("rows", "columns")
    )
    compiled = trt_frontends.compile(path, [batch, rows])
    assert [spec.shape[0].name for spec in compiled.inputs] == ["rows", "rows"]
    with pytest.raises(InputError, match="must be 3"):
        compiled(torch.ones(3, 4), torch.ones(5, 4))
    with pytest.raises(InputError, match="'n' of the model is called 'columns' and 'rows'"):
        trt_frontends.compile(path, [rows, columns])


@pytest.mark.parametrize(
    ("other", "told"), [(torch.ones(5, 4), "3 in input 'x', and 5"), (None, "3 in .*, and 1 to 8")]
)
def test_extents_of_one_name_that_are_never_equal_are_refused(
    other: torch.Tensor | None, told: str, tmp_path: Path, batch: Input
) -> None:
    path = save_sum(tmp_path / "m.onnx", ["n", 4], ["n", 4])
    with pytest.raises(InputError, match=f"the dimension 'n' of the model is {told}"):
        trt_frontends.compile(path, [torch.ones(3, 4), batch if other is None else other])


def test_what_a_model_is_asked_about_is_what_is_built(
    tmp_path: Path, batch: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT 10 takes models of mixed types into networks of weak types, which are never built here."""
    asked: list[int] = []
    create = trt_portable.Builder.create_network

    def noted(builder: Any, flags: int = 0) -> Any:
        asked.append(flags)
        return create(builder, flags)

    monkeypatch.setattr(trt_portable.Builder, "create_network", noted)
    path = save_model(tmp_path / "m.onnx")
    explain_onnx(path)
    export_onnx(path)
    export_onnx(nn.Linear(4, 8).eval(), (torch.ones(2, 4),))
    onnx_models.inputs_of_types(path, {"in.1": [(2, 4)]})
    trt_frontends.compile(path, [batch])
    typed = 1 << int(trt_portable.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert len(asked) == 5 and all(flags & typed for flags in asked)
