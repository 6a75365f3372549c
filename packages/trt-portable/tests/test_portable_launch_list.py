"""Compiled artifacts as bytes, and the lists of launches in them."""

from __future__ import annotations

import ctypes
import gc
import json
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trt_portable.errors import PortableError
from trt_portable.execution import launch_list
from trt_portable.execution.launch_list import CompiledProgram, _Reader, with_waits
from trt_portable.execution.loaded_network import FLAT
from trt_portable.execution.program import Program
from trt_portable.plan.artifact import Artifact, Varying, read_artifacts, write_artifacts
from trt_portable.plan.weight_store import WeightStore

CPU = torch.device("cpu")
NOTHING = Program((), (), ())


def test_sections_come_back() -> None:
    same = b"\x00machine code"
    made = [
        Artifact("t", {"torch": "x"}, ((1, 2), ()), {"steps": [["op"]]}, {"a": same, "b": b""}),
        Artifact("t", {"torch": "x"}, ((3, 2), ()), {"steps": []}, {"c": same}),
    ]
    section = write_artifacts(made)
    assert read_artifacts(section) == made
    assert section.count(same) == 1
    assert read_artifacts(b"") == []


@given(st.binary(min_size=1, max_size=64))
def test_bytes_that_are_no_section(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_artifacts(data)


@pytest.mark.parametrize(
    "step",
    [
        ["op", "aten::relu", [{"slot": 0}], {}, [1]],
        ["op", "prims::cos", [{"slot": 0}], {}, [1]],
        ["op", "os::system", ["true"], {}, []],
        ["op", "aten::__class__", [], {}, []],
        ["op", "aten::to.dtype", [{"slot": 0}, {"dtype": "nn"}], {}, [1]],
        ["op", "aten::relu", [{"eval": "1"}], {}, [1]],
        ["exec", "1"],
        ["kernel", 0, [1, 1, 1], []],
    ],
)
def test_a_list_names_operators_of_aten_and_nothing_else(step: list[Any]) -> None:
    document = {"operands": [{"input": 0}], "kernels": [], "steps": [step], "slots": 2, "outputs": [1]}
    made = Artifact("t", {}, ((2,),), json.loads(json.dumps(document)), {})
    store = WeightStore((), (), ())
    if step[1] == "aten::relu" and step[2] == [{"slot": 0}]:
        (found,) = CompiledProgram(made, store, NOTHING, CPU).run([torch.tensor([-1.0, 1.0])])
        assert found.tolist() == [0.0, 1.0]
        return
    with pytest.raises(PortableError, match="makes no sense"):
        CompiledProgram(made, store, NOTHING, CPU)


def test_values_of_a_list_die_with_their_last_reader() -> None:
    steps = [["op", "aten::relu", [{"slot": at}], {}, [at + 1]] for at in range(3)]
    document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 4, "outputs": [3, 1]}
    program = CompiledProgram(Artifact("t", {}, ((2,),), document, {}), WeightStore((), (), ()), NOTHING, CPU)
    assert [dying for _, dying in program._steps.runs] == [[], [], [2]]
    x = torch.tensor([-1.0, 2.0])
    assert [value.tolist() for value in program.run([x])] == [[0.0, 2.0]] * 2


