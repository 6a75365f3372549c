"""The executable form of a network: layer computations in order, over numbered value slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import torch

from trt_portable.enums import LayerType
from trt_portable.errors import PortableError
from trt_portable.values import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.layer import ILayer

_ABSENT: Final = 0  # slot of optional inputs that are not connected; always None

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
    """

    layer: ILayer
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    compute: Compute
    output_names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name


class Observer(Protocol):
    """Watches a run layer by layer: profilers, debug listeners."""

    def before(self, call: LayerCall) -> None:
        """A layer is about to run."""

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """A layer ran; outputs in the order of ``call.outputs``."""


@dataclass(frozen=True)
class ShapeReport:
    """What running a program on shapes alone tells.

    Attributes:
        outputs: Meta tensors or host values per output; None where the extents depend on data.
        peak_bytes: Most bytes of values alive at once, inputs and constants left out.
    """

    outputs: tuple[Value | None, ...]
    peak_bytes: int


class Program:
    """Runs layers in order. Immutable but for constants; any number of threads may run it at once.

    Args:
        calls: Layers in an order in which every input is computed before it is read.
        inputs: Tensor ids that each run provides.
        outputs: Tensor ids that each run returns.
    """

    def __init__(
        self, calls: Sequence[LayerCall], inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self.calls = tuple(calls)
        slots: dict[int, int] = {}

        def slot(tensor: int) -> int:
            return slots.setdefault(tensor, len(slots) + 1)

        self._input_slots = [slot(tensor) for tensor in inputs]
        constants = [call for call in self.calls if call.layer.type is LayerType.CONSTANT]
        self._constants = [(call, slot(call.outputs[0])) for call in constants]
        running = [call for call in self.calls if call.layer.type is not LayerType.CONSTANT]
        keep = {slot(tensor) for tensor in outputs} | {at for _, at in self._constants}
        last_use = self._last_uses(running, slot, keep)
        self._steps = [
            (
                call.compute,
                tuple(_ABSENT if tensor is None else slot(tensor) for tensor in call.inputs),
                tuple(slot(tensor) for tensor in call.outputs),
                tuple(last_use.get(index, ())),
                call,
            )
            for index, call in enumerate(running)
        ]
        self._output_slots = [slot(tensor) for tensor in outputs]
        self._template: list[Value | None] = [None] * (len(slots) + 1)
        self._slots: Mapping[int, int] = slots

    @staticmethod
    def _last_uses(
        running: Sequence[LayerCall], slot: Callable[[int], int], keep: set[int]
    ) -> dict[int, list[int]]:
        """Slots that die with each step: read there last, or written there and never read."""
        last: dict[int, int] = {}
        for index, call in enumerate(running):
            for tensor in (*call.inputs, *call.outputs):
                if tensor is not None:
                    last[slot(tensor)] = index
        deaths: dict[int, list[int]] = {}
        for at, index in last.items():
            if at not in keep:
                deaths.setdefault(index, []).append(at)
        return deaths

    def load_constants(self, layers: Iterable[ILayer] | None = None) -> None:
        """Computes the values of constant layers, all of them or those given, from their weights."""
        wanted = None if layers is None else {id(layer) for layer in layers}
        template = self._template.copy()
        for call, at in self._constants:
            if wanted is None or id(call.layer) in wanted:
                (template[at],) = call.compute(())
        self._template = template  # replaced as a whole: runs in other threads keep what they had

    def run(self, values: Sequence[Value]) -> list[Value]:
        """Computes the outputs.

        Args:
            values: One per input, in order.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """
        slots = self._template.copy()
        for at, value in zip(self._input_slots, values, strict=True):
            slots[at] = value
        call: LayerCall | None = None
        try:
            for compute, inputs, outputs, dying, call in self._steps:  # noqa: B007
                results = compute([slots[at] for at in inputs])
                for at, result in zip(outputs, results):  # noqa: B905
                    slots[at] = result
                for at in dying:
                    slots[at] = None
        except Exception as error:
            raise LayerFailure(call.layer.name if call else "", error) from error
        return [slots[at] for at in self._output_slots]  # type: ignore[misc]

    def run_observed(self, values: Sequence[Value], observer: Observer) -> list[Value]:
        """As `run`, telling an observer before and after each layer.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """
        slots = self._template.copy()
        for at, value in zip(self._input_slots, values, strict=True):
            slots[at] = value
        for compute, inputs, outputs, dying, call in self._steps:
            observer.before(call)
            try:
                results = compute([slots[at] for at in inputs])
            except Exception as error:
                raise LayerFailure(call.layer.name, error) from error
            observer.after(call, results)
            for at, result in zip(outputs, results, strict=True):
                slots[at] = result
            for at in dying:
                slots[at] = None
        return [slots[at] for at in self._output_slots]  # type: ignore[misc]

    def infer(self, values: Sequence[Value]) -> ShapeReport:
        """Runs on meta tensors; what cannot be known without data is None, and so is what follows."""
        slots = self._template.copy()
        for at, value in zip(self._input_slots, values, strict=True):
            slots[at] = value
        live = peak = 0
        sizes: dict[int, int] = {}
        for compute, inputs, outputs, dying, _ in self._steps:
            operands = [slots[at] for at in inputs]
            results: Sequence[Value | None] = (None,) * len(outputs)
            connected = zip(inputs, operands, strict=True)
            if not any(value is None and at != _ABSENT for at, value in connected):
                try:
                    results = compute(operands)
                except Exception:  # extents that depend on data, by whatever exception
                    results = (None,) * len(outputs)
            for at, result in zip(outputs, results, strict=True):
                slots[at] = result
                if isinstance(result, torch.Tensor):
                    sizes[at] = result.nbytes
                    live += result.nbytes
            peak = max(peak, live)
            for at in dying:
                slots[at] = None
                live -= sizes.pop(at, 0)
        return ShapeReport(tuple(slots[at] for at in self._output_slots), peak)


def value_shape(value: Value) -> tuple[int, ...]:
    """The extents of a value as integers."""
    if isinstance(value, HostValues):
        return tuple(int(extent) for extent in value.shape)
    return tuple(value.shape)
