"""A stranger's program takes no more of a call than it is given, whatever it declares."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import hostile_files
import pytest
import torch
from small_networks import nonzero, relu

import trt_runtime
from trt_core import ExecutionError, trt
from trt_core.limits import UNLIMITED, Account, CallLimits
from trt_runtime import Binding
from trt_runtime.plan_notes import Bounds, bounds_of, note_bounds
from trt_runtime.program.allowed_operators import find_operator
from trt_runtime.program.graph import (
    OperatorCall,
    Program,
    Signature,
    StoredTensor,
    TensorType,
)
from trt_runtime.program.literals import Value
from trt_runtime.program.load_options import LoadOptions
from trt_runtime.program.loaded_program import LoadedProgram
from trt_runtime.program.loading import check_agreement, program_from_memory

DEFAULT = Bounds(CallLimits(), lambda: False)
Steps = list[tuple[str, tuple[Any, ...], tuple[int | None, ...]]]


def _program(
    steps: Steps,
    held: list[torch.Tensor],
    bounds: Bounds | None = DEFAULT,
    dtype: torch.dtype = torch.float32,
    keywords: Mapping[str, Any] = MappingProxyType({}),
) -> LoadedProgram:
    """A program that holds tensors, and declares of each step what its author says; V(-1) is the step before."""
    operators, calls = [], []
    stored = tuple(StoredTensor((), False, one.dtype, 0, 0, tuple(one.shape), one.stride(), "cpu") for one in held)
    for number, (name, args, shape) in enumerate(steps):
        base, _, overload = name.partition(".")
        operators.append(find_operator(f"aten::{base}", overload))
        placed = tuple(_placed(arg, number + len(held)) for arg in args)
        named = {key: _placed(arg, number + len(held)) for key, arg in keywords.items()}
        calls.append(OperatorCall(f"aten::{base}", overload, placed, named, TensorType(dtype, shape)))
    result = Value(len(stored) + len(calls) - 1)
    program = Program(Signature((), 0, (), ()), {}, (), stored, (), tuple(calls), result)
    check_agreement(program, operators)
    return LoadedProgram(program, held, (), operators, torch.device("cpu"), bounds=bounds)


class V(int):
    """A value: of a held tensor, or, counted from the end, of the steps before."""


def _placed(arg: Any, at: int) -> Any:
    if isinstance(arg, V):
        return Value(at + arg if arg < 0 else int(arg))
    return [_placed(item, at) for item in arg] if isinstance(arg, list) else arg


N = 1 << 30
MEMORY: dict[str, Steps] = {
    "a copy of what is repeated": [("expand", (V(0), [N]), (N,)), ("clone", (V(-1),), (N,))],
    "a sum of what is repeated": [
        ("expand", (V(0), [1 << 15, 1 << 15]), (1 << 15, 1 << 15)),
        ("add.Tensor", (V(-1), V(-1)), (1 << 15, 1 << 15)),
    ],
    "the middle of what is repeated": [("expand", (V(0), [N]), (N,)), ("median", (V(-1),), ())],
    "rows of one row": [
        ("broadcast_to", (V(0), [1 << 20, 1 << 10]), (1 << 20, 1 << 10)),
        ("cumsum", (V(-1), 0), (1 << 20, 1 << 10)),
    ],
    "joined with itself": [("cat", ([V(0 if not turn else -1)] * 2,), (1 << turn + 1,)) for turn in range(32)],
    "filled": [("full", ([N], 1.0), (N,))],
    "tiled": [("repeat", (V(0), [N]), (N,))],
    "padded": [("constant_pad_nd", (V(0), [0, N]), (N + 1,))],
    "an outer product": [
        ("expand", (V(0), [1 << 15]), (1 << 15,)),
        ("outer", (V(-1), V(-1)), (1 << 15, 1 << 15)),
    ],
    "a sum of products": [
        ("expand", (V(0), [1, 1 << 15, 1]), (1, 1 << 15, 1)),
        ("expand", (V(0), [1, 1, 1 << 15]), (1, 1, 1 << 15)),
        ("addbmm", (V(0), V(-2), V(-1)), (1 << 15, 1 << 15)),
    ],
    "filled where a mask says": [
        ("expand", (V(0), [1 << 15, 1]), (1 << 15, 1)),
        ("masked_fill.Tensor", (V(-1), V(2), V(3)), (1 << 15, 1 << 15)),
    ],
    "by way of an operand": [
        ("expand", (V(0), [1, 2048, 2048]), (1, 2048, 2048)),
        ("clone", (V(-1),), (1, 2048, 2048)),
        ("view", (V(-1), [2048, 2048, 1]), (2048, 2048, 1)),
        ("matmul", (V(-2), V(-1)), (2048, 2048, 1)),
    ],
    "places of what is repeated": [("expand", (V(0), [N]), (N,)), ("argsort", (V(-1),), (N,))],
    "many results that stay": [("ones", ([1 << 24],), (1 << 24,)) for _ in range(64)]
    + [("stack", ([V(1 - 65 + at) for at in range(64)],), (64, 1 << 24))],
}


def _held() -> list[torch.Tensor]:
    return [torch.ones(1), torch.zeros(1)]


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_bounded(name: str) -> None:
    module = _program(MEMORY[name], [*_held(), torch.ones(1 << 15, dtype=torch.bool), torch.tensor(0.0)])
    with pytest.raises(ExecutionError, match=r"the call takes more than \d+ bytes"):
        module()


_LONG: Final = [(1, 1, 1), (1, 1, 4096)]
_WIDE: Final = [(1, 1, 512, 512), (1, 1, 64, 64)]
SCRATCH: Final[dict[str, tuple[torch.dtype, list[tuple[int, ...]], Steps]]] = {
    "few floats": (
        torch.float32,
        _LONG,
        [("convolution", (V(0), V(1), None, [1], [1 << 17], [1], False, [0], 1), (1, 1, (1 << 18) - 4094))],
    ),
    "few floats, by a name that is taken apart": (
        torch.float32,
        _LONG,
        [("conv1d", (V(0), V(1), None, [1], [1 << 17]), (1, 1, (1 << 18) - 4094))],
    ),
    **{
        f"{dtype}": (dtype, _WIDE, [("conv2d", (V(0), V(1)), (1, 1, 449, 449))])
        for dtype in (torch.float16, torch.bfloat16, torch.float64)
    },
    "rows that no window reaches": (
        torch.float32,
        [(1, 64, 64, 64), (64, 1, 64, 64)],
        [("conv_transpose2d.input", (V(0), V(1), None, [1, 1], [0, 0], [1, 1], 1, [2, 2]), (1, 1, 191, 191))],
    ),
    "channels that are none": (
        torch.float32,
        [(1, 1, 3072, 3072), (1, 1, 3, 3)],
        [("conv2d", (V(0), V(1)), (1, 1, 3070, 3070))],
    ),
}
"""Convolutions of which a kernel lays windows side by side, or channels that are none, in more than 512 MiB."""


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", SCRATCH)
def test_scratch_of_convolutions_is_counted(kind: str, inference: bool) -> None:
    dtype, shapes, steps = SCRATCH[kind]
    module = _program(steps, [torch.ones(shape, dtype=dtype) for shape in shapes], dtype=dtype)
    with torch.inference_mode(inference), pytest.raises(ExecutionError, match="bytes at once"):
        module()


def test_scratch_of_convolutions_by_name_is_counted() -> None:
    """Operands may be keywords."""
    name, args, shape = SCRATCH["few floats, by a name that is taken apart"][2][0]
    module = _program(
        [(name, (), shape)],
        [torch.ones(each) for each in _LONG],
        keywords=dict(zip(("input", "weight", "bias", "stride", "padding"), args, strict=True)),
    )
    with torch.inference_mode(), pytest.raises(ExecutionError, match="bytes at once"):
        module()


def test_windows_that_are_read_where_they_lie_are_not_counted() -> None:
    held = [torch.ones(1, 1, 256, 256), torch.ones(1, 1, 128, 128)]
    assert _program([("conv2d", (V(0), V(1)), (1, 1, 129, 129))], held)()[0, 0, 0, 0] == 1 << 14


TIME: dict[str, Steps] = {
    "sums over what is repeated": [("expand", (V(0), [1 << 37]), (1 << 37,)), ("sum", (V(-1),), ())],
    "products of what is repeated": [
        ("expand", (V(0), [1 << 13, 1 << 20]), (1 << 13, 1 << 20)),
        ("expand", (V(0), [1 << 20, 1 << 13]), (1 << 20, 1 << 13)),
        ("mm", (V(-2), V(-1)), (1 << 13, 1 << 13)),
    ],
}


@pytest.mark.parametrize("name", TIME)
def test_time_is_bounded(name: str) -> None:
    module = _program(TIME[name], _held(), Bounds(CallLimits(bytes_alive=1 << 60, elements=1 << 34), lambda: False))
    with pytest.raises(ExecutionError, match="elements to read, make or add up"):
        module()


def test_a_call_inside_of_its_limits_is_watched_once() -> None:
    module = _program([("expand", (V(0), [64]), (64,)), ("clone", (V(-1),), (64,))], _held())
    executor = module._LoadedProgram__executor  # type: ignore[attr-defined]  # private to the class
    assert torch.equal(module(), torch.ones(64))
    assert not executor._watch.to_watch(())
    assert torch.equal(module(), torch.ones(64))
    assert torch.equal(copy.deepcopy(module)(), torch.ones(64))


def test_small_operators_are_estimated_and_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What sizes tell to be far inside of the limits costs a first call next to nothing."""
    steps: Steps = [("expand", (V(0), [64]), (64,)), ("clone", (V(-1),), (64,)), ("add.Tensor", (V(-1), V(-1)), (64,))]
    module = _program(steps, _held())

    def watching(self: Account) -> Any:
        raise AssertionError("it is watched")

    monkeypatch.setattr(Account, "watching", watching)
    assert torch.equal(module(), torch.full((64,), 2.0))
    products: Steps = [("linear", (V(0), V(1)), (64, 256)), *[("linear", (V(-1), V(1)), (64, 256))] * 31]
    assert _program(products, [torch.zeros(64, 256), torch.zeros(256, 256)])().sum() == 0
    with pytest.raises(ExecutionError, match="it is watched"):
        _program([("expand", (V(0), [N]), (N,)), ("clone", (V(-1),), (N,))], _held())()


