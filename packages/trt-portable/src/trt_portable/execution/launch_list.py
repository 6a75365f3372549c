"""Compiled programs: a list of launches over numbered memory, read from an artifact.

The list was recorded while a compiler's output ran once, so it holds no control flow: allocate, take a
view, start a kernel, call an ATen operator. Operators are named; only ATen's and the collective of ours can be.

A collective is started where the list calls it, and waited for where its result is needed first, so what the list does
in between goes on beside it.

Document::

    operands  where the first slots come from: an input's index, a use of weights, or the id of a tensor that layers
              make of weights when an engine is loaded
    kernels   name, blob, parameter types, warps and shared bytes of each kernel, and whether it may start while the
              kernel before it ends: it waits for that by itself, and reads nothing before but weights and caches
    steps     ["empty", slot, shape, strides, dtype]
              ["view", slot, base, shape, strides, offset]
              ["kernel", kernel, grid, arguments]
              ["op", "aten::mm.out", arguments, keyword arguments, slots of the results]
    outputs   a slot per output

An argument is JSON for a plain value, ``{"slot": 3}`` for a tensor, ``{"dtype": "float16"}`` and so on
for PyTorch's enumerations. Where extents of inputs vary, ``{"extent": expression}`` stands for a number that follows
from them, in the grammar of `trt_portable.plan.extents`; a list for some shapes is made of it when they come first.

cuDNN plans attention for 40 to 70 ms when sizes come first. Where extents vary, the first runs of a list take the flash
kernel, which has nothing to plan, and so do recordings of sizes that came no more often: who brings sizes a few times
each never waits.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.files import typed
from trt_core.internals import OpOverload, pytree
from trt_portable.errors import PortableError
from trt_portable.execution.loaded_network import WeightLayout
from trt_portable.execution.program import LayerFailure, Program
from trt_portable.kernels.device_kernels import DeviceKernel
from trt_portable.layers.collective import OPERATOR, begin, copies_its_operand, finish
from trt_portable.plan import tables
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.engine_info import Shape
from trt_portable.plan.extents import evaluate
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import Value, as_tensor

_NAMESPACE: Final = "aten"
EXTENT: Final = "extent"
_WAIT: Final = "wait"
_ATTENTION: Final = "aten::_scaled_dot_product_cudnn_attention"
RUNS_BEFORE_PLANNING: Final = 16  # about as many as make up for the plan
_MOST_LISTS: Final = 64
"""Of one program with varying extents, each for some shapes; some hundred kilobytes."""
ENUMERATIONS: Final = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}

_Slots = list[Any]
_Step = Callable[[_Slots, int], None]


class CompiledProgram:
    """Runs a list of launches. Immutable but for constants; any number of threads may run it at once.

    Args:
        artifact: What a build compiled, for this machine.
        weights: The engine's weights, on the device.
        program: The engine's layers, with their constants loaded: what is prepared of weights is held there.
        device: The engine's device.

    Raises:
        PortableError: The document makes no sense, or the driver refuses a kernel.
    """

    def __init__(self, artifact: Artifact, weights: WeightStore, program: Program, device: torch.device) -> None:
        self.artifact = artifact
        self._device = device
        self._weights = weights
        self._program = program
        try:
            document = typed.fields(artifact.document, "the list of launches", tables.COMPILED)
            self._operands = [_operand(entry) for entry in typed.items(document["operands"], "the operands")]
            self._kernels = _load_kernels(document["kernels"], artifact.blobs, device)
            self._early_kernels = {at for at, kernel in enumerate(document["kernels"]) if kernel["early"] is True}
            self._outputs: list[int] = document["outputs"]
            self._document: list[Any] = with_waits(document["steps"])
            self._deaths = _deaths(self._document, self._outputs)
            self._size = document["slots"]
            self._steady: list[_Step | None] = [None] * len(self._document)
            usual = self._list_for(artifact.shapes)
            self._lists = {artifact.shapes: usual}
            if artifact.varying:  # most operators of a list are the same for all shapes
                made = zip(self._document, usual.steps, strict=True)
                self._steady = [None if _follows_extents(step) or _plans(step) else run for step, (run, _) in made]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise PortableError(f"the compiled artifact makes no sense: {error!r}") from error
        self._inputs = [(at, operand["input"]) for at, operand in enumerate(self._operands) if "input" in operand]
        self._template: _Slots = []
        self.load_constants()

    @property
    def constants(self) -> object:
        """The constants that a run which starts now reads."""
        return self._template

    @property
    def plans_late(self) -> bool:
        """Whether runs of shapes that are new take kernels that need no plan."""
        return bool(self.artifact.varying) and any(map(_plans, self._document))

    def load_constants(self) -> None:
        """Takes the engine's weights as they are now, in the layouts that the kernels want.

        Raises:
            PortableError: The list reads what no layer prepares.
        """
        template: _Slots = [None] * self._size
        prepared = self._program.prepared
        for at, operand in enumerate(self._operands):
            if "weights" in operand:
                template[at] = WeightLayout.read(operand).of(self._weights.laid_out(operand["weights"]))
            elif "prepared" in operand:
                template[at] = prepared.get(operand["prepared"])
                if template[at] is None:
                    raise PortableError(f"the compiled artifact reads tensor {operand['prepared']}, which is not held")
        self._template = template  # replaced as a whole: runs in other threads keep what they had

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Computes the outputs, on the current stream.

        Args:
            values: One per input, in order, of the shapes that the list was recorded with.
            targets: None, or memory for each output that no input shares; used in place of the allocations of the list.

        Raises:
            LayerFailure: A kernel or an operator failed.
        """
        found = self._at(values)
        slots = self._template.copy()
        for at, index in self._inputs:
            slots[at] = as_tensor(values[index])
        for home, target in zip(found.homes, targets):  # noqa: B905 - there may be no targets
            if home is not None and target is not None and target.dtype is home.dtype:
                slots[home.slot] = target.view(home.shape)
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        try:
            for step, dying in found.steps:
                step(slots, stream)
                for at in dying:
                    slots[at] = None
        except Exception as error:
            raise LayerFailure("compiled program", error) from error
        results = [slots[at] for at in self._outputs]
        for index, target in enumerate(targets):
            if target is not None and found.homes[index] is not None and _is_at(results[index], target):
                results[index] = target
        return results

    def _at(self, values: Sequence[Value]) -> _Launches:
        """The list for the shapes of inputs, which the artifact serves."""
        if not self.artifact.varying:
            return self._lists[self.artifact.shapes]
        shapes = tuple(tuple(value.shape) for value in values)
        found = self._lists.get(shapes)
        if found is None:
            found = self._list_for(shapes)
            if len(self._lists) >= _MOST_LISTS:
                self._lists = {}  # replaced as a whole: other threads may read it
            self._lists[shapes] = found
        return found

    def _list_for(self, shapes: tuple[Shape, ...]) -> _Launches:
        steps = self._document
        if self.artifact.varying:
            steady = zip(steps, self._steady, strict=True)
            steps = [_known(step, shapes) if run is None else step for step, run in steady]
        made = zip(self._steady, steps, self._early(steps), strict=True)
        runs = [run or self._step(step, is_early) for run, step, is_early in made]
        return _Launches(list(zip(runs, self._deaths, strict=True)), _homes(steps, self._outputs))

    def _early(self, steps: Sequence[Sequence[Any]]) -> Iterator[bool]:
        """Whether each step may start early: what went before this list, and operators, are always waited for."""
        follows_kernel = False
        for kind, *rest in steps:
            yield follows_kernel and kind == "kernel" and rest[0] in self._early_kernels
            follows_kernel = kind == "kernel" or (follows_kernel and kind in ("empty", "view"))

    def _step(self, step: Sequence[Any], is_early: bool) -> _Step:
        kind, *rest = step
        if kind == "empty":
            return self._empty(*rest)
        if kind == "view":
            return _view(*rest)
        if kind == "kernel":
            index, grid, arguments = rest
            return _launch(self._kernels[index], grid, arguments, is_early)
        if kind == "op":
            return self._call(*rest)
        if kind == _WAIT:
            return _wait(rest[0], *rest[2:])
        raise ValueError(f"unknown step {kind!r}")

    def _empty(self, slot: int, shape: list[int], strides: list[int], dtype: str) -> _Step:
        device, kind = self._device, _dtype(dtype)

        def run(slots: _Slots, stream: int) -> None:
            if slots[slot] is None:  # else a target stands there
                slots[slot] = torch.empty_strided(shape, strides, dtype=kind, device=device)

        return run

    def _call(self, name: str, arguments: Any, keywords: Any, results: Sequence[int | None]) -> _Step:
        operator = _attention_of_new_sizes() if name == _ATTENTION and self.artifact.varying else _operator(name)
        arguments = self._read(arguments)
        keywords = {key: self._read(value) for key, value in keywords.items()}

        def run(slots: _Slots, stream: int) -> None:
            named = {key: _filled(value, slots) for key, value in keywords.items()}
            found = operator(*_filled(arguments, slots), **named)
            for at, value in zip(results, pytree.tree_leaves(found), strict=True):
                if at is not None:
                    slots[at] = value

        return run

    def _read(self, argument: Any) -> Any:
        """An argument with enumerations in place; tensors stay references."""
        if isinstance(argument, list):
            return [self._read(part) for part in argument]
        if isinstance(argument, dict):
            if set(argument) == {"device"}:
                return self._device if argument["device"] == self._device.type else torch.device("cpu")
            if len(argument) == 1 and next(iter(argument)) in ENUMERATIONS:
                ((kind, name),) = argument.items()
                found = getattr(torch, name)
                if not isinstance(found, ENUMERATIONS[kind]):
                    raise ValueError(f"{name!r} is no {kind}")
                return found
            if set(argument) == {"slot"}:
                return _Reference(argument["slot"])
            raise ValueError(f"unknown argument {argument!r}")
        return argument


