"""The executable form of a network: layer computations in order, over numbered value slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import torch
from torch.autograd import profiler

from trt_core.graph_search import last_uses
from trt_portable.enums import LayerType
from trt_portable.errors import PortableError
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer


ABSENT: Final = 0  # slot of optional inputs that are not connected; always None

Compute = Callable[[Sequence["Value | None"]], Sequence[Value]]


class LayerFailure(PortableError):
    """A layer could not compute its outputs.

    Args:
        layer: Its name.
        cause: What went wrong.
    """

    def __init__(self, layer: str, cause: BaseException) -> None:
        super().__init__(f"layer {layer!r}: {str(cause) or repr(cause)}")
        self.layer = layer
        self.cause = cause


@dataclass(frozen=True)
class LayerCall:
    """One layer and the tensors, by id, that it reads and writes.

    Attributes:
        layer: Its `_compute` is the meaning; its name and type identify it.
        inputs: Tensor ids; None where an optional input is not connected.
        outputs: Tensor ids.
        compute: What runs; the layer's `_compute` unless a fusion replaced it.
        output_names: Names of the output tensors.
        name: The layer's name; those of all layers where several were fused.
    """

    layer: ILayer
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    compute: Compute
    output_names: tuple[str, ...]
    name: str

    @property
    def kind(self) -> LayerType:
        """The kind of the layer."""
        return self.layer._KIND


_Slots = list["Value | None"]
_Reader = Callable[[_Slots], Sequence["Value | None"]]
Step = tuple[Compute, _Reader, tuple[int, ...], tuple[int, ...], LayerCall]
"""What runs, what reads its operands from slots, the slots it writes, those that die then, and the layer behind it."""
_Loading = tuple[LayerCall, tuple[int, ...], tuple[int, ...]]
"""A layer that is computed when weights are loaded, the slots that it reads, and those that it writes."""


def _reader(slots: Sequence[int]) -> _Reader:
    """What takes the values of some slots out of all, in less time than a loop in Python."""
    if len(slots) > 1:
        return itemgetter(*slots)
    first = slots[0] if slots else ABSENT
    return itemgetter(slice(first, first + len(slots)))  # a sequence, of one value too


def _in_range(name: str, compute: Compute, inputs: Sequence[Value | None]) -> Sequence[Value]:
    """Computes a layer where PyTorch's profiler, and the NVTX ranges that it emits, show it under its name."""
    with profiler.record_function(name):
        return compute(inputs)


def in_ranges(steps: Sequence[Step]) -> Sequence[Step]:
    """Returns steps that PyTorch's profiler shows under the names of their layers, where one runs; else the steps."""
    if not profiler._is_profiler_enabled:
        return steps
    return [(partial(_in_range, step[4].name, step[0]), *step[1:]) for step in steps]


def _is_rewritten() -> bool:
    """Whether somebody sees the operators of this thread, such as a tracer, who would take ranges for some."""
    from trt_core.internals import dispatch_modes  # costly to import

    return bool(dispatch_modes())


def _is_loaded(call: LayerCall) -> bool:
    return call.layer.type is LayerType.CONSTANT or call.layer._IS_PREPARATION


class Observer(Protocol):
    """Watches a run layer by layer: profilers, debug listeners."""

    def before(self, call: LayerCall, operands: Sequence[Value | None]) -> None:
        """A layer is about to run on operands."""

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """A layer ran; outputs in the order of ``call.outputs``."""