def test_what_was_estimated_and_is_free_is_room_again() -> None:
    """Estimates are large: without looking at what lives, this many would be too many."""
    steps: Steps = [("ones", ([1 << 18],), (1 << 18,)), *([("neg", (V(-1),), (1 << 18,))] * 400)]
    assert _program(steps, [])().sum() == 1 << 18
    held: Steps = [("ones", ([1 << 24],), (1 << 24,)) for _ in range(12)]
    held += [("stack", ([V(at - 12) for at in range(12)],), (12, 1 << 24))]
    with pytest.raises(ExecutionError, match="bytes at once"):
        _program(held, [])()


def test_what_depends_on_data_is_watched_in_each_call() -> None:
    steps: Steps = [("nonzero", (V(0),), (None, 1)), ("clone", (V(0),), (1,)), ("clone", (V(-2),), (None, 1))]
    assert _loose(steps) == {2, 4}  # the first, and what reads it


def _loose(steps: Steps) -> set[int]:
    from trt_runtime.program.loaded_program import _Watch

    held = _held()
    stored = tuple(StoredTensor((), False, one.dtype, 0, 0, (1,), (1,), "cpu") for one in held)
    calls = tuple(
        OperatorCall(f"aten::{name}", "", tuple(_placed(a, n + 2) for a in args), {}, TensorType(torch.int64, shape))
        for n, (name, args, shape) in enumerate(steps)
    )
    operators = [find_operator(call.name, "") for call in calls]
    watch = _Watch(Program(Signature((), 0, (), ()), {}, (), stored, (), calls, Value(4)), operators, DEFAULT)
    watch.passed((), has_loose_engines=False)
    return set(watch.to_watch(()))