@dataclass(frozen=True)
class _Launches:
    """A list for inputs of some shapes.

    Attributes:
        steps: What runs, and the slots that nothing reads from then on.
        homes: Where each output lies.
    """

    steps: list[tuple[_Step, list[int]]]
    homes: list[_Home | None]


def _plans(step: Sequence[Any]) -> bool:
    """Whether a step plans for sizes once they have come often: it counts runs, so each list has its own."""
    return bool(step[0] == "op" and step[1] == _ATTENTION)


def _follows_extents(part: Any) -> bool:
    """Whether a part of a document has numbers that follow from extents of inputs."""
    if isinstance(part, dict):
        return EXTENT in part or any(map(_follows_extents, part.values()))
    return isinstance(part, list) and any(map(_follows_extents, part))


def _known(part: Any, shapes: Sequence[Shape]) -> Any:
    """A part of a document with numbers in place of what follows from extents of inputs."""
    if isinstance(part, list):
        return [_known(each, shapes) for each in part]
    if isinstance(part, dict):
        if EXTENT in part:
            return evaluate(part[EXTENT], shapes)
        return {key: _known(each, shapes) for key, each in part.items()}
    return part


def _operand(entry: Any) -> Mapping[str, Any]:
    """Where a slot comes from: an input, a use of weights, or what is prepared of them."""
    found = typed.mapping(entry, "an operand")
    if "input" in found:
        return typed.fields(found, "an operand", ("input",))
    if "prepared" in found:
        return typed.fields(found, "an operand", tables.PREPARED_OPERAND)
    fields = typed.fields(found, "an operand", tables.WEIGHTS_OPERAND)
    WeightLayout.read(fields)  # makes sense
    return fields


