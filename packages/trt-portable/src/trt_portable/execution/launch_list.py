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
              ["late", operator, steps] - an "op" that plans for sizes, and what makes the same result without a plan
    outputs   a slot per output

An argument is JSON for a plain value, ``{"slot": 3}`` for a tensor, ``{"dtype": "float16"}`` and so on
for PyTorch's enumerations. Where extents of inputs vary, ``{"extent": expression}`` stands for a number that follows
from them (`trt_portable.plan.extents`); a list for some shapes is made of it when they come first.

cuDNN plans attention for 14 to 70 ms and a convolution for 2 to 6 when sizes come first, and cuBLAS loads kernels for
products. Where extents vary, the first runs of a list take kernels that have nothing to plan, and so do recordings of
sizes that came no more often: who brings sizes once or twice each never waits.
"""

from __future__ import annotations

import contextlib
import math
import threading
from bisect import bisect, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch

from trt_core.files import typed
from trt_core.graph_search import last_uses
from trt_core.internals import OpOverload, pytree
from trt_core.nesting import reach_of
from trt_core.remembered import Remembered
from trt_portable.errors import PortableError
from trt_portable.execution.loaded_network import WeightLayout
from trt_portable.execution.program import LayerFailure, Program
from trt_portable.kernels.device_kernels import DeviceKernel, Launches
from trt_portable.kernels.operands import BIAS_MULTIPLE
from trt_portable.layers.collective import OPERATOR, begin, copies_its_operand, finish
from trt_portable.memory import wrap_address
from trt_portable.plan import tables
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.engine_info import Shape
from trt_portable.plan.extents import Expression, evaluate, sizes_by_symbol
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import Value, as_tensor

_NAMESPACE: Final = "aten"
EXTENT: Final = "extent"
_WAIT: Final = "wait"
_LATE: Final = "late"
_ATTENTION: Final = "aten::_scaled_dot_product_cudnn_attention"
RUNS_BEFORE_PLANNING: Final = 256
"""For the flash kernel: cuDNN's saves a twentieth of a run at most sizes, and its plan is worth dozens."""
RUNS_BEFORE_PLANNING_SOON: Final = 2
"""For kernels that are much slower than those that plan."""
ENUMERATIONS: Final = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}

_ALIGNMENT: Final = 512  # as PyTorch's allocator has it