def test_a_trusted_program_has_no_limits() -> None:
    steps: Steps = [("full", ([1 << 20], 1.0), (1 << 20,))]
    tight = CallLimits(bytes_alive=1 << 10)
    with pytest.raises(ExecutionError, match=r"bytes (at once|in all)"):
        _program(steps, [], Bounds(tight, lambda: False))()
    assert _program(steps, [], Bounds(tight, lambda: True))().numel() == 1 << 20
    assert _program(steps, [], None)().numel() == 1 << 20


class _Content(bytearray):
    """The bytes of a file, whose end can be told."""


def test_what_is_dropped_keeps_nothing_of_its_file(saved: Path) -> None:
    """Limits ask the file whether it is trusted; they live as long as what they hold."""
    content = _Content(saved.read_bytes())
    lives = weakref.ref(content)
    program = program_from_memory(content)
    program(x=torch.randn(3, 3), bias=torch.zeros(3))
    del program, content
    gc.collect()
    assert lives() is None


def test_limits_of_a_file(saved: Path) -> None:
    """The word of the caller holds for the steps of a program and for its engines, and for copies."""
    inputs: dict[str, Any] = {"x": torch.randn(3, 3), "bias": torch.randn(3)}
    wanted = trt_runtime.load(saved, limits=UNLIMITED)(**inputs)
    for limits in (None, CallLimits(bytes_alive=1 << 30)):
        torch.testing.assert_close(trt_runtime.load(saved, limits=limits)(**inputs), wanted)
    tight = trt_runtime.load(saved, limits=CallLimits(steps=0))
    for module in (tight, pickle.loads(pickle.dumps(tight)), copy.deepcopy(tight)):
        with pytest.raises(ExecutionError, match="takes more than 0 operators"):
            module(**inputs)