def _load_kernels(
    described: Sequence[Mapping[str, Any]], blobs: Mapping[str, bytes], device: torch.device
) -> list[DeviceKernel]:
    if not described:
        return []
    described = [typed.fields(kernel, "a compiled kernel", tables.KERNEL) for kernel in described]
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).synchronize()  # a context must exist before modules load
        return [
            DeviceKernel(
                blobs[kernel["blob"]], kernel["name"], kernel["types"], kernel["warps"], kernel["shared_bytes"]
            )
            for kernel in described
        ]


class _Reference(int):
    """The number of a slot whose tensor is meant."""


def _filled(argument: Any, slots: _Slots) -> Any:
    kind = type(argument)
    if kind is _Reference:
        return slots[argument]
    if kind is list:
        return [_filled(part, slots) for part in argument]
    return argument


def _view(slot: int, base: int, shape: list[int], strides: list[int], offset: int) -> _Step:
    def run(slots: _Slots, stream: int) -> None:
        source = slots[base]
        slots[slot] = torch.as_strided(source, shape, strides, source.storage_offset() + offset)

    return run


def _launch(kernel: DeviceKernel, grid: Sequence[int], arguments: Sequence[Any], is_early: bool) -> _Step:
    known = [_Reference(a["slot"]) if isinstance(a, dict) else a for a in arguments]

    def run(slots: _Slots, stream: int) -> None:
        kernel.launch(grid, [slots[a] if type(a) is _Reference else a for a in known], stream, is_early=is_early)

    return run


