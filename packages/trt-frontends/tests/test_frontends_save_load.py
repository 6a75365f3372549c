"""Compiled models as files: saved, loaded where only PyTorch and trt_runtime are imported, refused when damaged."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import run_python
from torch import nn

import trt_frontends
from trt_core import Input, InputError, PlanError
from trt_runtime.program_file import SectionKind, read_sections

_LOADER = """
import sys
import torch, trt_runtime
module = trt_runtime.load(sys.argv[1])
foreign = [name for name in ("trt_frontends", "trt_converters", "trt_lowering", "trt_partition") if name in sys.modules]
assert not foreign, foreign
for inputs, expected in torch.load(sys.argv[2], weights_only=True):
    torch.testing.assert_close(module(*inputs), expected)
"""


@dataclasses.dataclass
class Result:
    """A result of a class that whoever loads the program does not have."""

    hidden: torch.Tensor
    pooled: torch.Tensor


torch.export.register_dataclass(Result)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> Result:
        hidden = torch.relu(self.linear(x if mask is None else x * mask))
        return Result(hidden, hidden.mean(0))


def _run_elsewhere(path: Path, cases: list[Any]) -> None:
    torch.save(cases, path.with_suffix(".cases"))
    done = run_python(_LOADER, str(path), str(path.with_suffix(".cases")))
    assert done.returncode == 0, done.stderr


def test_a_static_program_runs_in_another_process(mlp: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    trt_frontends.save(trt_frontends.compile(mlp, arg_inputs=(x,)), tmp_path / "static.trtp", arg_inputs=(x,))
    with torch.no_grad():
        _run_elsewhere(tmp_path / "static.trtp", [((x,), mlp(x))])


def test_keywords_that_scripts_bring_from_elsewhere(mlp: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    compiled = trt_frontends.compile(mlp, arg_inputs=(x,))
    path = tmp_path / "model.ep"
    trt_frontends.save(compiled, path, inputs=[x], retrace=False)
    assert torch.equal(trt_frontends.load(path)(x), compiled(x))
    trt_frontends.save(compiled, path, output_format="exported_program", inputs=[x])
    assert torch.equal(trt_frontends.load(path, trust=True)(x), compiled(x))
    with pytest.warns(UserWarning, match="dynamic_shapes has no effect"):
        trt_frontends.save(compiled, tmp_path / "model.trtp", dynamic_shapes={"x": {0: torch.export.Dim("rows")}})
    for given in ({"sign": True}, {"metadata": {"version": "3"}}):
        with pytest.raises(InputError, match="PyTorch's format has no place for"):
            trt_frontends.save(compiled, path, format="exported_program", arg_inputs=[x], **given)  # type: ignore[arg-type]
    for twice in ({"inputs": [x], "arg_inputs": [x]}, {"format": "program", "output_format": "program"}):
        with pytest.raises(InputError, match="are the same thing"):
            trt_frontends.save(compiled, path, **twice)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no format ''"):
        trt_frontends.save(compiled, path, format="")
    with pytest.raises(InputError, match="there is no format 'torchscript'") as caught:
        trt_frontends.save(compiled, path, output_format="torchscript")
    assert "hold no engines" in caught.value.why


@pytest.mark.parametrize("is_signed", [False, True])
def test_saving_says_what_a_program_is_and_signs_it(
    is_signed: bool, mlp: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "keys"))
    compiled = trt_frontends.compile(mlp, arg_inputs=(torch.randn(2, 4),))
    trt_frontends.save(compiled, tmp_path / "model.trtp", metadata={"version": "3"}, sign=is_signed)
    assert trt_frontends.load(tmp_path / "model.trtp").meta["version"] == "3"
    kinds = {section.kind for section in read_sections(memoryview((tmp_path / "model.trtp").read_bytes()))}
    assert (SectionKind.SIGNATURE in kinds) is is_signed


@pytest.mark.parametrize("path", [None, 3, io.BytesIO(b"")], ids=["None", "3", "BytesIO"])
def test_what_names_no_file_is_refused(path: Any, mlp: nn.Module) -> None:
    with pytest.raises(InputError, match=r"cannot take (None|an int|a BytesIO) as path(.|\n)*give a string or a path"):
        trt_frontends.save(torch.export.export(mlp, (torch.ones(2, 4),)), path)
    with pytest.raises(InputError, match=r"cannot take (None|an int|a BytesIO) as path(.|\n)*give a string or a path"):
        trt_frontends.load(path)


@pytest.mark.parametrize("example", [1, 3])
def test_a_dynamic_program_keeps_its_range(example: int, interrupted: nn.Module, batch: Input, tmp_path: Path) -> None:
    compiled = trt_frontends.compile(interrupted, arg_inputs=(batch,), min_block_size=1)
    path = tmp_path / "dynamic.trtp"
    trt_frontends.save(compiled, path, arg_inputs=(torch.randn(example, 4),))
    loaded = trt_frontends.load(path)
    for rows in (1, 2, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(loaded(x), interrupted(x))
    for wrong in (torch.ones(9, 4), torch.ones(4)):
        with pytest.raises(
            InputError, match=r"is 9, the model was compiled for 1 to 8|rank 1, the model was compiled for rank 2"
        ):
            loaded(wrong)


def test_inputs_may_be_ranges(mlp: nn.Module, batch: Input, tmp_path: Path) -> None:
    trt_frontends.save(trt_frontends.compile(mlp, arg_inputs=(batch,)), tmp_path / "m.trtp", arg_inputs=(batch,))
    torch.testing.assert_close(trt_frontends.load(tmp_path / "m.trtp")(torch.ones(7, 4)), mlp(torch.ones(7, 4)))


def test_keyword_inputs_and_results_of_foreign_classes(batch: Input, tmp_path: Path) -> None:
    model = Encoder().eval()
    compiled = trt_frontends.compile(model, arg_inputs=(batch,), kwarg_inputs={"mask": batch}, min_block_size=1)
    x, mask = torch.randn(3, 4), torch.rand(3, 4)
    assert isinstance(compiled(x, mask=mask), Result)
    path = tmp_path / "encoder.trtp"
    trt_frontends.save(compiled, path, arg_inputs=(x,), kwarg_inputs={"mask": mask})
    found, expected = trt_frontends.load(path)(x, mask=mask), model(x, mask=mask)
    assert list(found) == ["hidden", "pooled"]
    torch.testing.assert_close(found["hidden"], expected.hidden)
    torch.testing.assert_close(found["pooled"], expected.pooled)


def test_dict_results_and_state(tmp_path: Path) -> None:
    class Counter(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.calls.add_(1)
            return {"value": torch.relu(x) + self.calls, "calls": self.calls * 1}

    x = torch.randn(2, 4)
    compiled = trt_frontends.compile(Counter(), arg_inputs=(x,), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "counter.trtp", arg_inputs=(x,))
    loaded = trt_frontends.load(tmp_path / "counter.trtp")
    first, second = loaded(x), loaded(x)
    torch.testing.assert_close(second["value"], first["value"] + 1)
    assert second["calls"] - first["calls"] == 1


def test_nested_inputs(batch: Input, tmp_path: Path) -> None:
    class Nested(nn.Module):
        def forward(self, state: dict[str, torch.Tensor], pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return torch.relu(state["a"]) - pair[0] * pair[1]

    specs: tuple[Any, ...] = ({"a": batch}, (batch, batch))
    compiled = trt_frontends.compile(Nested(), arg_inputs=specs, min_block_size=1)
    x = torch.randn(1, 4)
    trt_frontends.save(compiled, tmp_path / "nested.trtp", arg_inputs=({"a": x}, (x, x)))
    a, b, c = torch.randn(3, 5, 4)
    found = trt_frontends.load(tmp_path / "nested.trtp")({"a": a}, (b, c))
    torch.testing.assert_close(found, Nested()({"a": a}, (b, c)))


def test_truncated_and_foreign_files(mlp: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    path = tmp_path / "model.trtp"
    trt_frontends.save(trt_frontends.compile(mlp, arg_inputs=(x,)), path, arg_inputs=(x,))
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:100], b"", b"not a program"):
        path.write_bytes(damaged)
        with pytest.raises(PlanError) as caught:
            trt_frontends.load(path)
        assert str(path) in caught.value.where
        assert caught.value.hint
    torch.save({"weights": x}, path)
    with pytest.raises(PlanError):
        trt_frontends.load(path)


def test_a_compiled_model_knows_what_it_takes(interrupted: nn.Module, batch: Input, tmp_path: Path) -> None:
    compiled = trt_frontends.compile(interrupted, arg_inputs=(batch,), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    x = torch.randn(5, 4)
    torch.testing.assert_close(loaded(x), interrupted(x))


def test_examples_that_the_model_was_not_compiled_for(mlp: nn.Module, tmp_path: Path) -> None:
    compiled = trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),))
    with pytest.raises(InputError, match="is 3, the model was compiled for 2"):
        trt_frontends.save(compiled, tmp_path / "model.trtp", arg_inputs=(torch.ones(3, 4),))
    assert not list(tmp_path.iterdir())


def test_literals_sizes_and_none_among_results(batch: Input, tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            order = torch.sort(x, dim=0)
            rows = x.shape[0]
            pairs = (order.values[: rows // 2 + 1], [torch.relu(x), None])
            return {"pairs": pairs, "rows": rows, "double": x.shape[0] * 2, "name": "mixed", "none": None, "half": 0.5}

    compiled = trt_frontends.compile(
        Mixed(), arg_inputs=(batch,), min_block_size=1, torch_executed_ops={"aten.sort", "aten.slice"}
    )
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    for rows in (1, 5, 8):
        x = torch.randn(rows, 4)
        found, expected = loaded(x), Mixed()(x)
        torch.testing.assert_close(found.pop("pairs")[0], expected["pairs"][0])
        del expected["pairs"]
        assert found == expected


class Splitting(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, torch.tensor_split(x, 2)[0]


def test_a_split_kept_in_pytorch_follows_the_size(tmp_path: Path) -> None:
    program = torch.export.export(Splitting(), (torch.randn(8, 2),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    kept = ["torch.ops.aten.tensor_split.sections"]
    compiled = trt_frontends.compile(program, torch_executed_ops=kept)
    trt_frontends.save(compiled, tmp_path / "split.trtp")
    loaded = trt_frontends.load(tmp_path / "split.trtp")
    for rows in (10, 12):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(loaded(x), Splitting()(x))


def test_writes_to_inputs(tmp_path: Path) -> None:
    class Accumulate(nn.Module):
        def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            total.add_(torch.relu(x))
            return total * 2

    x, total = torch.randn(2, 4), torch.zeros(2, 4)
    compiled = trt_frontends.compile(Accumulate(), arg_inputs=(x, total.clone()), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    result = loaded(x, total)
    torch.testing.assert_close(total, x.relu())
    torch.testing.assert_close(result, x.relu() * 2)


def test_a_provider_that_is_not_installed() -> None:
    script = """
import torch, trt_frontends
try:
    trt_frontends.compile(torch.nn.ReLU(), arg_inputs=(torch.ones(2),))
except trt_core.ProviderError as error:
    print(error)
"""
    without = "import sys, trt_core; sys.modules['tensorrt'] = None\n"
    result = run_python(without + script, env={"TRT_PROVIDER": "tensorrt"})
    assert result.returncode == 0, result.stderr
    assert "the provider 'tensorrt' cannot be used" in result.stdout
    assert "pip install 'trt-runtime[tensorrt]'" in result.stdout


def test_a_program_of_another_pytorch_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval(), torch.ones(2, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1, torch_executed_ops={"aten.relu.default"})
    assert len(compiled.meta["partition_report"].engines) == 2
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.warns(UserWarning, match="was built with PyTorch") as caught:
        loaded = trt_frontends.load(tmp_path / "model.trtp")
        loaded(x)
    assert len([item for item in caught if "was built with PyTorch" in str(item.message)]) == 1