def _calls_of(
    engine: trt_runtime.TRTModule, count: int, given: tuple[int, ...], limits: CallLimits | None
) -> LoadedProgram:
    """A stranger's program that is nothing but calls of an engine, which returns what all of them make."""
    steps = [{"do": "engine", "engine": 0, "inputs": [0]} for _ in range(count)]
    results = {"tuple": [hostile_files.value(1 + at) for at in range(count)]}
    parts = hostile_files.program([(torch.float32, given)], steps, results)
    parts.graph["engines"] = [{"name": "engine", "section": 1, "header": engine.header.to_json()}]
    parts.plans = [bytes(engine.plan.tolist())]
    return program_from_memory(bytearray(parts.to_bytes()), LoadOptions(limits=limits))


def test_what_several_engines_make_is_counted_together(make_engine: Any) -> None:
    """Each stays inside of the limits of its own account, and what they have made is alive in the end."""

    bindings = [[Binding(name, torch.float32, ("rows", 1024))] for name in "xy"]
    engine = make_engine(relu, *bindings, symbols={"rows": (0, 0)}, ranges=[[(1, 1, 64), (1024, 1024, 1024)]])
    limits = CallLimits(bytes_alive=1 << 20)
    small, large = torch.randn(2, 1024), torch.randn(64, 1024)
    program = _calls_of(engine, 2, (-64, 1024), limits)
    for x in (small, large, large):
        assert all(torch.equal(made, x.relu()) for made in program(x))
    program = _calls_of(engine, 16, (-64, 1024), limits)
    for x in (small, small):
        assert len(program(x)) == 16
    for _ in range(2):
        with pytest.raises(ExecutionError, match="more than 1048576 bytes at once"):
            program(large)


def _large_on_the_way(network: Any, tensors: Any) -> list[Any]:
    """Sums of an outer product: of rows, as large as their square on the way, and as small as they in the end."""
    rows = tensors[0]
    product = network.add_matrix_multiply(rows, trt.MatrixOperation.NONE, rows, trt.MatrixOperation.TRANSPOSE)
    return [network.add_reduce(product.get_output(0), trt.ReduceOperation.SUM, 2, True).get_output(0)]