def test_kernels_start_early_behind_kernels_of_the_same_list_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before the list, and operators, may write what a kernel reads before it waits."""

    class Launches:
        def __init__(self, calls: Any) -> None:
            self.values = [0] * len(calls)
            self._early = [is_early for *_, is_early in calls]

        def start(self, at: int) -> None:
            started.append(self._early[at])

    started: list[bool] = []
    monkeypatch.setattr(launch_list, "_load_kernels", lambda described, blobs, device: [None for _ in described])
    monkeypatch.setattr(launch_list, "Launches", Launches)
    early, late = (["kernel", at, [1, 1, 1], [{"slot": 0}]] for at in range(2))
    between = [["empty", 1, [2], [1], "float32"], ["view", 2, 0, [1], [1], 0]]
    steps = [early, *between, early, ["op", "aten::relu", [{"slot": 0}], {}, [3]], early, late, early]
    kernels = [{"early": True}, {"early": False}]
    document = {"operands": [{"input": 0}], "kernels": kernels, "steps": steps, "slots": 4, "outputs": [3]}
    CompiledProgram(Artifact("t", {}, ((2,),), document, {}), WeightStore((), (), ()), NOTHING, CPU).run(
        [torch.ones(2)]
    )
    assert started == [False, True, False, False, True]


class Additions:
    """Launches of a kernel that adds two vectors of four numbers to a third one, on the host."""

    def __init__(self, calls: Any) -> None:
        self.values = [number for _, _, numbers, _ in calls for number in numbers]

    def start(self, at: int) -> None:
        x, y, z = [(ctypes.c_float * 4).from_address(address) for address in self.values[4 * at : 4 * at + 3]]
        z[:] = [a + b for a, b in zip(x, y, strict=True)]


@st.composite
def launches(draw: st.DrawFn) -> tuple[list[Any], int, list[int]]:
    """Steps over vectors of four numbers, the number of their slots, and results.

    Slot 0 is an input of some rows, 1 a vector, and 2 a constant.
    """
    steps: list[Any] = [["view", 3, 0, [4], [1], 0]]
    ready = [1, 2, 3]
    own: set[int] = set()  # neither inputs nor constants
    slots = 4
    rows = {"extent": "0.0"}
    last_row = {"extent": ["add", ["mul", 4, "0.0"], -4]}
    for kind in draw(
        st.lists(st.sampled_from(["kernel", "out", "new", "alias", "view", "in place"]), min_size=8, max_size=24)
    ):
        x, y, made = draw(st.sampled_from(ready)), draw(st.sampled_from(ready)), slots
        operands = [{"slot": x}, {"slot": y}]
        if kind in ("kernel", "out"):
            made, slots = slots + 1, slots + 1
            steps.append(["empty", made - 1, [rows, 4], [4, 1], "float32"])
            steps.append(["view", made, made - 1, [4], [1], last_row])
            out = {"slot": made}
            as_kernel = ["kernel", 0, [1, 1, 1], [*operands, out, 4]]
            steps.append(as_kernel if kind == "kernel" else ["op", "aten::add.out", operands, {"out": out}, [made]])
        elif kind == "new":
            steps.append(["op", "aten::mul.Tensor", operands, {}, [made]])
        elif kind == "alias":
            steps.append(["op", "aten::view", [operands[0], [-1]], {}, [made]])
        elif kind == "view":
            steps.append(["view", made, x, [4], [1], 0])
        elif x in own:
            steps.append(["op", "aten::neg_", [operands[0]], {}, [x]])
            continue
        if kind in ("kernel", "out", "new") or x in own:
            own.add(made)
        if made == slots and kind != "in place":
            ready.append(made)
            slots += 1
    return steps, slots, draw(st.lists(st.sampled_from(ready), min_size=1, max_size=3, unique=True))


def one_by_one(steps: list[Any], values: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """What steps compute, each with memory of its own."""
    slots = dict(enumerate(values))
    for kind, *rest in steps:
        if kind == "empty":
            slots[rest[0]] = torch.empty(len(values[0]), 4)
        elif kind == "view":
            made, base, shape, strides, offset = rest
            start = 4 * len(values[0]) - 4 if offset else 0
            slots[made] = torch.as_strided(slots[base], shape, strides, slots[base].storage_offset() + start)
        elif kind == "kernel":
            x, y, z = [slots[each["slot"]] for each in rest[2][:3]]
            torch.add(x, y, out=z)
        else:
            name, arguments, keywords, (made,) = rest
            given = [slots[each["slot"]] if isinstance(each, dict) else each for each in arguments]
            named = {key: slots[each["slot"]] for key, each in keywords.items()}
            packet, _, overload = name.removeprefix("aten::").partition(".")
            slots[made] = getattr(getattr(torch.ops.aten, packet), overload or "default")(*given, **named)
    return slots


@settings(deadline=None)
@given(launches())
def test_runs_compute_what_their_steps_do_one_by_one(made: tuple[list[Any], int, list[int]]) -> None:
    steps, slots, outputs = made
    operands = [{"input": 0}, {"input": 1}, {"weights": 0, **FLAT.to_json()}]
    document = {
        "operands": operands,
        "kernels": [{"early": False}],
        "steps": steps,
        "slots": slots,
        "outputs": outputs,
    }
    constant = torch.tensor([1.0, -2.0, 3.0, 0.5])
    store: Any = SimpleNamespace(laid_out=lambda at: constant)
    artifact = Artifact("t", {}, ((4, 4), (4,)), document, {}, (Varying(0, 0, 1, 5),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_list, "_load_kernels", lambda described, blobs, device: [None])
        patch.setattr(launch_list, "Launches", Additions)
        program = CompiledProgram(artifact, store, NOTHING, CPU)
        _compare_runs(program, steps, outputs, constant)


def _compare_runs(program: CompiledProgram, steps: list[Any], outputs: list[int], constant: torch.Tensor) -> None:
    held = []  # so that arenas lie elsewhere in each run
    for rows in (2, 2, 5, 1, 2):
        values = [torch.randn(rows, 4), torch.randn(4)]
        wanted = one_by_one(steps, [*(value.clone() for value in values), constant.clone()])
        found = program.run(values)
        held.append(found)
        for slot, value in zip(outputs, found, strict=True):
            torch.testing.assert_close(value, wanted[slot], rtol=0, atol=0, equal_nan=True)


def test_memory_stays_while_what_an_operator_made_of_it_is_read() -> None:
    def added(slot: int) -> list[Any]:
        return ["op", "aten::add.out", [{"slot": 0}, {"slot": 0}], {"out": {"slot": slot}}, [slot]]

    def empty(slot: int) -> list[Any]:
        return ["empty", slot, [2], [1], "float32"]

    columns = ["op", "aten::view", [{"slot": 1}, [2, 1]], {}, [2]]
    read = ["op", "aten::mul.Tensor", [{"slot": 2}, {"slot": 3}], {}, [4]]
    steps = [
        empty(1),
        added(1),
        columns,
        empty(3),
        ["op", "aten::neg.out", [{"slot": 0}], {"out": {"slot": 3}}, [3]],
        read,
    ]
    document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 5, "outputs": [4]}
    program = CompiledProgram(Artifact("t", {}, ((2,),), document, {}), WeightStore((), (), ()), NOTHING, CPU)
    assert program.run([torch.tensor([1.0, 3.0])])[0].tolist() == [[-2.0, -6.0], [-6.0, -18.0]]


def test_memory_is_used_again_by_what_is_needed_later() -> None:
    def added(slot: int, of: int) -> list[list[Any]]:
        out = ["op", "aten::add.out", [{"slot": of}, {"slot": of}], {"out": {"slot": slot}}, [slot]]
        return [["empty", slot, [{"extent": "0.0"}, 256], [256, 1], "float32"], out]

    steps = [step for slot in range(1, 7) for step in added(slot, slot - 1)]
    document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 7, "outputs": [6]}
    artifact = Artifact("t", {}, ((2, 256),), document, {}, (Varying(0, 0, 1, 8),))
    program = CompiledProgram(artifact, WeightStore((), (), ()), NOTHING, CPU)
    for rows in (2, 8):
        assert torch.equal(program.run([torch.ones(rows, 256)])[0], torch.full((rows, 256), 64.0))
        assert program._sizes[((rows, 256),)].layout.arena_bytes == 2 * rows * 1024


def test_weights_go_with_the_program_that_ran_on_them() -> None:
    constant = torch.ones(2)
    store: Any = SimpleNamespace(laid_out=lambda at, held=[constant]: held[0])
    steps = [["empty", 2, [2], [1], "float32"]]
    steps.append(["op", "aten::add.out", [{"slot": 0}, {"slot": 1}], {"out": {"slot": 2}}, [2]])
    steps.append(["op", "aten::neg", [{"slot": 2}], {}, [3]])
    operands = [{"input": 0}, {"weights": 0, **FLAT.to_json()}]
    document = {"operands": operands, "kernels": [], "steps": steps, "slots": 4, "outputs": [3]}
    program = CompiledProgram(Artifact("t", {}, ((2,),), document, {}), store, NOTHING, CPU)
    assert program.run([torch.ones(2)])[0].tolist() == [-2.0, -2.0]
    held = weakref.ref(program._template[1])
    gc.disable()
    try:
        del program, store, constant
        assert held() is None
    finally:
        gc.enable()


def _collective(x: int, result: int, operation: str = "ALL_REDUCE", label: str = "a") -> list[Any]:
    reduction = "sum" if operation == "ALL_REDUCE" else ""
    return ["op", "trt_portable::collective", [{"slot": x}, operation, reduction, -1, [0, 1], "", label], {}, [result]]


def _relu(x: int, result: int) -> list[Any]:
    return ["op", "aten::relu", [{"slot": x}], {}, [result]]


@pytest.mark.parametrize(
    ("steps", "kinds"),
    [
        ([_collective(0, 1), _relu(0, 2), _relu(1, 3)], "start relu wait relu"),
        ([_collective(0, 1, "ALL_GATHER"), _relu(0, 2), _relu(1, 3)], "start wait relu relu"),
        ([_collective(0, 1), _relu(0, 2)], "start relu wait"),
        ([_collective(0, 1), ["view", 2, 1, [2], [1], 0], _relu(0, 3), _relu(2, 4)], "start view relu wait relu"),
        ([_collective(0, 1), _collective(1, 2, label="b"), _relu(2, 3)], "start wait start wait relu"),
    ],
    ids=["needed later", "the operand is used", "returned", "by a view", "one after the other"],
)
def test_what_comes_between_a_collective_and_its_first_reader_runs_beside_it(steps: list[Any], kinds: str) -> None:
    names = {"trt_portable::collective": "start", "aten::relu": "relu"}
    read = [_Reader(CPU).step(*step) for step in steps]
    assert [names.get(step[1], step[0]) for step in with_waits(read)] == kinds.split()


def test_a_list_that_waits_by_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown step 'wait'"):
        _Reader(CPU).step("wait", 0, 1)


@pytest.mark.usefixtures("fake_world")
def test_a_list_with_collectives_runs() -> None:
    steps = [_collective(0, 1), _relu(0, 2), ["op", "aten::add.Tensor", [{"slot": 1}, {"slot": 2}], {}, [3]]]
    document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 4, "outputs": [3, 1]}
    made = Artifact("t", {}, ((2,),), json.loads(json.dumps(document)), {})
    program = CompiledProgram(made, WeightStore((), (), ()), NOTHING, CPU)
    assert [value.tolist() for value in program.run([torch.tensor([-1.0, 2.0])])] == [[-1.0, 4.0], [-1.0, 2.0]]


@pytest.mark.gpu
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_attention_of_sizes_that_are_new_waits_for_no_plan(is_causal: bool, order: tuple[int, ...]) -> None:
    operator = "aten::_scaled_dot_product_cudnn_attention"
    x = {"slot": 0}
    steps = [["op", operator, [x, x, x, None, False, 0.0, is_causal], {"scale": 0.25}, [1, *[None] * 8]]]
    document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 2, "outputs": [1]}
    varying = (Varying(0, 2, 1, 64),)
    made = Artifact("t", {}, ((2, 3, 24, 32),), document, {}, varying)
    program = CompiledProgram(made, WeightStore((), (), ()), NOTHING, torch.device("cuda"))
    assert program.plans_after == {launch_list.RUNS_BEFORE_PLANNING}

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func.name())
            return func(*args, **(kwargs or {}))

    for length in (24, 7):
        given = torch.randn([(2, 3, length, 32)[at] for at in order], device="cuda", dtype=torch.float16).permute(order)
        calls: list[str] = []
        with Seen():
            first = program.run([given])[0]
            assert operator not in calls
            with launch_list.with_plans():  # as before a recording
                second = program.run([given])[0]
            assert calls.count(operator) == 1
        assert first.stride() == second.stride()
        expected = torch.nn.functional.scaled_dot_product_attention(
            *[given.float()] * 3, is_causal=is_causal, scale=0.25
        )
        torch.testing.assert_close(first.float(), expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(second.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [24, 21])
@pytest.mark.parametrize("is_wide", [False, True])
def test_attention_with_a_bias_of_sizes_that_are_new_waits_for_no_plan(keys: int, is_wide: bool) -> None:
    operator = "aten::_scaled_dot_product_cudnn_attention"
    arguments = [*({"slot": at} for at in range(4)), False, 0.0, False]
    steps = [["op", operator, arguments, {"scale": 0.25}, [4, *[None] * 8]]]
    operands = [{"input": at} for at in range(4)]
    document = {"operands": operands, "kernels": [], "steps": steps, "slots": 5, "outputs": [4]}
    shapes = ((2, 3, 24, 32), (2, 3, keys, 32), (2, 3, keys, 32), (2, 3 if is_wide else 1, 24, keys))
    made = Artifact("t", {}, shapes, document, {}, (Varying(0, 2, 1, 64),))
    program = CompiledProgram(made, WeightStore((), (), ()), NOTHING, torch.device("cuda"))
    assert program.plans_after == {launch_list.RUNS_BEFORE_PLANNING_SOON}
    given = [torch.randn(shape, device="cuda", dtype=torch.float16) for shape in shapes]
    first = program.run(given)[0]
    with launch_list.with_plans():
        second = program.run(given)[0]
    assert first.stride() == second.stride()
    expected = torch.nn.functional.scaled_dot_product_attention(*(each.float() for each in given), scale=0.25)
    torch.testing.assert_close(first.float(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(second.float(), expected, rtol=2e-2, atol=2e-2)


def test_runs_of_other_sizes_are_no_reason_to_plan_attention() -> None:
    x = {"slot": 0}
    operator = "aten::_scaled_dot_product_cudnn_attention"
    steps = [["op", operator, [x, x, x, None, False, 0.0, False], {}, [1, *[None] * 8]]]
    document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 2, "outputs": [1]}
    made = Artifact("t", {}, ((2, 3, 24, 32),), document, {}, (Varying(0, 2, 1, 64),))
    program = CompiledProgram(made, WeightStore((), (), ()), NOTHING, CPU)
    runs: list[float] = []
    program._steps.runs[:] = [(lambda frame, slots: runs.append(frame.runs), [])]
    program._outputs = []
    for length in (5, 6, 5, 6, 7, 5):
        program.run([torch.zeros(2, 3, length, 32)])
    assert runs == [1, 1, 2, 2, 1, 3]
