"""Branches and loops that run in PyTorch, in saved programs: `torch.cond`, `while_loop`, `scan` and `map`."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from control_flow_models import Mapped, Scanned, rows_of
from fresh_process import run_python
from program_files import ProgramFile
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.while_loop import while_loop

from trt_core import ExecutionError, ExportError, PlanError
from trt_core.files import records
from trt_core.limits import CallLimits
from trt_runtime import load, save
from trt_runtime.program.document import check_step, program_from_bytes
from trt_runtime.program.graph import ControlFlowCall, operator_calls

pytestmark = pytest.mark.sampled(4)


class Branch(nn.Module):
    """Weights of either branch, a buffer that both read, a number of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> Any:
        def yes(y: torch.Tensor) -> Any:
            return self.left(y).relu() + self.shift, y.long()

        def no(y: torch.Tensor) -> Any:
            return self.right(y) * y.shape[0] - self.shift, y.long() + 1

        return torch.cond(x.sum() > 0, yes, no, (x,))


class Loop(nn.Module):
    """Ends by what it computes; does not begin for negative sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        def goes_on(count: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (count < 6) & (y.sum() > 0)

        def turn(count: torch.Tensor, y: torch.Tensor) -> Any:
            return count + 1, torch.tanh(self.layer(y)).abs() + 0.25

        return while_loop(goes_on, turn, (torch.zeros((), dtype=torch.int64), x))


class Nested(nn.Module):
    """A branch in a loop in a branch, with weights in the innermost."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        def turn(count: torch.Tensor, y: torch.Tensor) -> Any:
            return count + 1, torch.cond(y.mean() > 0.5, lambda z: self.layer(z) * 0.5, lambda z: z + 0.75, (y,))

        def loop(y: torch.Tensor) -> Any:
            return while_loop(lambda count, z: count < 5, turn, (y.new_zeros((), dtype=torch.int64), y))[1]

        return torch.cond(x.sum() > 0, loop, lambda y: self.layer(y) - 1, (x,))


MODELS = [Branch, Loop, Scanned, Mapped, Nested]


@functools.cache
def _exported(kind: Callable[[], nn.Module]) -> tuple[nn.Module, torch.export.ExportedProgram]:
    torch.manual_seed(0)
    model = kind().eval()
    rows = torch.export.Dim("rows", min=2, max=9)
    return model, torch.export.export(model, (rows_of(3)[0],), dynamic_shapes=({0: rows},))


@pytest.fixture
def looped(tmp_path: Path) -> ProgramFile:
    """A stranger's program with a loop: what is signed is the file, not its parts."""
    save(_exported(Loop)[1], tmp_path / "loop.trtp")
    return ProgramFile.read((tmp_path / "loop.trtp").read_bytes())


@pytest.mark.parametrize("kind", MODELS)
def test_what_stays_in_pytorch_is_saved(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    model, program = _exported(kind)
    save(program, tmp_path / "model.trtp", sign=False)
    loaded = load(tmp_path / "model.trtp")
    save(loaded, tmp_path / "again.trtp", sign=False)
    twins = [loaded, load(tmp_path / "again.trtp"), copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))]
    for rows in (2, 9):
        for x in rows_of(rows):
            wanted = model(x)
            for twin in twins:
                torch.testing.assert_close(twin(x), wanted)
    assert [str(spec.shape[-1]) for spec in loaded.outputs if getattr(spec, "shape", ())]


def test_loading_needs_only_torch_and_trt_runtime(tmp_path: Path) -> None:
    model, program = _exported(Nested)
    save(program, tmp_path / "model.trtp")
    x = rows_of(5)[0]
    torch.save({"x": x, "y": model(x).detach()}, tmp_path / "example.pt")
    script = textwrap.dedent("""
        import sys, torch
        before = set(sys.modules)
        import trt_runtime
        example = torch.load(sys.argv[2], weights_only=True)
        assert torch.allclose(trt_runtime.load(sys.argv[1])(example["x"]), example["y"])
        added = set(sys.modules) - before
        heavy = ("sympy", "torch._dynamo", "torch._inductor", "torch.export", "trt_frontends", "trt_converters")
        print(sorted(name for name in added if name.startswith(heavy)))
    """)
    files = (str(tmp_path / "model.trtp"), str(tmp_path / "example.pt"))
    result = run_python(script, *files, env={"TRT_PROVIDER": "portable"}, bare=True)
    assert result.stdout == "[]\n", result.stdout + result.stderr


def test_results_of_a_loop_without_a_turn_are_copies(tmp_path: Path) -> None:
    save(_exported(Loop)[1], tmp_path / "model.trtp")
    x = rows_of(3)[1]
    count, y = load(tmp_path / "model.trtp")(x)
    assert count == 0
    assert y.data_ptr() != x.data_ptr()