def _wait(slot: int, operation: str, ranks: Sequence[int]) -> _Step:
    def run(slots: _Slots, stream: int) -> None:
        slots[slot] = finish(slots[slot], operation, ranks)

    return run


def _operator(name: str) -> Callable[..., Any]:
    if name == OPERATOR:
        return begin
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace != _NAMESPACE:
        raise ValueError(f"a compiled program calls operators of ATen only, not {name!r}")
    found = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if not isinstance(found, OpOverload):
        raise ValueError(f"{name!r} is no operator")
    return found


_planning: Final = threading.local()


@contextlib.contextmanager
def with_plans(is_on: bool = True) -> Iterator[None]:
    """Runs of this thread plan what they use, or plan nothing, whether their shapes are new or not."""
    _planning.is_on = is_on
    try:
        yield
    finally:
        _planning.is_on = None


def _attention_of_new_sizes() -> Callable[..., Any]:
    """Attention by cuDNN for some sizes, whose first calls are computed by the flash kernel where that is able to."""
    planned = _operator(_ATTENTION)
    calls = 0

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        is_on = getattr(_planning, "is_on", None)
        is_new = calls <= RUNS_BEFORE_PLANNING if is_on is None else not is_on
        if is_new and _is_for_flash(q, k, v, *rest):
            with contextlib.suppress(RuntimeError):  # its kernels take fewer forms
                _, _, *others = rest
                found = torch.ops.aten._scaled_dot_product_flash_attention.default(q, k, v, *others, **keywords)[0]
                laid_out = torch.empty_like(q)  # as cuDNN's result lies, for which what follows was compiled
                return (found if found.stride() == laid_out.stride() else laid_out.copy_(found), *[None] * 8)
        return planned(q, k, v, *rest, **keywords)

    return attend


def _is_for_flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    needs_sums: bool,
    dropout: float = 0.0,
    is_causal: bool = False,
    *_: Any,
) -> bool:
    """Whether the flash kernel computes the same: a causal mask begins elsewhere there where lengths differ."""
    is_plain = bias is None and not needs_sums and not dropout and q.shape[-1] == v.shape[-1]
    return is_plain and (not is_causal or q.shape[-2] == k.shape[-2])


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


@dataclass(frozen=True)
class _Home:
    """The allocation that an output is the whole of.

    Attributes:
        slot: Where it is kept.
        shape: Its extents, dense and in row-major order.
        dtype: Its type.
    """

    slot: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def _homes(steps: Sequence[Sequence[Any]], outputs: Sequence[int]) -> list[_Home | None]:
    """Where each output lies, if it is all of an allocation of its own in the order of its elements."""
    made = {step[1]: step for step in steps if step[0] in ("empty", "view")}
    taken: set[int] = set()
    homes: list[_Home | None] = []
    for output in outputs:
        step, count = made.get(output), None
        while step is not None and step[0] == "view" and step[5] == 0 and _is_dense(step[3], step[4]):
            count = math.prod(step[3])
            step = made.get(step[2])
        fits = step is not None and step[0] == "empty" and _is_dense(step[2], step[3]) and step[1] not in taken
        if not fits or (count is not None and count != math.prod(step[2])):  # type: ignore[index]
            homes.append(None)
            continue
        assert step is not None
        taken.add(step[1])
        homes.append(_Home(step[1], tuple(step[2]), _dtype(step[4])))
    return homes


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _is_at(result: torch.Tensor, target: torch.Tensor) -> bool:
    return result.data_ptr() == target.data_ptr() and result.shape == target.shape and result.is_contiguous()