@pytest.mark.parametrize("first", ["steps", "another engine"])
def test_what_an_engine_makes_on_the_way_is_counted_with_what_the_program_holds(make_engine: Any, first: str) -> None:
    """The program holds 6 MiB, and its engine takes 12 on the way: each of them alone is less than the limit of 16."""
    rows = 1 << 10
    inputs, outputs = [Binding("x", torch.float32, (rows, 1))], [Binding("y", torch.float32, (rows, 1))]
    engine = make_engine(_large_on_the_way, inputs, outputs)
    kind = hostile_files.tensor_type(torch.float32, 3 << 19)

    def program(holds: bool, count: int) -> LoadedProgram:
        fill = hostile_files.operator("full", [[3 << 19], 1.0], kind)
        calls = [{"do": "engine", "engine": 0, "inputs": [0]}] * count
        steps = [fill, *calls] if first == "steps" else [*calls, fill, *calls]
        results = {"tuple": [hostile_files.value(1 + at) for at in range(len(steps))]}
        last = {"tuple": [hostile_files.value(len(steps))]}
        parts = hostile_files.program([(torch.float32, (rows, 1))], steps, results if holds else last)
        parts.graph["engines"] = [{"name": "engine", "section": 1, "header": engine.header.to_json()}]
        parts.plans = [bytes(engine.plan.tolist())]
        limits = CallLimits(bytes_alive=16 << 20, bytes_made=1 << 40)
        return program_from_memory(bytearray(parts.to_bytes()), LoadOptions(limits=limits))

    x = torch.ones(rows, 1)
    for _ in range(2):  # what the program made and nobody reads is free by then
        assert program(False, 3)(x)[0].sum() == rows * rows
    refused = program(True, 1)
    for _ in range(2):
        with pytest.raises(ExecutionError, match="more than 16777216 bytes at once"):
            refused(x)


def test_what_is_known_counts_with_what_depends_on_data() -> None:
    """In later calls only what depends on data is watched: what the others have made is alive all the same."""
    size = 1 << 18
    kind = hostile_files.tensor_type(torch.float32, 1 << 20)
    steps = [
        hostile_files.operator("full", [[1 << 20], 1.0], kind),
        *[hostile_files.operator("nonzero", [hostile_files.value(0)], hostile_files.tensor_type(torch.int64, None, 1))]
        * 3,
    ]
    results = {"tuple": [hostile_files.value(1 + at) for at in range(4)]}
    parts = hostile_files.program([(torch.float32, (size,))], steps, results)
    limits = CallLimits(bytes_alive=9 << 20, bytes_made=1 << 40)
    program = program_from_memory(bytearray(parts.to_bytes()), LoadOptions(limits=limits))
    for _ in range(2):
        assert len(program(torch.zeros(size))) == 4
        with pytest.raises(ExecutionError, match="bytes at once"):
            program(torch.ones(size))


@pytest.mark.parametrize("way", ["expand", "held"])
def test_what_an_engine_reads_is_counted_where_it_has_no_memory(make_engine: Any, way: str) -> None:
    """An engine reads dense copies, of an expanded element as of all others; and it is not given as much."""

    shape = (1 << 15, 1 << 13)
    engine = make_engine(relu, [Binding("x", torch.float32, shape)], [Binding("y", torch.float32, shape)])
    kind = hostile_files.tensor_type(torch.float32, *shape)
    call = {"do": "engine", "engine": 0, "inputs": [1]}
    if way == "expand":
        steps = [hostile_files.operator("expand", [hostile_files.value(0), list(shape)], kind), call]
        parts = hostile_files.program([(torch.float32, (1, 1))], steps, hostile_files.value(2))
    else:
        held = {"held": torch.zeros(1)}
        parts = hostile_files.program([(torch.float32, (1, 1))], [call], hostile_files.value(2), held)
        parts.graph["tensors"][0] |= {"shape": list(shape), "strides": [0, 0]}
    section = 1 + bool(parts.weights)
    parts.graph["engines"] = [{"name": "engine", "section": section, "header": engine.header.to_json()}]
    parts.plans = [bytes(engine.plan.tolist())]
    program = program_from_memory(bytearray(parts.to_bytes()))
    for _ in range(2):
        with pytest.raises(ExecutionError, match="more than 536870912 bytes at once"):
            program(torch.ones(1, 1))


