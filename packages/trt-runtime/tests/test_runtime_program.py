"""Saved programs: saved, loaded where only torch and trt_runtime are imported, and refused when they are not right."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from trt_core import ExportError, Input, InputError, PlanError
from trt_runtime import PlanHeader, TRTModule, load, save, write_plan
from trt_runtime.archive import MANIFEST

BATCH = {0: torch.export.Dim("batch", min=1, max=8)}


class Model(nn.Module):
    """A block in PyTorch, an engine, and keyword inputs: what compiling returns."""

    def __init__(self, engine: TRTModule) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.engine = engine

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"result": self.engine(self.linear(x)) + bias}


@pytest.fixture
def model(dynamic_engine: TRTModule) -> Model:
    return Model(dynamic_engine).eval().requires_grad_(False)


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    save(
        model,
        path,
        arg_inputs=(torch.randn(4, 3),),
        kwarg_inputs={"bias": torch.zeros(3)},
        dynamic_shapes={"x": BATCH, "bias": None},
    )
    return path


def test_loaded_programs_compute_the_same(model: Model, saved: Path) -> None:
    loaded = load(saved)
    for rows in (1, 3, 8):
        x, bias = torch.randn(rows, 3), torch.randn(3)
        assert torch.equal(loaded(x, bias=bias)["result"], model(x, bias=bias)["result"])


def test_loading_needs_only_torch_and_trt_runtime(model: Model, saved: Path, tmp_path: Path) -> None:
    x, bias = torch.randn(5, 3), torch.randn(3)
    torch.save({"x": x, "bias": bias, "y": model(x, bias=bias)["result"]}, tmp_path / "example.pt")
    script = textwrap.dedent("""
        import sys, torch, trt_runtime
        assert not any(name in sys.modules for name in ("torch._inductor", "trt_portable", "tensorrt"))
        example = torch.load(sys.argv[2], weights_only=True)
        y = trt_runtime.load(sys.argv[1])(example["x"], bias=example["bias"])["result"]
        assert torch.equal(y, example["y"])
        ours = {name.partition(".")[0] for name in sys.modules if name.startswith(("trt_", "tensorrt"))}
        assert ours == {"trt_core", "trt_portable", "trt_runtime"}, ours
        assert not torch.cuda.is_initialized()
        print("same")
    """)
    result = subprocess.run(
        [sys.executable, "-c", script, str(saved), str(tmp_path / "example.pt")],
        env={**os.environ, "TRT_PROVIDER": "portable"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "same\n", result.stderr


def test_torch_export_can_load_it_too(model: Model, saved: Path) -> None:
    x, bias = torch.randn(2, 3), torch.randn(3)
    loaded = torch.export.load(str(saved)).module()
    assert torch.equal(loaded(x, bias=bias)["result"], model(x, bias=bias)["result"])


def test_nothing_in_the_file_is_pickled(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(saved) as archive:
        for name in archive.namelist():
            assert not archive.read(name).startswith(b"\x80"), name
            assert not name.endswith(".pt") or not archive.read(name)

    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(torch, "load", refuse)
    load(saved)


def test_dynamic_shapes_come_from_the_compiled_module(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    graph_module = torch.fx.GraphModule(nn.Sequential(dynamic_engine), _call_of_child_0())
    graph_module.meta["dynamic_shapes"] = (BATCH,)
    save(graph_module, tmp_path / "model.pt2", arg_inputs=[Input((4, 3))])
    assert load(tmp_path / "model.pt2")(torch.ones(7, 3)).shape == (7, 3)


def test_an_exported_program_is_saved_as_it_is(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    program = torch.export.export(dynamic_engine, (torch.ones(4, 3),), dynamic_shapes=((BATCH,),))
    save(program, tmp_path / "model.pt2")
    assert program.example_inputs is not None
    assert load(tmp_path / "model.pt2")(torch.ones(7, 3)).shape == (7, 3)


def test_any_file_name_will_do(static_engine: TRTModule, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(static_engine, tmp_path / "model", arg_inputs=(torch.ones(2, 3),))
    x = torch.randn(2, 3)
    assert torch.equal(load(tmp_path / "model")(x), x.relu())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_saving_again_gives_the_same_program(saved: Path, model: Model, tmp_path: Path) -> None:
    loaded = load(saved)
    x, bias = torch.randn(4, 3), torch.zeros(3)
    save(
        loaded,
        tmp_path / "again.pt2",
        arg_inputs=(x,),
        kwarg_inputs={"bias": bias},
        dynamic_shapes={"x": BATCH, "bias": None},
    )
    again = load(tmp_path / "again.pt2")
    assert torch.equal(again(x[:2], bias=bias)["result"], model(x[:2], bias=bias)["result"])


def test_example_inputs_are_needed(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs example inputs") as caught:
        save(model, tmp_path / "model.pt2")
    assert "arg_inputs" in caught.value.hint


def test_what_cannot_be_exported_is_an_error(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be exported"):
        save(model, tmp_path / "model.pt2", arg_inputs=(torch.ones(4, 3),))
    with pytest.raises(InputError, match="is 9, the engine was built for 1 to 8"):
        save(model, tmp_path / "model.pt2", arg_inputs=(torch.ones(9, 3),), kwarg_inputs={"bias": torch.ones(3)})
    assert not list(tmp_path.iterdir())


def test_nothing_stays_of_a_save_that_fails(
    static_engine: TRTModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(program: Any, file: Any, **keywords: Any) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch.export, "save", fail)
    (tmp_path / "model.pt2").write_bytes(b"before")
    with pytest.raises(OSError, match="no space left"):
        save(static_engine, tmp_path / "model.pt2", arg_inputs=(torch.ones(2, 3),))
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("model.pt2", b"before")]


def test_tensor_subclasses_are_refused(static_engine: TRTModule, tmp_path: Path) -> None:
    program = torch.export.export(nn.Sequential(static_engine), (torch.ones(2, 3),))
    program.state_dict["0.strange"] = torch.masked.masked_tensor(torch.ones(2), torch.ones(2) > 0)
    with pytest.raises(ExportError, match=r"'0\.strange' is a MaskedTensor, which can only be saved with pickle"):
        save(program, tmp_path / "model.pt2")


# Files that are not right -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a saved program"),
        (b"hello, world" * 100, "not a saved program"),
        (b"PK\x03\x04" + bytes(100), "truncated or corrupt"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=message) as caught:
        load(path)
    assert caught.value.where == str(path)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere.pt2")


def test_a_plan_file_is_not_a_program(static_engine: TRTModule, tmp_path: Path) -> None:
    write_plan(tmp_path / "model.pt2", static_engine.header, static_engine.plan)
    with pytest.raises(PlanError, match="plan of one engine") as caught:
        load(tmp_path / "model.pt2")
    assert "read_plan" in caught.value.hint


def test_programs_of_torch_export_are_left_to_torch_export(static_engine: TRTModule, tmp_path: Path) -> None:
    program = torch.export.export(static_engine, (torch.ones(2, 3),))
    torch.export.save(program, tmp_path / "model.pt2")
    with pytest.raises(PlanError, match=r"not written by trt_runtime\.save") as caught:
        load(tmp_path / "model.pt2")
    assert "torch.export.load" in caught.value.hint


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_truncated_files(saved: Path, data: st.DataObject) -> None:
    content = saved.read_bytes()
    path = saved.with_name("cut.pt2")
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(PlanError):
        load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(data=st.data())
def test_changed_content_is_found_before_it_is_used(saved: Path, data: st.DataObject) -> None:
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        info = data.draw(st.sampled_from([info for info in archive.infolist() if info.file_size]))
        with archive.open(info) as member:
            begin = member._orig_compress_start  # type: ignore[attr-defined]
    content[begin + data.draw(st.integers(0, info.file_size - 1))] ^= data.draw(st.integers(1, 255))
    path = saved.with_name("changed.pt2")
    path.write_bytes(content)
    with pytest.raises(PlanError, match=r"corrupt|not written by"):
        load(path)


def _rewritten(saved: Path, changes: dict[str, bytes]) -> Path:
    """The archive with other members, correctly checksummed: what an attacker or another version would write."""
    path = saved.with_name("rewritten.pt2")
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(path, "w") as target:
        root = source.namelist()[0].partition("/")[0]
        changes = {f"{root}/{name}": content for name, content in changes.items()}
        for info in source.infolist():
            target.writestr(info, changes.pop(info.filename, source.read(info)))
        for name, content in changes.items():
            target.writestr(name, content)
    return path


def _pickled() -> bytes:
    buffer = io.BytesIO()
    torch.save((torch.ones(1),), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"data/sample_inputs/model.pt": _pickled()},
        {"data/weights/model.pt": _pickled()},
        {"data/aotinductor/model/model.so": b"\x7fELF"},
        {
            "data/constants/model_constants_config.json": json.dumps(
                {"config": {"c": {"path_name": "tensor_0", "is_param": False, "use_pickle": True, "tensor_meta": None}}}
            ).encode()
        },
        {
            "data/constants/model_constants_config.json": json.dumps(
                {"config": {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False}}}
            ).encode()
        },
    ],
    ids=["sample inputs", "legacy weights", "library", "pickled constant", "object"],
)
def test_files_that_would_run_code_are_refused(saved: Path, changes: dict[str, bytes]) -> None:
    with pytest.raises(PlanError, match="can run code"):
        load(_rewritten(saved, changes))


def test_members_outside_the_folder_are_refused(saved: Path) -> None:
    path = _rewritten(saved, {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("elsewhere/models/model.json", b"{}")
    with pytest.raises(PlanError, match="unexpected member"):
        load(path)


def _manifest(saved: Path) -> dict[str, Any]:
    with zipfile.ZipFile(saved) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(MANIFEST))
        return dict(json.loads(archive.read(name)))


def test_engines_of_another_provider(saved: Path) -> None:
    manifest = _manifest(saved)
    header = PlanHeader.from_json(manifest["engines"][0])
    manifest["engines"] = [dataclasses.replace(header, provider="tensorrt").to_json()]
    path = _rewritten(saved, {f"extra/{MANIFEST}": json.dumps(manifest).encode()})
    with pytest.raises(PlanError, match="built by the provider 'tensorrt'") as caught:
        load(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"not json", "manifest of the saved program cannot be read"),
        (b"[]", "manifest of the saved program cannot be read"),
        (b"{}", "manifest of the saved program cannot be read"),
        (b'{"format_version": 1, "torch_version": "", "engines": [{}]}', "lacks"),
        (b'{"format_version": 2, "torch_version": "", "engines": []}', "format version 2"),
    ],
)
def test_other_manifests(saved: Path, manifest: bytes, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        load(_rewritten(saved, {f"extra/{MANIFEST}": manifest}))


def test_programs_that_pytorch_cannot_read(saved: Path) -> None:
    with pytest.raises(PlanError, match="PyTorch cannot read the saved program") as caught:
        load(_rewritten(saved, {"models/model.json": b"{}"}))
    assert torch.__version__ in caught.value.hint


def test_an_engine_swapped_in_the_file_does_not_run(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        root = archive.namelist()[0].partition("/")[0]
        weights = json.loads(archive.read(f"{root}/data/weights/model_weights_config.json"))
        name = weights["config"]["engine.plan"]["path_name"]
        content = archive.read(f"{root}/data/weights/{name}")
    loaded = load(_rewritten(saved, {f"data/weights/{name}": content[::-1]}))
    with pytest.raises(PlanError, match="not the one that its header describes"):
        loaded(torch.ones(2, 3), bias=torch.ones(3))


def _call_of_child_0() -> torch.fx.Graph:
    graph = torch.fx.Graph()
    graph.output(graph.call_module("0", (graph.placeholder("x"),)))
    return graph


def test_one_example_for_two_inputs_stays_two_inputs(tmp_path: Path) -> None:
    class Difference(nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return x - y

    x = torch.ones(3)
    save(Difference(), tmp_path / "model.pt2", arg_inputs=(x,), kwarg_inputs={"y": x})
    y = torch.arange(3.0)
    torch.testing.assert_close(load(tmp_path / "model.pt2")(x, y=y), x - y)
