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
from bisect import bisect, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from trt_core.files import typed
from trt_core.internals import OpOverload, pytree
from trt_portable.errors import PortableError
from trt_portable.execution.loaded_network import WeightLayout
from trt_portable.execution.program import LayerFailure, Program
from trt_portable.kernels.device_kernels import DeviceKernel
from trt_portable.layers.collective import OPERATOR, begin, copies_its_operand, finish
from trt_portable.memory import wrap_address
from trt_portable.plan import tables
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.engine_info import Shape
from trt_portable.plan.extents import Expression, evaluate
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import Value, as_tensor

_NAMESPACE: Final = "aten"
EXTENT: Final = "extent"
_WAIT: Final = "wait"
_ATTENTION: Final = "aten::_scaled_dot_product_cudnn_attention"
RUNS_BEFORE_PLANNING: Final = (
    256  # cuDNN's kernel saves a twentieth of a run at most sizes, and its plan is worth dozens
)
_MOST_LISTS: Final = 64
"""Of one program with varying extents, each for some shapes; some hundred kilobytes."""
ENUMERATIONS: Final = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}

_ALIGNMENT: Final = 512  # as PyTorch's allocator has it

_Slots = list[Any]
_Step = Callable[["_Frame", _Slots, int], None]


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
            self._size = document["slots"]
            reader = _Reader(device)
            self._document = with_waits([reader.step(*step) for step in document["steps"]])
            self._extents = reader.extents
            constants = {at for at, operand in enumerate(self._operands) if "input" not in operand}
            self._memory = _Memory(self._document, self._outputs, constants)
            self._lists = {artifact.shapes: self._list_for(artifact.shapes)}
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
        return bool(self.artifact.varying) and any(step[:2] == ["op", _ATTENTION] for step in self._document)

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
        for launches in list(self._lists.values()):
            launches.idle.clear()

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Computes the outputs, on the current stream.

        Args:
            values: One per input, in order, of the shapes that the list was recorded with.
            targets: None, or memory for each output that no input shares; used in place of the allocations of the list.

        Raises:
            LayerFailure: A kernel or an operator failed.
        """
        found = self._at(values)
        try:
            frame = found.idle.pop()
        except IndexError:
            frame = _Frame(found, self._device)
        arena = torch.empty(found.arena_bytes, dtype=torch.uint8, device=self._device)
        slots = frame.begin(self._template, arena.data_ptr())
        for at, index in self._inputs:
            slots[at] = as_tensor(values[index])
        for home, target in zip(found.homes, targets):  # noqa: B905 - there may be no targets
            if home is not None and target is not None and target.dtype is home.dtype:
                slots[home.slot] = target.view(home.shape)
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        try:
            for step, dying in found.steps:
                step(frame, slots, stream)
                for at in dying:
                    slots[at] = None
        except Exception as error:
            raise LayerFailure("compiled program", error) from error
        if frame.template is self._template:
            found.idle.append(frame)
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
        numbers = [evaluate(expression, shapes) for expression in self._extents]
        steps = [_known(step, numbers) for step in self._document] if numbers else self._document
        offsets, arena_bytes = self._memory.arrange(steps)
        made = _Launches(arena_bytes, _homes(steps, self._outputs))
        writer = _Writer(made, self._memory, offsets, self._device)
        for step, is_early, dying in zip(steps, self._early(steps), self._memory.deaths, strict=True):
            kind, *rest = step
            run = None
            if kind == "empty":
                run = writer.empty(*rest)
            elif kind == "view":
                run = writer.view(*rest)
            elif kind == "kernel":
                run = writer.kernel(self._kernels[rest[0]], *rest[1:], is_early=is_early)
            elif kind == "op":
                run = _call(self._operator(rest[0]), *rest[1:])
            else:
                run = _wait(*rest)
            if run is not None or dying:
                made.steps.append((run or _nothing, dying))
        return made

    def _operator(self, name: str) -> Callable[..., Any]:
        return _attention_of_new_sizes() if name == _ATTENTION and self.artifact.varying else _operator(name)

    def _early(self, steps: Sequence[Sequence[Any]]) -> Iterator[bool]:
        """Whether each step may start early: what went before this list, and operators, are always waited for."""
        follows_kernel = False
        for kind, *rest in steps:
            yield follows_kernel and kind == "kernel" and rest[0] in self._early_kernels
            follows_kernel = kind == "kernel" or (follows_kernel and kind in ("empty", "view"))


class _Reference(int):
    """The number of a slot whose tensor is meant."""


class _Extent(int):
    """The number of an expression of extents of inputs."""


class _Open(list[Any]):
    """A list, or a step, with references or extents in it."""


class _Sized(_Open):
    """One with extents in it."""


def _marked(parts: list[Any], inner: Iterable[Any]) -> list[Any]:
    """Parts as a list that tells what is in them."""
    kinds = {type(part) for part in inner}
    if kinds & {_Extent, _Sized}:
        return _Sized(parts)
    return _Open(parts) if kinds & {_Reference, _Open} else parts


class _Reader:
    """Reads steps: enumerations are in place in what it returns, tensors are references, and extents are numbered.

    Args:
        device: The engine's.

    Attributes:
        extents: The expressions that steps have.
    """

    def __init__(self, device: torch.device) -> None:
        self.extents: list[Expression] = []
        self._device = device
        self._numbers: dict[str, _Extent] = {}

    def step(self, kind: str, *rest: Any) -> list[Any]:
        """A step.

        Raises:
            TypeError, ValueError: It makes no sense.
        """
        if kind == "empty":
            slot, shape, strides, dtype = rest
            parts = [kind, slot, self._read(shape), self._read(strides), _enumeration("dtype", dtype)]
            return _marked(parts, parts)
        if kind == "op":
            name, arguments, keywords, results = rest
            named = {key: self._read(value) for key, value in keywords.items()}
            parts = [kind, name, self._read(arguments), named, results]
            return _marked(parts, [parts[2], *named.values()])
        if kind in ("view", "kernel"):
            parts = [kind, *map(self._read, rest)]
            return _marked(parts, parts)
        raise ValueError(f"unknown step {kind!r}")

    def _read(self, argument: Any) -> Any:
        if isinstance(argument, list):
            parts = [self._read(part) for part in argument]
            return _marked(parts, parts)
        if not isinstance(argument, dict):
            return argument
        ((kind, value),) = argument.items()
        if kind == "slot":
            return _Reference(value)
        if kind == EXTENT:
            if (text := repr(value)) not in self._numbers:
                self._numbers[text] = _Extent(len(self.extents))
                self.extents.append(value)
            return self._numbers[text]
        if kind == "device":
            return self._device if value == self._device.type else torch.device("cpu")
        return _enumeration(kind, value)


def _enumeration(kind: str, name: str) -> Any:
    found = getattr(torch, name)
    if kind not in ENUMERATIONS or not isinstance(found, ENUMERATIONS[kind]):
        raise ValueError(f"{name!r} is no {kind}")
    return found


def _known(part: Any, numbers: Sequence[int]) -> Any:
    """A part of a document with numbers in place of what follows from extents of inputs."""
    kind = type(part)
    if kind is _Extent:
        return numbers[part]
    if kind is _Sized:
        return _Open([_known(each, numbers) for each in part])
    if kind is dict:
        return {key: _known(each, numbers) for key, each in part.items()}
    return part


def _filled(argument: Any, slots: _Slots) -> Any:
    kind = type(argument)
    if kind is _Reference:
        return slots[argument]
    if kind is _Open:
        return [_filled(part, slots) for part in argument]
    return argument


class _Memory:
    """Which allocations of a list lie in one piece of memory, its arena, and how long each is needed.

    Args:
        steps: The list.
        outputs: Slots of its results: what they lie in outlives a run.
        constants: Slots of weights and what is prepared of them.

    Attributes:
        constants: As given.
        read: Slots whose tensors operators read, or a caller.
        deaths: The slots of tensors of their own that no later step reads, for each step. Views keep their memory alive
            by themselves.
    """

    def __init__(self, steps: Sequence[Sequence[Any]], outputs: Sequence[int], constants: Set[int]) -> None:
        self.constants = constants
        self.read = set(outputs)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        roots: dict[int, int] = {}
        lies_in: dict[int, set[int]] = {}  # the allocations that a slot's tensor may lie in
        for at, step in enumerate(steps):
            touched = _slots_of(step)
            if step[0] == "empty":
                first[step[1]], lies_in[step[1]] = at, {step[1]}
            elif step[0] == "view":
                roots[step[1]] = roots.get(step[2], step[2])
                lies_in[step[1]] = lies_in.get(step[2], set())
            elif step[0] == "op":
                self.read.update(touched)
                shared = [lies_in.get(slot, set()) for slot in touched] if _returns_views(step[1]) else []
                for result in step[4]:
                    if result is not None:
                        lies_in.setdefault(result, set()).update(*shared)
            for slot in touched:
                for each in (slot, roots.get(slot, slot), *lies_in.get(slot, ())):
                    last[each] = at
        kept = set().union(*(lies_in.get(slot, set()) for slot in outputs))
        self._ends: list[list[int]] = [[] for _ in steps]
        for slot in first.keys() - kept:
            self._ends[last[slot]].append(slot)
        self._planned = first.keys() - kept
        self.deaths: list[list[int]] = [[] for _ in steps]
        for slot in sorted(lies_in.keys() - set(outputs)):
            if roots.get(slot, slot) not in self._planned:
                self.deaths[last[slot]].append(slot)

    def arrange(self, steps: Sequence[Sequence[Any]]) -> tuple[dict[int, int], int]:
        """Where allocations lie in the arena, in bytes, and how large it is; those needed at one time never overlap.

        Args:
            steps: The list, with its sizes.
        """
        found: dict[int, tuple[int, int]] = {}
        holes: list[tuple[int, float]] = [(0, math.inf)]  # where what is free begins, and its bytes
        for step, ending in zip(steps, self._ends, strict=True):
            if step[0] == "empty" and step[1] in self._planned:
                size = _room(*step[2:])
                room, begin = min((room, begin) for begin, room in holes if room >= size)
                holes.remove((begin, room))
                if room > size:
                    insort(holes, (begin + size, room - size))
                found[step[1]] = (begin, size)
            for slot in ending:
                begin, size = found[slot]
                at = bisect(holes, (begin, 0))
                room = size
                if at < len(holes) and holes[at][0] == begin + size:
                    room += holes.pop(at)[1]
                if at and sum(holes[at - 1]) == begin:
                    begin, room = holes[at - 1][0], holes.pop(at - 1)[1] + room
                insort(holes, (begin, room))
        offsets = {slot: begin for slot, (begin, _) in found.items()}
        return offsets, max((begin + size for begin, size in found.values()), default=0)


def _room(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of an allocation, so that the next one is aligned."""
    elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return max(-(-elements * dtype.itemsize // _ALIGNMENT), 1) * _ALIGNMENT


def _returns_views(operator: str) -> bool:
    """Whether results of an operator may lie in the memory of its operands."""
    returned = getattr(getattr(_operator(operator), "_schema", None), "returns", ())
    return any(each.alias_info is not None for each in returned)


class _Launches:
    """A list for inputs of some shapes.

    Args:
        arena_bytes: The memory that a run needs beside its results and what operators return.
        homes: Where each output lies.

    Attributes:
        steps: What runs, and the slots that nothing reads from then on.
        tensors: Slot, offset in bytes, extents, strides and type of tensors in the arena that operators read.
        views: Slot, root, extents, strides and offset of views of constants that operators read.
        kernels: The kernels in their order: which, its grid, its numbers (0 for tensors), whether it may start early.
        fixed: For each, the parameters that are addresses in the arena (None and an offset in bytes) or of constants (a
            slot and an offset in elements).
        idle: What runs that are over have left.
    """

    def __init__(self, arena_bytes: int, homes: list[_Home | None]) -> None:
        self.arena_bytes = arena_bytes
        self.homes = homes
        self.steps: list[tuple[_Step, list[int]]] = []
        self.tensors: list[tuple[int, int, list[int], list[int], torch.dtype]] = []
        self.views: list[tuple[int, int, list[int], list[int], int]] = []
        self.kernels: list[tuple[DeviceKernel, Sequence[int], list[Any], bool]] = []
        self.fixed: list[list[tuple[int, int | None, int]]] = []
        self.idle: list[_Frame] = []


class _Frame:
    """What one run at a time needs on the host: its kernels' parameters, where the driver reads them, and tensors.

    PyTorch's allocator gives the memory of the run before as a rule: then nothing but inputs and results is new.

    Args:
        launches: The list.
        device: The engine's.

    Attributes:
        template: The constants that the parameters point to.
        kernels: The launches.
    """

    def __init__(self, launches: _Launches, device: torch.device) -> None:
        self.template: _Slots | None = None
        self.kernels = [kernel.prepare(grid, numbers, early) for kernel, grid, numbers, early in launches.kernels]
        self._list = launches
        self._device = device
        self._arena = 0
        self._slots: _Slots = []

    def begin(self, template: _Slots, arena: int) -> _Slots:
        """The slots of a run, with constants and what lies in the arena.

        Args:
            template: The constants.
            arena: The address of the run's memory.
        """
        if template is not self.template or arena != self._arena:
            self._settle(template, arena)
            self.template, self._arena = template, arena
        return self._slots.copy()

    def _settle(self, template: _Slots, arena: int) -> None:
        self._slots = slots = template.copy()
        flat: dict[torch.dtype, torch.Tensor] = {}
        for slot, offset, shape, strides, dtype in self._list.tensors:
            if dtype not in flat:
                extent = self._list.arena_bytes // dtype.itemsize
                flat[dtype] = wrap_address(arena, (extent,), dtype, self._device)
            slots[slot] = torch.as_strided(flat[dtype], shape, strides, offset // dtype.itemsize)
        for slot, root, shape, strides, offset in self._list.views:
            slots[slot] = torch.as_strided(slots[root], shape, strides, slots[root].storage_offset() + offset)
        for launch, fixed in zip(self.kernels, self._list.fixed, strict=True):
            for at, constant, offset in fixed:
                launch.values[at] = arena + offset if constant is None else _address(slots[constant], offset)


def _address(tensor: torch.Tensor, offset: int) -> int:
    return tensor.data_ptr() + offset * tensor.element_size()


class _Place(NamedTuple):
    """Where a slot's tensor lies.

    Attributes:
        root: The slot whose memory it is.
        offset: From there; in bytes of the arena where `dtype` is set, else in elements.
        dtype: Its type, if it lies in the arena.
    """

    root: int
    offset: int
    dtype: torch.dtype | None = None


class _Writer:
    """Makes of steps what runs, and leaves to frames what is the same in every run.

    Args:
        launches: The list that is made.
        memory: What lies in the arena.
        offsets: Where, in bytes.
        device: The engine's.
    """

    def __init__(self, launches: _Launches, memory: _Memory, offsets: Mapping[int, int], device: torch.device) -> None:
        self._list = launches
        self._memory = memory
        self._offsets = offsets
        self._device = device
        self._places: dict[int, _Place] = {}

    def empty(self, slot: int, shape: list[int], strides: list[int], dtype: torch.dtype) -> _Step | None:
        """An allocation; nothing is left to do in a run if it is in the arena."""
        if slot in self._offsets:
            self._places[slot] = _Place(slot, self._offsets[slot], dtype)
            if slot in self._memory.read:
                self._list.tensors.append((slot, self._offsets[slot], shape, strides, dtype))
            return None
        device = self._device

        def run(frame: _Frame, slots: _Slots, stream: int) -> None:
            if slots[slot] is None:  # else a target stands there
                slots[slot] = torch.empty_strided(shape, strides, dtype=dtype, device=device)

        return run

    def view(self, slot: int, base: int, shape: list[int], strides: list[int], offset: int) -> _Step | None:
        """A view; only what operators read is made, and that in every run only if its base is new."""
        place = self._places.get(base, _Place(base, 0))
        itemsize = 1 if place.dtype is None else place.dtype.itemsize
        place = self._places[slot] = _Place(place.root, place.offset + offset * itemsize, place.dtype)
        if slot not in self._memory.read:
            return None
        if place.dtype is not None:
            self._list.tensors.append((slot, place.offset, shape, strides, place.dtype))
            return None
        root, start = place.root, place.offset
        if root in self._memory.constants:
            self._list.views.append((slot, root, shape, strides, start))
            return None

        def run(frame: _Frame, slots: _Slots, stream: int) -> None:
            source = slots[root]
            slots[slot] = torch.as_strided(source, shape, strides, source.storage_offset() + start)

        return run

    def kernel(self, kernel: DeviceKernel, grid: Sequence[int], arguments: Sequence[Any], *, is_early: bool) -> _Step:
        """A launch; parameters that are addresses of inputs and results are set in every run."""
        at = len(self._list.kernels)
        fixed: list[tuple[int, int | None, int]] = []
        moving: list[tuple[int, int, int]] = []
        for parameter, argument in enumerate(arguments):
            if type(argument) is _Reference:
                place = self._places.get(argument, _Place(argument, 0))
                if place.dtype is not None:
                    fixed.append((parameter, None, place.offset))
                elif place.root in self._memory.constants:
                    fixed.append((parameter, place.root, place.offset))
                else:
                    moving.append((parameter, place.root, place.offset))
        numbers = [0 if type(argument) is _Reference else argument for argument in arguments]
        self._list.kernels.append((kernel, grid, numbers, is_early))
        self._list.fixed.append(fixed)

        def run(frame: _Frame, slots: _Slots, stream: int) -> None:
            launch = frame.kernels[at]
            for parameter, root, offset in moving:
                launch.values[parameter] = _address(slots[root], offset)
            launch.start(stream)

        return run


def _call(
    operator: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], results: Sequence[int | None]
) -> _Step:
    def run(frame: _Frame, slots: _Slots, stream: int) -> None:
        named = {key: _filled(value, slots) for key, value in keywords.items()}
        found = operator(*[_filled(argument, slots) for argument in arguments], **named)
        leaves = [found] if isinstance(found, torch.Tensor) else pytree.tree_leaves(found)
        for at, value in zip(results, leaves, strict=True):
            if at is not None:
                slots[at] = value

    return run


def _wait(slot: int, operand: int, operation: str, ranks: Sequence[int]) -> _Step:
    def run(frame: _Frame, slots: _Slots, stream: int) -> None:
        slots[slot] = finish(slots[slot], operation, ranks)

    return run


def _nothing(frame: _Frame, slots: _Slots, stream: int) -> None:
    """What is left of a step of which a run has nothing to do."""


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
        homes.append(_Home(step[1], tuple(step[2]), step[4]))
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


def _slots_of(step: Sequence[Any]) -> list[int]:
    kind = step[0]
    if kind == "empty":
        return [step[1]]
    if kind in ("view", _WAIT):
        return [step[1], step[2]]
    found = [slot for slot in step[4] if slot is not None] if kind == "op" else []
    parts = [step[2], *step[3].values()] if kind == "op" else [step[3]]
    for part in parts:  # grows
        if type(part) is _Reference:
            found.append(part)
        elif isinstance(part, _Open):
            parts += part
    return found


def with_waits(steps: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns a list in which each collective is waited for before the first step that needs it.

    That is the first one that reads its result, or touches memory which the collective still reads.
    """
    roots: dict[int, int] = {}  # a view's memory is that of the tensor that it is a view of
    pending: list[tuple[list[Any], set[int]]] = []
    found: list[Any] = []

    def root(slot: int) -> int:
        return roots.get(slot, slot)

    for step in steps:
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
            needed = {result} if copies_its_operand(operation) else {result, root(operand)}
            pending.append(([_WAIT, result, operand, operation, ranks], needed))
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