def test_engines_whose_sizes_depend_on_data_are_counted_in_each_call(make_engine: Any) -> None:
    inputs, outputs = [Binding("x", torch.float32, (1 << 14,))], [Binding("y", torch.int64, (1, None))]
    program = _calls_of(make_engine(nonzero, inputs, outputs), 16, (1 << 14,), CallLimits(bytes_alive=1 << 20))
    for _ in range(2):
        assert sum(made.numel() for made in program(torch.zeros(1 << 14))) == 0
        with pytest.raises(ExecutionError, match="more than 1048576 bytes at once"):
            program(torch.ones(1 << 14))


def _sum(network: Any, tensors: Any) -> list[Any]:
    product = network.add_matrix_multiply(tensors[0], trt.MatrixOperation.NONE, tensors[0], trt.MatrixOperation.NONE)
    return [network.add_reduce(product.get_output(0), trt.ReduceOperation.SUM, 3, True).get_output(0)]


def _sum_ofnonzero(network: Any, tensors: Any) -> list[Any]:
    places = network.add_cast(nonzero(network, tensors)[0], trt.float32).get_output(0)
    return [network.add_reduce(places, trt.ReduceOperation.SUM, 3, True).get_output(0)]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"bytes_made": 1 << 20}, "1048576 bytes in all"),
        ({"elements": 3 << 19}, "1572864 elements to read, make or add up"),
        ({"steps": 9}, "9 operators"),
    ],
)
def test_an_engine_that_is_called_again_is_counted_again(make_engine: Any, limits: Any, words: str) -> None:
    """A small file called an engine as often as it liked, each time up to the limits of a call."""
    inputs, outputs = [Binding("x", torch.float32, (64, 64))], [Binding("y", torch.float32, (1, 1))]
    engine = make_engine(_sum, inputs, outputs)
    for count in (1, 2):
        program = _calls_of(engine, count, (64, 64), CallLimits(**limits))
        assert [made.item() for made in program(torch.ones(64, 64))] == [64.0**3] * count
    program = _calls_of(engine, 64, (64, 64), CallLimits(**limits))
    for _ in range(2):
        with pytest.raises(ExecutionError, match=words):
            program(torch.ones(64, 64))


def test_engines_that_look_at_data_are_counted_together_in_each_call(make_engine: Any) -> None:
    """What they make on the way depends on data, and what they return does not."""
    inputs, outputs = [Binding("x", torch.float32, (1 << 14,))], [Binding("y", torch.float32, (1, 1))]
    engine = make_engine(_sum_ofnonzero, inputs, outputs)
    program = _calls_of(engine, 16, (1 << 14,), CallLimits(bytes_made=3 << 20))
    for _ in range(3):
        assert sum(made.item() for made in program(torch.zeros(1 << 14))) == 0
        with pytest.raises(ExecutionError, match="more than 3145728 bytes in all"):
            program(torch.ones(1 << 14))


@pytest.mark.parametrize("size", [1 << 28, 1 << 39])
def test_outputs_that_are_views_are_written_whole(make_engine: Any, size: int) -> None:
    """An element that is repeated makes nothing; a few kilobytes took 4 GiB, or left an error of PyTorch."""

    def repeat(network: Any, tensors: Any) -> list[Any]:
        return [network.add_slice(tensors[0], (0,), (size,), (0,)).get_output(0)]

    engine = make_engine(repeat, [Binding("x", torch.float32, (1,))], [Binding("y", torch.float32, (size,))])
    program = _calls_of(engine, 1, (1,), None)
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"more than 536870912 bytes|cannot be allocated"):
            program(torch.ones(1))
    small = make_engine(
        lambda network, tensors: [network.add_slice(tensors[0], (0,), (9,), (0,)).get_output(0)],
        [Binding("x", torch.float32, (1,))],
        [Binding("y", torch.float32, (9,))],
    )
    assert [made.tolist() for made in _calls_of(small, 1, (1,), None)(torch.ones(1))] == [[1.0] * 9]


_WIDE: Final = 300
_LOOSE: Final = hostile_files.tensor_type(torch.float32, None)