_Slots = list[Any]
_Step = Callable[["_Frame", _Slots], None]


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
            early = {at for at, kernel in enumerate(document["kernels"]) if kernel["early"] is True}
            self._outputs: list[int] = document["outputs"]
            self._size = document["slots"]
            reader = _Reader(device)
            steps = with_waits([reader.step(*step) for step in document["steps"]])
            self._extents = reader.extents
            constants = {at for at, operand in enumerate(self._operands) if "input" not in operand}
            self._memory = _Memory(steps, self._outputs, constants)
            self._chains = _chains(steps, self._outputs)
            self._steps = _Steps(steps, self._memory, self._kernels, early, plans_late=bool(artifact.varying))
            self._sizes: Remembered[tuple[Shape, ...], _Sizes] = Remembered()
            self._sizes[artifact.shapes] = self._for(artifact.shapes)
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
    def plans_after(self) -> Set[int]:
        """The numbers of runs of shapes after which kernels that plan take the place of others."""
        return self._steps.plans_after

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
        for sizes in list(self._sizes.values()):
            sizes.idle.clear()

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Computes the outputs, on the current stream.

        Args:
            values: One per input, in order, of the shapes that the list was recorded with.
            targets: None, or memory for each output that no input shares; used in place of the allocations of the list.

        Raises:
            LayerFailure: A kernel or an operator failed.
        """
        sizes = self._at(values)
        sizes.runs += 1
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        arena = torch.empty(sizes.layout.arena_bytes, dtype=torch.uint8, device=self._device)
        try:
            frame = sizes.idle.pop()
        except IndexError:
            frame = _Frame(self._steps, sizes.layout, self._device)
        runs = getattr(_planning, "runs", None)
        frame.runs = sizes.runs if runs is None else runs
        slots = frame.begin(self._template, arena.data_ptr(), stream)
        for at, index in self._inputs:
            slots[at] = as_tensor(values[index])
        for home, target in zip(sizes.layout.homes, targets):  # noqa: B905 - there may be no targets
            if home is not None and target is not None and target.dtype is home.dtype:
                slots[home.slot] = target.view(home.shape)
        try:
            for step, dying in self._steps.runs:
                step(frame, slots)
                for at in dying:
                    slots[at] = None
        except Exception as error:
            raise LayerFailure("compiled program", error) from error
        if frame.template is self._template:
            sizes.idle.append(frame)
        results = [slots[at] for at in self._outputs]
        for index, target in enumerate(targets):
            if target is not None and sizes.layout.homes[index] is not None and _is_at(results[index], target):
                results[index] = target
        return results

    def _at(self, values: Sequence[Value]) -> _Sizes:
        """What the list is for the shapes of inputs, which the artifact serves."""
        if not self.artifact.varying:
            return self._sizes[self.artifact.shapes]
        shapes = tuple(tuple(value.shape) for value in values)
        found = self._sizes.get(shapes)
        if found is None:
            found = self._sizes[shapes] = self._for(shapes)
        return found

    def _for(self, shapes: tuple[Shape, ...]) -> _Sizes:
        symbols = sizes_by_symbol(shapes)
        numbers = tuple([evaluate(expression, symbols) for expression in self._extents])
        return _Sizes(_Layout(numbers, *self._memory.arrange(numbers), _homes(self._chains, numbers)))


class _Reference(int):
    """The number of a slot whose tensor is meant."""


class _Extent(int):
    """The number of an expression of extents of inputs."""


class _Open(list[Any]):
    """A list, or a step, with references or extents in it."""


def _marked(parts: list[Any], inner: Iterable[Any]) -> list[Any]:
    """Parts as a list that tells what is in them."""
    return _Open(parts) if any(type(part) in (_Reference, _Extent, _Open) for part in inner) else parts


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
        if kind not in tables.LAUNCH_STEPS:
            raise ValueError(f"unknown step {kind!r}")
        if kind == "empty":
            slot, shape, strides, dtype = rest
            parts = [kind, slot, self._read(shape), self._read(strides), _enumeration("dtype", dtype)]
            return _marked(parts, parts)
        if kind == "op":
            name, arguments, keywords, results = rest
            named = {key: self._read(value) for key, value in keywords.items()}
            parts = [kind, name, self._read(arguments), named, results]
            return _marked(parts, [parts[2], *named.values()])
        if kind == _LATE:
            operator, others = rest
            if tuple(each[0] for each in others) not in tables.UNPLANNED:
                raise ValueError(f"steps of kinds {[each[0] for each in others]} beside an operator")
            return [kind, self.step(*operator), [self.step(*each) for each in others]]
        parts = [kind, *map(self._read, rest)]
        return _marked(parts, parts)

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


def _filled(argument: Any, slots: _Slots, numbers: Sequence[int]) -> Any:
    """An argument with tensors and numbers in place of what stands for them."""
    kind = type(argument)
    if kind is _Reference:
        return slots[argument]
    if kind is _Extent:
        return numbers[argument]
    if kind is _Open:
        return [_filled(part, slots, numbers) for part in argument]
    return argument


def _known(part: Any, numbers: Sequence[int]) -> Any:
    """A number, or several, with those in place that follow from extents of inputs."""
    return _filled(part, [], numbers)


class _Memory:
    """Which allocations of a list lie in one piece of memory, its arena, and how long each is needed.

    Args:
        steps: The list.
        outputs: Slots of its results: what they lie in outlives a run.
        constants: Slots of weights and what is prepared of them.

    Attributes:
        constants: As given.
        planned: Slots of what lies in the arena.
        read: Slots whose tensors operators read, or a caller.
        deaths: The slots of tensors of their own that no later step reads, for each step. Views keep their memory alive
            by themselves.
    """

    def __init__(self, steps: Sequence[Sequence[Any]], outputs: Sequence[int], constants: Set[int]) -> None:
        self.constants = constants
        self.read = set(outputs)
        first: dict[int, int] = {}
        needed: list[set[int]] = []  # by each step, with what it lies in
        roots: dict[int, int] = {}
        lies_in: dict[int, set[int]] = {}  # the allocations that a slot's tensor may lie in
        steps = [step[1] if step[0] == _LATE else step for step in steps]  # both ways have the same operands
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
                    if result is not None and result not in lies_in:
                        lies_in[result] = set().union(*shared)
            needed.append({each for slot in touched for each in (slot, roots.get(slot, slot), *lies_in.get(slot, ()))})
        kept = set().union(*(lies_in.get(slot, set()) for slot in outputs))
        self.planned = first.keys() - kept
        begins = {first[slot] for slot in self.planned}
        dying = last_uses(needed)
        ends = [sorted(self.planned.intersection(dead)) for dead in dying]
        self._events = [
            (step[1:] if at in begins else None, ended)
            for at, (step, ended) in enumerate(zip(steps, ends, strict=True))
            if at in begins or ended
        ]
        mortal = {slot for slot in lies_in.keys() - set(outputs) if roots.get(slot, slot) not in self.planned}
        self.deaths = [sorted(mortal.intersection(dead)) for dead in dying]

    def arrange(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Where slots lie in the arena, in bytes, and how large that is; what is needed at one time never overlaps.

        Args:
            numbers: What the extents of steps are.
        """
        found: dict[int, tuple[int, int]] = {}
        holes: list[tuple[int, float]] = [(0, math.inf)]  # where what is free begins, and its bytes
        for made, ending in self._events:
            if made is not None:
                slot, shape, strides, dtype = made
                size = _room(_known(shape, numbers), _known(strides, numbers), dtype)
                room, begin = min((room, begin) for begin, room in holes if room >= size)
                holes.remove((begin, room))
                if room > size:
                    insort(holes, (begin + size, room - size))
                found[slot] = (begin, size)
            for slot in ending:
                begin, size = found[slot]
                at = bisect(holes, (begin, 0))
                room = size
                if at < len(holes) and holes[at][0] == begin + size:
                    room += holes.pop(at)[1]
                if at and sum(holes[at - 1]) == begin:
                    begin, room = holes[at - 1][0], holes.pop(at - 1)[1] + room
                insort(holes, (begin, room))
        offsets = tuple([found[slot][0] if slot in found else 0 for slot in range(max(found, default=-1) + 1)])
        return offsets, max((begin + size for begin, size in found.values()), default=0)


