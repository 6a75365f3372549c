"""Saved programs: saved, loaded where only torch and trt_runtime are imported, and called like the model."""

from __future__ import annotations

import os
import pickle
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import run_python
from torch import nn

from trt_core import ExportError, Input, InputError
from trt_runtime import TRTModule, load, save
from trt_runtime.program.interface import NumberSpec
from trt_runtime.program.stored_tensors import check_storable

BATCH = {0: torch.export.Dim("batch", min=1, max=8)}


def test_loaded_programs_compute_the_same(model: nn.Module, saved: Path) -> None:
    loaded = load(saved)
    for rows in (1, 3, 8):
        x, bias = torch.randn(rows, 3), torch.randn(3)
        assert torch.equal(loaded(x, bias=bias)["result"], model(x, bias=bias)["result"])


def test_loading_needs_only_torch_and_trt_runtime(model: nn.Module, saved: Path, tmp_path: Path) -> None:
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
    files = (str(saved), str(tmp_path / "example.pt"))
    result = run_python(script, *files, env={"TRT_PROVIDER": "portable"}, bare=True)
    assert result.stdout == "same\n", result.stderr


def test_loading_imports_no_compiler_and_no_computer_algebra(saved: Path) -> None:
    script = textwrap.dedent("""
        import sys, torch
        before = set(sys.modules)
        import trt_runtime
        trt_runtime.load(sys.argv[1])
        heavy = ("sympy", "torch._dynamo", "torch._inductor", "torch.export", "torch._functorch", "torch.fx")
        print(sorted(name for name in set(sys.modules) - before if name.startswith(heavy)))
    """)
    result = run_python(script, str(saved), env={"TRT_PROVIDER": "portable"}, bare=True)
    assert result.stdout == "[]\n", result.stdout + result.stderr


def test_nothing_is_unpickled_or_evaluated(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("not without trust")

    for owner, name in ((torch, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch.export, "load")):
        monkeypatch.setattr(owner, name, refuse)
    load(saved)


def test_no_path_of_this_machine_is_in_the_file(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    for place in (str(Path(__file__).parent), str(tmp_path), os.getcwd(), sys.prefix):
        assert place.encode() not in content


def test_dynamic_shapes_come_from_the_compiled_module(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    graph_module = torch.fx.GraphModule(nn.Sequential(dynamic_engine), _call_of_child_0())
    graph_module.meta["dynamic_shapes"] = (BATCH,)
    save(graph_module, tmp_path / "model.trtp", arg_inputs=[Input((4, 3))])
    assert load(tmp_path / "model.trtp")(torch.ones(7, 3)).shape == (7, 3)


def test_an_exported_program_is_saved_as_it_is(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    program = torch.export.export(dynamic_engine, (torch.ones(4, 3),), dynamic_shapes=((BATCH,),))
    save(program, tmp_path / "model.trtp")
    assert program.example_inputs is not None
    assert load(tmp_path / "model.trtp")(torch.ones(7, 3)).shape == (7, 3)


def test_numbers_are_inputs_of_a_saved_program(tmp_path: Path) -> None:
    """They were written, and none of these files could be read."""

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, count: int, share: float) -> torch.Tensor:
            return x * count + share

    given, varying = (torch.ones(3), 2, 0.5), {"x": None, "count": torch.export.Dim.DYNAMIC, "share": None}
    save(torch.export.export(Scaled(), given, dynamic_shapes=varying), tmp_path / "model.trtp")
    program = load(tmp_path / "model.trtp")
    assert isinstance(program.inputs[1], NumberSpec)
    for count in (2, 5):
        assert program(torch.ones(3), count, 0.5).tolist() == [count + 0.5] * 3


def test_numbers_that_capture_knew_are_declared_as_numbers(tmp_path: Path) -> None:
    """What follows from constants alone is a plain number; programs declared nothing, and refused it in a call."""

    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.sum().item()

    program = torch.export.export(Counted(), (torch.ones(3),))
    (number,) = (node for node in program.graph.nodes if node.target is torch.ops.aten.item.default)
    number.meta["val"] = 3.0
    save(program, tmp_path / "model.trtp")
    assert load(tmp_path / "model.trtp")(torch.ones(3)).tolist() == [4.0] * 3


def test_an_engine_is_saved_as_it_is(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    save(dynamic_engine, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert torch.equal(loaded(torch.ones(7, 3)), torch.full((7, 3), 2.0))
    with pytest.raises(InputError, match="dimension 0 of input x is 9, the model was compiled for 1 to 8"):
        loaded(torch.ones(9, 3))


def test_saving_again_gives_the_same_bytes(saved: Path, model: nn.Module, tmp_path: Path) -> None:
    save(load(saved), tmp_path / "again.trtp")
    assert (tmp_path / "again.trtp").read_bytes() == saved.read_bytes()


def test_example_inputs_are_needed(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs example inputs") as caught:
        save(model, tmp_path / "model.trtp")
    assert "arg_inputs" in caught.value.hint


def test_what_cannot_be_exported_is_an_error(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be exported"):
        save(model, tmp_path / "model.trtp", arg_inputs=(torch.ones(4, 3),))
    with pytest.raises(InputError, match="is 9, the engine was built for 1 to 8"):
        save(model, tmp_path / "model.trtp", arg_inputs=(torch.ones(9, 3),), kwarg_inputs={"bias": torch.ones(3)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("strange", "kind"),
    [
        (torch.masked.masked_tensor(torch.ones(2), torch.ones(2) > 0), "MaskedTensor"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo torch.float32"),
        (torch.ones(2, device="meta"), "torch.strided torch.float32"),
    ],
)
def test_tensors_that_are_more_than_bytes_are_refused(strange: torch.Tensor, kind: str) -> None:
    with pytest.raises(ExportError, match=f"'weight' is a {kind} tensor on .*, which a saved program cannot hold"):
        check_storable(strange, "weight")


def _call_of_child_0() -> torch.fx.Graph:
    graph = torch.fx.Graph()
    graph.output(graph.call_module("0", (graph.placeholder("x"),)))
    return graph


def test_one_example_for_two_inputs_stays_two_inputs(tmp_path: Path) -> None:
    class Difference(nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return x - y

    x = torch.ones(3)
    save(Difference(), tmp_path / "model.trtp", arg_inputs=(x,), kwarg_inputs={"y": x})
    y = torch.arange(3.0)
    torch.testing.assert_close(load(tmp_path / "model.trtp")(x, y=y), x - y)


# What cannot be saved ----------------------------------------------------------------------------------------------