def _extent(count: int) -> Any:
    return "s0_0" if count == 1 else ["max", _extent(count // 2), _extent(count - count // 2)]


def _turns() -> dict[str, tuple[list[Any], list[Any], Any, Any]]:
    """Of loops: steps of the body, its results, what it carries, and the type of that."""
    x, row = hostile_files.value(0), hostile_files.tensor_type(torch.float32, "s0_0")
    add = [{"do": "number", "function": "add", "args": [hostile_files.value(at), 1]} for at in range(_WIDE)]
    most = {"do": "number", "function": "sum", "args": [x] * 255}
    branch = {"inputs": ["int"] * _WIDE, "steps": [], "output": [x]}
    chosen = {
        "do": "control_flow",
        "operator": "cond",
        "bodies": [branch, branch],
        "operands": [[True], [x] * _WIDE],
        "result": ["int"],
    }
    joined = hostile_files.operator("cat", [[x] * 2 * _WIDE], _LOOSE)
    parts = hostile_files.operator("split.Tensor", [x, 1], [_LOOSE] * _WIDE)
    told = hostile_files.tensor_type(torch.float32, _extent(_WIDE))
    return {
        "numbers": (add, [hostile_files.value(_WIDE)], 0, "int"),
        "functions of many numbers": ([most] * 40, [x], 0, "int"),
        "operands of a branch": ([chosen], [x], 0, "int"),
        "long arguments": ([joined] * 10, [x], x, row),
        "many results": ([parts], [x], x, row),
        "extents that are computed": ([], [x], x, told),
    }


@pytest.mark.parametrize("kind", _turns())
def test_what_no_operator_does_counts_in_each_turn(kind: str) -> None:
    """Turns are bounded, and so is how much each may do that is no operator: 60 kB took a minute."""
    steps, made, carried, state = _turns()[kind]
    loop = {
        "do": "control_flow",
        "operator": "while_loop",
        "bodies": [
            {"inputs": [state], "steps": [], "output": [True]},
            {"inputs": [state], "steps": steps, "output": made},
        ],
        "operands": [[carried], []],
        "result": [state],
    }
    parts = hostile_files.program([(torch.float32, (-4,))], [loop], {"tuple": []})
    program = program_from_memory(
        bytearray(parts.to_bytes()), LoadOptions(limits=CallLimits(steps=4000, loop_turns=40))
    )
    with pytest.raises(ExecutionError, match="more than 4000 operators"):
        program(torch.ones(2))


@pytest.mark.parametrize("value", [[], {"dict": [[0, 1]]}, [[]], None, "x"])
def test_inputs_that_are_fixed_tell_no_sizes(value: Any) -> None:
    """Lists and dicts among them made calls fail."""
    kind = hostile_files.tensor_type(torch.float32, 2)
    relu = hostile_files.operator("relu", [hostile_files.value(0)], kind)
    parts = hostile_files.program([(torch.float32, (2,)), (torch.float32, (2,))], [relu], hostile_files.value(2))
    parts.graph["signature"]["leaves"][1] = {"fixed": value}
    program = program_from_memory(bytearray(parts.to_bytes()))
    given = program.inputs[1].value
    for _ in range(2):
        assert program(-torch.ones(2), given).tolist() == [0, 0]


def test_limits_of_an_engine_in_a_file(
    dynamic_engine: trt_runtime.TRTModule, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trt_runtime.write_plan(tmp_path / "engine.trte", dynamic_engine.header, dynamic_engine.plan)
    header, plan = trt_runtime.read_plan(tmp_path / "engine.trte")
    assert bounds_of(plan) is not None
    assert bounds_of(dynamic_engine.plan) is None
    x = torch.randn(2, 3)
    torch.testing.assert_close(trt_runtime.TRTModule(header, plan)(x), dynamic_engine(x))
    header, plan = trt_runtime.read_plan(tmp_path / "engine.trte")
    note_bounds(plan, Bounds(CallLimits(steps=0), lambda: False))
    module = trt_runtime.TRTModule(header, plan)
    for _ in range(3):  # each call says why, and the log says it once
        with pytest.raises(ExecutionError, match="takes more than 0 operators"):
            module(x)
    assert sum("takes more than 0 operators" in line for line in caplog.messages) == 1