class PlacedCompute(ABC):
    """A layer's computation that can leave its one result in memory that is given."""

    @abstractmethod
    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result."""

    @abstractmethod
    def place(self, inputs: Sequence[Value | None], target: torch.Tensor) -> Sequence[Value]:
        """Computes the result.

        Args:
            inputs: As of `__call__`.
            target: Dense memory of the result's extents, which no input shares.

        Returns:
            The target; another tensor where the result cannot be written there.
        """


class PackingCompute(ABC):
    """A layer's computation that may hold weights in another order than the engine does."""

    @abstractmethod
    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the results."""

    @abstractmethod
    def forget(self) -> int:
        """Gives these weights up, and returns how many bytes they were; the next run makes them again."""


def forget_packed(computes: Iterable[Compute]) -> int:
    """Lets computations give up the weights that they packed, and returns how many bytes these were."""
    return sum(compute.forget() for compute in computes if isinstance(compute, PackingCompute))


class ShapedCompute(ABC):
    """A layer's computation that wants constants in other shapes than their layers give them.

    Beside a kernel for a few rows a reshape takes time, so constants are brought into shape when they are loaded.

    Attributes:
        shapes: The shapes, by position of the operand.
    """

    shapes: Mapping[int, tuple[int, ...]]

    @abstractmethod
    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result of operands in the shapes of the network."""

    @abstractmethod
    def compute_shaped(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result of operands that have the `shapes`."""


class Program:
    """Runs layers in order. Immutable but for constants; any number of threads may run it at once.

    Args:
        calls: Layers in an order in which every input is computed before it is read.
        inputs: Tensor ids that each run provides.
        outputs: Tensor ids that each run returns.

    Attributes:
        steps: What runs, what reads its operands, where its results go, which slots die then, and the layer behind it.
        reads: The slots that each step reads.
        output_slots: Where the outputs are in the end.
    """

    _SHAPES_CONSTANTS: ClassVar[bool] = True
    """Whether constants are loaded in the shapes that a `ShapedCompute` wants."""

    def __init__(self, calls: Sequence[LayerCall], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.calls = tuple(calls)
        slots: dict[int, int] = {}

        def slot(tensor: int) -> int:
            return slots.setdefault(tensor, len(slots) + 1)

        self._input_slots = [slot(tensor) for tensor in inputs]
        self._constants = [
            (
                call,
                tuple(ABSENT if tensor is None else slot(tensor) for tensor in call.inputs),
                tuple(slot(tensor) for tensor in call.outputs),
            )
            for call in self.calls
            if _is_loaded(call)
        ]
        running = [call for call in self.calls if not _is_loaded(call)]
        constants = {at for _, _, written in self._constants for at in written}
        read = {slot(tensor) for call in running for tensor in call.inputs if tensor is not None}
        self._passing = constants - read - {slot(tensor) for tensor in outputs}  # what only preparations read
        made = [(call.outputs, written) for call, _, written in self._constants if call.layer._IS_PREPARATION]
        self._prepared = {
            tensor: at
            for ids, written in made
            if self._passing.isdisjoint(written)
            for tensor, at in zip(ids, written, strict=True)
        }
        keep = {slot(tensor) for tensor in outputs} | constants
        touched = ([slot(at) for at in (*call.inputs, *call.outputs) if at is not None] for call in running)
        dying = last_uses(touched, keep)
        self.reads = [tuple(ABSENT if tensor is None else slot(tensor) for tensor in call.inputs) for call in running]
        self.output_slots = [slot(tensor) for tensor in outputs]
        self._views: dict[tuple[int, tuple[int, ...]], int] = {}  # where constants are in other shapes
        self._size = len(slots) + 1
        computes = [self._bring_into_shape(index, call, constants) for index, call in enumerate(running)]
        self.steps: list[Step] = [
            (
                compute,
                _reader(read),
                tuple(slot(tensor) for tensor in call.outputs),
                tuple(dead),
                call,
            )
            for call, compute, read, dead in zip(running, computes, self.reads, dying, strict=True)
        ]
        self._placed = [
            (step, self.output_slots.index(written[0]), compute.place)
            for step, (compute, _, written, _, _) in enumerate(self.steps)
            if isinstance(compute, PlacedCompute) and written[0] in self.output_slots
        ]
        self._template: list[Value | None] = [None] * (self._size + len(self._views))

    def _bring_into_shape(self, step: int, call: LayerCall, constants: set[int]) -> Compute:
        """Lets a step read constants in the shapes that it wants, and returns what runs then."""
        compute, reads = call.compute, self.reads[step]
        if not self._SHAPES_CONSTANTS or not isinstance(compute, ShapedCompute):
            return compute
        wanted = {at: shape for at, shape in compute.shapes.items() if at < len(reads)}
        if not constants.issuperset(reads[at] for at in wanted):
            return compute
        self.reads[step] = tuple(
            self._views.setdefault((slot, wanted[at]), self._size + len(self._views)) if at in wanted else slot
            for at, slot in enumerate(reads)
        )
        return compute.compute_shaped

    @property
    def prepared(self) -> dict[int, torch.Tensor]:
        """What preparations made of constants when these were loaded, by the ids of tensors."""
        found = {tensor: self._template[at] for tensor, at in self._prepared.items()}
        return {tensor: as_tensor(value) for tensor, value in found.items() if value is not None}

    def load_constants(
        self, layers: Iterable[ILayer] | None = None, prepared: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        """Computes the values of constant layers, all of them or those given, and what is prepared of them.

        What nothing but a preparation reads is not kept: weights of few bits are not held twice.

        Args:
            layers: Those whose weights changed.
            prepared: What takes the place of results of preparations, by the ids of tensors.
        """
        template, given = self._template.copy(), prepared or {}
        for call, inputs, written in self._outdated(layers):
            is_given = given.keys() >= set(call.outputs)
            operands = [template[at] for at in inputs]
            made = [given[tensor] for tensor in call.outputs] if is_given else call.compute(operands)
            for at, value in zip(written, made, strict=True):
                template[at] = value
        for at in self._passing:
            template[at] = None
        for (source, shape), at in self._views.items():
            loaded = template[source]
            if loaded is not None and loaded is not self._template[source]:
                template[at] = as_tensor(loaded).reshape(shape)
        self._template = template  # replaced as a whole: runs in other threads keep what they had

    def forget_constants(self) -> None:
        """Lets go of the values of constants; `load_constants` brings them back."""
        self._template = [None] * len(self._template)

    def _outdated(self, layers: Iterable[ILayer] | None) -> list[_Loading]:
        """What to compute, in order: constants that changed, preparations of them, and what these read besides."""
        if layers is None:
            return self._constants
        wanted = {id(layer) for layer in layers}
        changed: set[int] = set()
        for call, inputs, written in self._constants:
            if id(call.layer) in wanted or not changed.isdisjoint(inputs):
                changed.update(written)
        needed: list[_Loading] = []
        missing: set[int] = set()
        for loading in reversed(self._constants):
            _, inputs, written = loading
            if not changed.isdisjoint(written) or not missing.isdisjoint(written):
                needed.append(loading)
                missing.update(at for at in inputs if at in self._passing)
        return needed[::-1]

    @property
    def constants(self) -> Sequence[Value | None]:
        """The constants that a run which starts now reads, by slot; None elsewhere."""
        return self._template

    def start(self, values: Sequence[Value]) -> _Slots:
        """The slots of a run before its first step: constants and inputs."""
        slots = self._template.copy()
        for at, value in zip(self._input_slots, values, strict=True):
            slots[at] = value
        return slots

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Computes the outputs.

        Args:
            values: One per input, in order.
            targets: None, or dense memory for each output that no input shares, for what a `PlacedCompute` makes.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """
        slots = self._template.copy()  # as `start`, which costs a call
        for at, value in zip(self._input_slots, values):  # noqa: B905 - warm path, lengths agree
            slots[at] = value
        steps = self._aimed(targets) if targets and self._placed else self.steps
        if profiler._is_profiler_enabled and not _is_rewritten():
            steps = in_ranges(steps)
        return self._walk(slots, steps)

    def _walk(self, slots: _Slots, steps: Sequence[Step]) -> list[Value]:
        call: LayerCall | None = None
        try:
            for compute, read, outputs, dying, call in steps:  # noqa: B007
                for at, result in zip(outputs, compute(read(slots))):  # noqa: B905
                    slots[at] = result
                for at in dying:
                    slots[at] = None
        except Exception as error:
            raise LayerFailure(call.name if call else "", error) from error
        return [slots[at] for at in self.output_slots]  # type: ignore[misc]

    def running_steps(self) -> AbstractContextManager[Sequence[Step]]:
        """The steps of one run whose caller takes them, in order, one by one; see `start`."""
        return nullcontext(in_ranges(self.steps))

    def _aimed(self, targets: Sequence[torch.Tensor | None]) -> Sequence[Step]:
        """The steps, of which some write to targets."""
        steps = list(self.steps)
        for at, output, place in self._placed:
            target = targets[output]
            if target is not None:
                steps[at] = (partial(place, target=target), *steps[at][1:])
        return steps

    def run_observed(self, values: Sequence[Value], observer: Observer) -> list[Value]:
        """As `run`, telling an observer before and after each layer.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """
        slots = self.start(values)
        with self.running_steps() as steps:
            for compute, read, outputs, dying, call in steps:
                try:
                    operands = read(slots)
                    observer.before(call, operands)
                    results = compute(operands)
                except Exception as error:
                    raise LayerFailure(call.name, error) from error
                if len(results) != len(outputs):
                    made = ValueError(f"it makes {len(results)} results, and has {len(outputs)}")
                    raise LayerFailure(call.name, made)
                observer.after(call, results)
                for at, result in zip(outputs, results, strict=True):
                    slots[at] = result
                for at in dying:
                    slots[at] = None
        return [slots[at] for at in self.output_slots]  # type: ignore[misc]