def _room(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of an allocation, so that the next one is aligned."""
    return max(-(-reach_of(shape, strides) * dtype.itemsize // _ALIGNMENT), 1) * _ALIGNMENT


def _returns_views(operator: str) -> bool:
    """Whether results of an operator may lie in the memory of its operands."""
    returned = getattr(getattr(_operator(operator), "_schema", None), "returns", ())
    return any(each.alias_info is not None for each in returned)


class _Place(NamedTuple):
    """Where a slot's tensor lies.

    Attributes:
        root: The slot whose memory it is.
        offset: How many elements from there it begins: numbers to add up.
        dtype: Its type, if it lies in the arena.
    """

    root: int
    offset: tuple[int, ...] = ()
    dtype: torch.dtype | None = None


class _Tensor(NamedTuple):
    """A tensor in the arena, or a view of a constant, that operators read."""

    slot: int
    place: _Place
    shape: Sequence[int]
    strides: Sequence[int]


class _Steps:
    """What the steps of a list do in a run, and what frames make ahead; the same for all sizes.

    Args:
        steps: The list.
        memory: What lies in the arena.
        kernels: The kernels that steps name by number.
        early: Numbers of those that may start early.
        plans_late: Whether attention plans for sizes once they have come often.

    Attributes:
        runs: What runs, and the slots that nothing reads from then on.
        tensors: What is made ahead of a run.
        launches: The kernels in their order: which, its grid, its arguments, and whether it may start early.
        fixed: Parameters of the kernels, counted through, that are addresses in the arena or of constants.
        moving: How many elements behind the beginning of an input, or of a result, other addresses lie.
        plans_after: The numbers of runs of sizes after which steps plan.
    """

    def __init__(
        self,
        steps: Sequence[Sequence[Any]],
        memory: _Memory,
        kernels: Sequence[DeviceKernel],
        early: Set[int],
        *,
        plans_late: bool,
    ) -> None:
        self.runs: list[tuple[_Step, list[int]]] = []
        self.tensors: list[_Tensor] = []
        self.launches: list[tuple[DeviceKernel, Any, Sequence[Any], bool]] = []
        self.fixed: list[tuple[int, _Place]] = []
        self.moving: list[tuple[int, ...]] = []
        self.plans_after: set[int] = set()
        self._memory = memory
        self._places: dict[int, _Place] = {}
        self._parameters = 0
        follows_kernel = False  # what went before this list, and operators, are always waited for
        for (kind, *rest), dying in zip(steps, memory.deaths, strict=True):
            run: _Step | None = None
            if kind == "empty":
                run = self._empty(*rest)
            elif kind == "view":
                run = self._view(*rest)
            elif kind == "kernel":
                run = self._kernel(kernels[rest[0]], *rest[1:], is_early=follows_kernel and rest[0] in early)
            elif kind == "op":
                run = _call(_operator(rest[0]), *rest[1:])
                if plans_late and rest[0] == _ATTENTION:
                    runs = RUNS_BEFORE_PLANNING if rest[1][_BIAS] is None else RUNS_BEFORE_PLANNING_SOON
                    run = self._late(runs, run, _call(_attended, *rest[1:]))
            elif kind == _LATE:
                (_, operator, *given), (*made, (_, kernel, *started)) = rest
                unplanned = self._kernel(kernels[kernel], *started, is_early=False)
                if made:  # the operator returns memory of its own
                    unplanned = _both(_allocation(*made[0][1:]), unplanned)
                run = self._late(RUNS_BEFORE_PLANNING_SOON, _call(_operator(operator), *given), unplanned)
            else:
                run = _wait(*rest)
            follows_kernel = kind == "kernel" or (follows_kernel and kind in ("empty", "view"))
            if run is not None or dying:
                self.runs.append((run or _nothing, dying))

    def _empty(self, slot: int, shape: Any, strides: Any, dtype: torch.dtype) -> _Step | None:
        """An allocation; nothing is left to do in a run if it is in the arena."""
        if slot in self._memory.planned:
            self._places[slot] = _Place(slot, (), dtype)
            if slot in self._memory.read:
                self.tensors.append(_Tensor(slot, self._places[slot], shape, strides))
            return None

        return _allocation(slot, shape, strides, dtype)

    def _late(self, runs: int, planned: _Step, unplanned: _Step) -> _Step:
        """A step that plans for sizes once they have come more often than so many times."""
        self.plans_after.add(runs)

        def run(frame: _Frame, slots: _Slots) -> None:
            (planned if frame.runs > runs else unplanned)(frame, slots)

        return run

    def _view(self, slot: int, base: int, shape: Any, strides: Any, offset: int) -> _Step | None:
        """A view; only what operators read is made, and that in every run only if its base is new."""
        place = self._places.get(base, _Place(base))
        place = self._places[slot] = place._replace(offset=(*place.offset, offset))
        if slot not in self._memory.read:
            return None
        made = _Tensor(slot, place, shape, strides)
        if place.dtype is not None or place.root in self._memory.constants:
            self.tensors.append(made)
            return None

        def run(frame: _Frame, slots: _Slots) -> None:
            slots[slot] = _view_of(slots[place.root], made, frame.numbers)

        return run

    def _kernel(self, kernel: DeviceKernel, grid: Any, arguments: Sequence[Any], *, is_early: bool) -> _Step:
        """A launch; parameters that are addresses of inputs and results are set in every run."""
        at, first = len(self.launches), self._parameters
        moving: list[tuple[int, int, int]] = []
        for parameter, argument in enumerate(arguments, first):
            if type(argument) is _Reference:
                place = self._places.get(argument, _Place(argument))
                if place.dtype is not None or place.root in self._memory.constants:
                    self.fixed.append((parameter, place))
                else:
                    moving.append((parameter, place.root, len(self.moving)))
                    self.moving.append(place.offset)
        self._parameters += len(arguments)
        plain = [0 if type(argument) is _Reference else argument for argument in arguments]
        self.launches.append((kernel, grid, plain, is_early))

        def run(frame: _Frame, slots: _Slots) -> None:
            for parameter, root, moved in moving:
                frame.launches.values[parameter] = _address(slots[root], frame.moving[moved])
            frame.launches.start(at)

        return run


def _allocation(slot: int, shape: Any, strides: Any, dtype: torch.dtype) -> _Step:
    def run(frame: _Frame, slots: _Slots) -> None:
        if slots[slot] is None:  # else a target stands there
            numbers = frame.numbers
            extents, steps = _known(shape, numbers), _known(strides, numbers)
            slots[slot] = torch.empty_strided(extents, steps, dtype=dtype, device=frame.device)

    return run


def _both(first: _Step, second: _Step) -> _Step:
    def run(frame: _Frame, slots: _Slots) -> None:
        first(frame, slots)
        second(frame, slots)

    return run


def _view_of(base: torch.Tensor, made: _Tensor, numbers: Sequence[int]) -> torch.Tensor:
    offset = base.storage_offset() + _sum(made.place.offset, numbers)
    return torch.as_strided(base, _known(made.shape, numbers), _known(made.strides, numbers), offset)


def _sum(parts: Sequence[int], numbers: Sequence[int]) -> int:
    return sum(_known(part, numbers) for part in parts)


def _address(tensor: torch.Tensor, offset: int) -> int:
    return tensor.data_ptr() + offset * tensor.element_size()


class _Layout(NamedTuple):
    """What a list is for inputs of some shapes.

    Attributes:
        numbers: What the extents of steps are.
        offsets: Where each slot lies in the arena, in bytes.
        arena_bytes: The memory that a run needs beside its results and what operators return.
        homes: Where each output lies.
    """

    numbers: tuple[int, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    homes: tuple[_Home | None, ...]


@dataclass(eq=False)
class _Sizes:
    """Runs with inputs of some shapes. Few objects, since a process may see many.

    Attributes:
        layout: What the list is for them.
        runs: How many there were.
        idle: What runs that are over have left.
    """

    layout: _Layout
    runs: int = 0
    idle: list[_Frame] = field(default_factory=list)


class _Frame:
    """What one run at a time needs on the host: its kernels' parameters, where the driver reads them, and tensors.

    PyTorch's allocator gives the memory of the run before as a rule: then nothing but inputs and results is new.

    Args:
        steps: The list.
        layout: What it is for the sizes of the run.
        device: The engine's.

    Attributes:
        numbers: What the extents of steps are.
        device: As given.
        template: The constants that the parameters point to.
        launches: The kernels.
        moving: As `_Steps.moving`, each as one number.
        runs: After how many runs of its sizes this one is; what plans late goes by it.
    """

    def __init__(self, steps: _Steps, layout: _Layout, device: torch.device) -> None:
        self.numbers = layout.numbers
        self.device = device
        self.template: _Slots | None = None
        numbers = layout.numbers
        self.launches = Launches(
            [
                (kernel, _known(grid, numbers), [_known(argument, numbers) for argument in arguments], is_early)
                for kernel, grid, arguments, is_early in steps.launches
            ]
        )
        self.moving = tuple([_sum(parts, numbers) for parts in steps.moving])
        self.runs: float = 0
        self._steps = steps
        self._layout = layout
        self._arena = 0
        self._slots: _Slots = []

    def begin(self, template: _Slots, arena: int, stream: int) -> _Slots:
        """The slots of a run, with constants and what lies in the arena.

        Args:
            template: The constants.
            arena: The address of the run's memory.
            stream: Handle of its stream.
        """
        if template is not self.template or arena != self._arena:
            self._settle(template, arena)
            self.template, self._arena = template, arena
        self.launches.stream = stream
        return self._slots.copy()

    def _settle(self, template: _Slots, arena: int) -> None:
        self._slots = slots = template.copy()
        layout, numbers, flat = self._layout, self.numbers, dict[torch.dtype, torch.Tensor]()
        for made in self._steps.tensors:
            dtype = made.place.dtype
            if dtype is None:
                slots[made.slot] = _view_of(slots[made.place.root], made, numbers)
                continue
            if dtype not in flat:
                flat[dtype] = wrap_address(arena, (layout.arena_bytes // dtype.itemsize,), dtype, self.device)
            start = layout.offsets[made.place.root] // dtype.itemsize + _sum(made.place.offset, numbers)
            shape, strides = _known(made.shape, numbers), _known(made.strides, numbers)
            slots[made.slot] = torch.as_strided(flat[dtype], shape, strides, start)
        for parameter, (root, offset, dtype) in self._steps.fixed:
            moved = _sum(offset, numbers)
            self.launches.values[parameter] = (
                _address(slots[root], moved) if dtype is None else arena + layout.offsets[root] + moved * dtype.itemsize
            )


def _call(
    operator: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], results: Sequence[int | None]
) -> _Step:
    def run(frame: _Frame, slots: _Slots) -> None:
        numbers = frame.numbers
        named = {key: _filled(value, slots, numbers) for key, value in keywords.items()}
        found = operator(*[_filled(argument, slots, numbers) for argument in arguments], **named)
        leaves = [found] if isinstance(found, torch.Tensor) else pytree.tree_leaves(found)
        for at, value in zip(results, leaves, strict=True):
            if at is not None:
                slots[at] = value

    return run


def _wait(slot: int, operand: int, operation: str, ranks: Sequence[int]) -> _Step:
    def run(frame: _Frame, slots: _Slots) -> None:
        slots[slot] = finish(slots[slot], operation, ranks)

    return run


def _nothing(frame: _Frame, slots: _Slots) -> None:
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
def with_plans(runs: float = math.inf) -> Iterator[None]:
    """Runs of this thread plan what sizes that came so many times plan, whether theirs are new or not."""
    _planning.runs = runs
    try:
        yield
    finally:
        _planning.runs = None


_BIAS: Final = 3  # which argument of attention


def _attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    needs_sums: bool,
    dropout: float = 0.0,
    is_causal: bool = False,
    *others: Any,
    **keywords: Any,
) -> Any:
    """Attention by kernels that plan nothing; by cuDNN's where these would compute something else."""
    is_plain = not needs_sums and not dropout and q.shape[-1] == v.shape[-1]
    if is_plain and (not is_causal or q.shape[-2] == k.shape[-2]):  # a causal mask begins elsewhere there
        with contextlib.suppress(RuntimeError):  # they take fewer forms
            if bias is None:
                attend = torch.ops.aten._scaled_dot_product_flash_attention.default
                found = attend(q, k, v, dropout, is_causal, *others, **keywords)[0]
            else:
                found = _attended_with_bias(q, k, v, bias, is_causal, **keywords)
            laid_out = torch.empty_like(q)  # as cuDNN's result lies, for which what follows was compiled
            return (found if found.stride() == laid_out.stride() else laid_out.copy_(found), *[None] * 8)
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    return attend(q, k, v, bias, needs_sums, dropout, is_causal, *others, **keywords)


def _attended_with_bias(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, is_causal: bool, **keywords: Any
) -> torch.Tensor:
    count = bias.shape[-1]
    if count % BIAS_MULTIPLE or any(step % BIAS_MULTIPLE for step in bias.stride()[:-1]) or bias.stride(-1) != 1:
        bias = torch.nn.functional.pad(bias, (0, -count % BIAS_MULTIPLE))[..., :count]
    wide = bias.expand(*q.shape[:-1], k.shape[-2])
    found: Sequence[torch.Tensor] = torch.ops.aten._scaled_dot_product_efficient_attention.default(
        q, k, v, wide, False, 0.0, is_causal, **{key: value for key, value in keywords.items() if key == "scale"}
    )
    return found[0]


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


def _chains(steps: Sequence[Sequence[Any]], outputs: Sequence[int]) -> list[list[Any]]:
    """For each output the steps that made it, the last first: views, and in the end an allocation, if it is in one."""
    made = {step[1]: step for step in steps if step[0] in ("empty", "view")}
    chains: list[list[Any]] = []
    for output in outputs:
        chain = []
        step = made.get(output)
        while step is not None:
            chain.append(step)
            step = made.get(step[2]) if step[0] == "view" else None
        chains.append(chain)
    return chains


def _homes(chains: Sequence[Sequence[Any]], numbers: Sequence[int]) -> tuple[_Home | None, ...]:
    """Where each output lies, if it is all of an allocation of its own in the order of its elements."""
    taken: set[int] = set()
    homes: list[_Home | None] = []
    for chain in chains:
        *views, made = [_known(step, numbers) for step in chain] or [None]
        fits = (
            made is not None
            and made[0] == "empty"
            and made[1] not in taken
            and _is_dense(*made[2:4])
            and all(view[5] == 0 and _is_dense(*view[3:5]) for view in views)
            and (not views or math.prod(views[-1][3]) == math.prod(made[2]))
        )
        if fits:
            taken.add(made[1])
        homes.append(_Home(made[1], tuple(made[2]), made[4]) if fits else None)
    return tuple(homes)


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
    if kind == _LATE:
        return _slots_of(step[1])
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
    def plans_after(self) -> tuple[int, ...]:
        """The numbers of runs of shapes after which kernels that plan take the place of others, the least first."""
        return tuple(sorted(set[int]().union(*(each.plans_after for each in self._varying))))

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