def test_a_sequence_without_items_is_refused(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=0, max=9)
    save(torch.export.export(Mapped(), (torch.ones(3, 4),), dynamic_shapes=({0: rows},)), tmp_path / "model.trtp")
    with pytest.raises(ExecutionError, match="map takes sequences of one length, with at least one item"):
        load(tmp_path / "model.trtp")(torch.zeros(0, 4))


def test_numbers_and_tensors_made_in_bodies(tmp_path: Path) -> None:
    class Held(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            def yes(y: torch.Tensor) -> Any:
                return y * torch.tensor([1.0, 2.0, 3.0, 4.0]) + y.shape[0] // 2

            return torch.cond(x.sum() > 0, yes, lambda y: y - torch.tensor([4.0, 3.0, 2.0, 1.0]), (x,))

    model, program = _exported(Held)
    save(program, tmp_path / "model.trtp")
    for x in rows_of(7):
        torch.testing.assert_close(load(tmp_path / "model.trtp")(x), model(x))


def test_a_trace_of_what_branches_says_what_to_trace(tmp_path: Path) -> None:
    save(_exported(Branch)[1], tmp_path / "model.trtp")
    with pytest.raises(ExecutionError, match="a program with cond outside of engines cannot be traced"):
        torch.export.export(load(tmp_path / "model.trtp"), (rows_of(3)[0],))


def test_what_bodies_call_is_named(tmp_path: Path) -> None:
    class Attends(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > 0, lambda y: torch.ops.aten.special_zeta(y, y), torch.sin, (x,))

    save(torch.export.export(Attends(), (torch.ones(2),)), tmp_path / "model.trtp")
    parts = ProgramFile.read((tmp_path / "model.trtp").read_bytes())
    program = program_from_bytes(json.dumps(parts.graph).encode())
    assert [call.name for call in operator_calls(program.steps)][-2:] == ["aten::special_zeta", "aten::sin"]


# Files of strangers ------------------------------------------------------------------------------------------------


def _loop_of(parts: ProgramFile) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in parts.graph["steps"] if step["do"] == "control_flow")
    return found


def test_turns_of_a_strangers_loops_are_counted(looped: ProgramFile, tmp_path: Path) -> None:
    x = rows_of(3)[0]
    path = looped.write(tmp_path / "stranger.trtp")
    load(path)(x)
    with pytest.raises(ExecutionError, match="takes more than 3 turns of loops"):
        load(path, limits=CallLimits(loop_turns=3))(x)
    with pytest.raises(ExecutionError, match=r"takes more than 5 operators"):
        load(path, limits=CallLimits(steps=5))(x)


def test_an_endless_loop_of_a_stranger_ends(looped: ProgramFile, tmp_path: Path) -> None:
    loop = _loop_of(looped)
    loop["bodies"][0].update(steps=[], output=[True])
    loop["bodies"][1].update(steps=[], output=[{"value": 0}, {"value": 1}])
    program = load(looped.write(tmp_path / "endless.trtp"), limits=CallLimits(loop_turns=1000))
    for _ in range(2):  # whether sizes have been seen or not
        with pytest.raises(ExecutionError, match="turns of loops"):
            program(rows_of(3)[0])


def test_a_loop_that_grows_is_stopped(looped: ProgramFile, tmp_path: Path) -> None:
    """A body's inputs are what it declares, so nothing doubles from turn to turn."""
    loop = _loop_of(looped)
    doubled = {"tensor": "float32", "shape": [None, 4]}
    step = {"do": "operator", "name": "aten::cat", "overload": "", "kwargs": {}, "result": doubled}
    loop["bodies"][0].update(steps=[], output=[True])
    loop["bodies"][1].update(
        steps=[{**step, "args": [[{"value": 1}, {"value": 1}]]}],
        output=[{"value": 0}, {"value": len(loop["bodies"][1]["inputs"])}],
    )
    with pytest.raises(ExecutionError, match="input 1 made a tensor of shape"):
        load(looped.write(tmp_path / "growing.trtp"))(rows_of(3)[0])
    for body in loop["bodies"]:
        body["inputs"][1]["shape"] = [None, 4]
    with pytest.raises(ExecutionError, match="bytes"):
        load(looped.write(tmp_path / "growing.trtp"), limits=CallLimits(bytes_alive=1 << 24))(rows_of(3)[0])


def test_operators_without_a_contract_need_trust_in_bodies(looped: ProgramFile, tmp_path: Path) -> None:
    call = next(step for step in _loop_of(looped)["bodies"][1]["steps"] if step["do"] == "operator")
    call.update(name="aten::special_zeta", overload="", args=[call["args"][0]] * 2)
    path = looped.write(tmp_path / "stranger.trtp")
    with pytest.raises(PlanError, match=r"calls aten\.special_zeta.*, which only programs may call that are trusted"):
        load(path)
    call.update(name="aten::resize_", overload="", args=[{"value": 0}, [4]])
    with pytest.raises(PlanError, match=r"may not call aten\.resize_"):
        load(looped.write(path), trust=True)