def _deaths(steps: Sequence[Sequence[Any]], outputs: Sequence[int]) -> list[list[int]]:
    """The slots that no later step reads, per step. Views keep their memory alive by themselves."""
    last: dict[int, int] = {}
    for index, step in enumerate(steps):
        for slot in _slots_of(step):
            last[slot] = index
    deaths: list[list[int]] = [[] for _ in steps]
    for slot, index in last.items():
        if slot not in outputs:
            deaths[index].append(slot)
    return deaths


def _slots_of(step: Sequence[Any]) -> list[int]:
    kind = step[0]
    if kind == "empty":
        return [step[1]]
    if kind in ("view", _WAIT):
        return [step[1], step[2]]
    found = [slot for slot in step[-1] if type(slot) is int] if kind == "op" else []

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            if set(part) == {"slot"}:
                found.append(part["slot"])
            else:
                for inner in part.values():
                    collect(inner)
        elif isinstance(part, list):
            for inner in part:
                collect(inner)

    for part in step[2:4]:
        collect(part)
    return found


def with_waits(steps: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns a list in which each collective is waited for before the first step that needs it.

    That is the first one that reads its result, or touches memory which the collective still reads.

    Raises:
        ValueError: The list waits already.
    """
    roots: dict[int, int] = {}  # a view's memory is that of the tensor that it is a view of
    pending: list[tuple[list[Any], set[int]]] = []
    found: list[Any] = []

    def root(slot: int) -> int:
        return roots.get(slot, slot)

    for step in steps:
        if step[0] == _WAIT:
            raise ValueError("a list of launches that waits")
        if step[0] == "view":
            roots[step[1]] = root(step[2])
            found.append(step)
            continue
        touched = {root(slot) for slot in _slots_of(step)}
        found += [wait for wait, needed in pending if needed & touched]
        pending = [each for each in pending if not each[1] & touched]
        found.append(step)
        if step[0] == "op" and step[1] == OPERATOR:
            (operand, operation, _, _, ranks, *_), (result,) = step[2], step[4]
            needed = {result} if copies_its_operand(operation) else {result, root(operand["slot"])}
            pending.append(([_WAIT, result, operand["slot"], operation, ranks], needed))
    return found + [wait for wait, _ in pending]


class SpecializedProgram:
    """Runs what was compiled for the shapes at hand, or interprets.

    Args:
        compiled: Each for shapes of its own, or for a range of them, which serves what is left.
        program: Runs any shapes.
    """

    def __init__(self, compiled: Sequence[CompiledProgram], program: Program) -> None:
        self._compiled = tuple(compiled)
        self._varying = [each for each in compiled if each.artifact.varying]
        self._by_shapes = {each.artifact.shapes: each for each in compiled if not each.artifact.varying}
        self._program = program

    @property
    def plans_late(self) -> bool:
        """Whether runs of shapes that are new take kernels that need no plan."""
        return any(each.plans_late for each in self._varying)

    @property
    def constants(self) -> object:
        """The constants that a run which starts now reads."""
        return (self._program.constants, *(each.constants for each in self._compiled))

    def load_constants(self) -> None:
        """Takes the engine's weights as they are now."""
        for each in self._compiled:
            each.load_constants()

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Computes the outputs.

        Args:
            values: One per input, in order.
            targets: None, or memory for each output that no input shares.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """
        shapes = tuple(tuple(value.shape) for value in values)
        found = self._by_shapes.get(shapes) or next(
            (each for each in self._varying if each.artifact.serves(shapes)), None
        )
        return (self._program if found is None else found).run(values, targets)