_BODY = {"inputs": [], "steps": [], "output": []}
_TENSOR = {"tensor": "float32", "shape": [4]}
_CALL = {"do": "control_flow", "operator": "cond", "bodies": [_BODY, _BODY], "operands": [[True], []], "result": []}
_LOOP = {
    **_CALL,
    "operator": "while_loop",
    "bodies": [{**_BODY, "output": [False], "inputs": [_TENSOR]}, {**_BODY, "output": [1], "inputs": [_TENSOR]}],
    "operands": [[{"value": 0}], []],
    "result": [_TENSOR],
}
_MAP = {
    **_CALL,
    "operator": "map",
    "bodies": [{"inputs": [_TENSOR], "steps": [], "output": [{"value": 0}]}],
    "operands": [[{"value": 0}], []],
    "result": [_TENSOR],
}


@pytest.mark.parametrize("call", [_CALL, _LOOP, _MAP])
def test_steps_are_read_as_they_are_written(call: dict[str, Any]) -> None:
    step = records.read(ControlFlowCall, call, "here")
    check_step(step, "here", 1, ())
    assert records.write(step) == call


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({**_CALL, "operator": "until"}, "no branch or loop"),
        ({**_CALL, "bodies": [_BODY]}, "a list of 2 is needed"),
        ({**_CALL, "operands": [[True]]}, "a list of 2 is needed"),
        ({**_CALL, "operands": [[], []]}, "it needs one predicate"),
        ({**_CALL, "operands": [["x"], []]}, "values and numbers"),
        ({**_CALL, "operands": [[{"value": 1}], []]}, "a value"),
        ({**_CALL, "operands": [[True], [1]]}, "do not take the 1 operands"),
        ({**_CALL, "result": "int"}, "do not return what it makes"),
        ({**_CALL, "result": [_TENSOR]}, "do not return what it makes"),
        ({**_CALL, "bodies": [_BODY, {**_BODY, "inputs": [None]}]}, "takes tensors and numbers"),
        ({**_CALL, "bodies": [_BODY, {**_BODY, "output": [{"value": 0}]}]}, "a value"),
        ({**_CALL, "bodies": [_BODY, {**_BODY, "extra": 1}]}, "extra"),
        ({**_CALL, "bodies": [{**_BODY, "steps": [{"do": "engine", "engine": 0, "inputs": []}]}] * 2}, "no engines"),
        ({**_MAP, "operands": [[], [{"value": 0}]]}, "no sequence"),
        ({**_MAP, "result": [None]}, "what is carried"),
        ({**_LOOP, "result": [], "operands": [[], [{"value": 0}]]}, "a condition and what is carried"),
    ],
)
def test_steps_that_are_not_right_are_refused(call: dict[str, Any], why: str) -> None:
    with pytest.raises((PlanError, ValueError), match=why):
        check_step(records.read(ControlFlowCall, call, "here"), "here", 1, ())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda loop: loop["bodies"][1]["inputs"][1].update(tensor="int32"), "is declared"),
        (lambda loop: loop["bodies"][1]["inputs"][1].update(shape=["s9", 4]), "s9"),
        (lambda loop: loop["bodies"][1]["inputs"].__setitem__(1, "int"), "is declared"),
        (lambda loop: loop["bodies"][1]["inputs"][1].update(shape=[10**9, 4]), "is declared"),
        (lambda loop: loop["bodies"][1]["steps"].append({"do": "size", "tensor": 0, "axis": 3}), "body 1, step"),
        (lambda loop: loop["bodies"][1]["steps"].append({"do": "write", "target": 0, "source": 0}), "write nothing"),
    ],
)
def test_loops_that_contradict_themselves_are_refused(
    looped: ProgramFile, tmp_path: Path, change: Callable[[dict[str, Any]], Any], why: str
) -> None:
    change(_loop_of(looped))
    with pytest.raises(PlanError, match=why):
        load(looped.write(tmp_path / "forged.trtp"))


def test_what_decides_is_one_value(looped: ProgramFile, tmp_path: Path) -> None:
    _loop_of(looped)["bodies"][0].update(steps=[], output=[{"value": 1}])
    with pytest.raises(ExecutionError, match="while_loop is decided by one value"):
        load(looped.write(tmp_path / "forged.trtp"))(rows_of(3)[0])


def test_what_is_no_tensor_cannot_be_taken(tmp_path: Path) -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return map_over(lambda row: (row + 1, None), x)[0]

    program = torch.export.export(Nothing(), (torch.ones(2, 3),))
    with pytest.raises(ExportError, match="neither tensor nor number"):
        save(program, tmp_path / "model.trtp")
