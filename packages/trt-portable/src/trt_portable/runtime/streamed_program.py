"""A program whose weights lie on the host in part, and come to the device while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trt_portable.dtypes import PACKED
from trt_portable.enums import LayerType
from trt_portable.layers.convolution import IConvolutionLayer, IDeconvolutionLayer
from trt_portable.runtime.program import LayerCall, LayerFailure, Observer, Program
from trt_portable.runtime.weight_transfers import Batch, WeightTransfers, size_of
from trt_portable.values import Value, as_tensor, is_known_to_host

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer

Use = tuple["ILayer", str]
"""A layer, and the role of its weights."""


@dataclass(frozen=True)
class _Site:
    """A step that reads weights.

    Attributes:
        step: Its number.
        operand: Which of its operands they are; None for the kernel of a convolution, which holds it itself.
        slot: Where the operand comes from.
    """

    step: int
    operand: int | None
    slot: int


class StreamedProgram(Program):
    """Runs layers as `Program` does, and brings each its weights shortly before it runs.

    Weights of constants that layers read directly, and kernels of convolutions, can lie on the host; all others are
    read when weights are loaded, or by layers with layers inside.

    Args:
        calls, inputs, outputs: See `Program`.
        device: Where it runs.
    """

    _SHAPES_CONSTANTS = False  # what comes from the host is as its layer gives it

    def __init__(
        self, calls: Sequence[LayerCall], inputs: Sequence[int], outputs: Sequence[int], device: torch.device
    ) -> None:
        super().__init__(calls, inputs, outputs)
        self._device = device
        self._sites = self._find_sites()
        self._streamed: tuple[Use, ...] = ()
        self._plan: dict[int, list[_Site]] = {}
        self._batches: list[Batch] = []
        self._window = 0
        self._side: torch.cuda.Stream | None = None

    @property
    def streamable(self) -> Collection[tuple[int, str]]:
        """The uses of weights that may lie on the host: identity of a layer, and a role."""
        return self._sites.keys()

    def scratch_bytes(self, sizes: Mapping[tuple[int, str], int]) -> int:
        """Bytes on the device for weights on their way: what one layer reads, and what the next one with any does.

        Args:
            sizes: Bytes of the uses of weights that lie on the host.
        """
        read: dict[int, int] = {}
        for use, size in sizes.items():
            for site in self._sites[use]:
                read[site.step] = read.get(site.step, 0) + size
        return _most_of_two([read[step] for step in sorted(read)])

    def stream(self, uses: Iterable[Use]) -> None:
        """Says which weights lie on the host from now on; they are bound to their layers like all others.

        `load_constants` comes next.
        """
        self._streamed = tuple(uses)
        plan: dict[int, list[_Site]] = {}
        for layer, role in self._streamed:
            for site in self._sites[id(layer), role]:
                plan.setdefault(site.step, []).append(site)
        self._plan = {step: plan[step] for step in sorted(plan)}

    def load_constants(self, layers: Iterable[ILayer] | None = None) -> None:
        """See `Program.load_constants`; values of constants on the host stay there."""
        super().load_constants(layers)
        self._batches = [tuple(self._on_host(site) for site in sites) for sites in self._plan.values()]
        self._window = _most_of_two([size_of(batch) for batch in self._batches])
        if self._batches and self._side is None and self._device.type == "cuda":
            self._side = torch.cuda.Stream(self._device)

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """See `Program.run`."""
        return self._run(values, None)

    def run_observed(self, values: Sequence[Value], observer: Observer) -> list[Value]:
        """See `Program.run_observed`; a layer's time includes what it waits for its weights."""
        return self._run(values, observer)

    def _run(self, values: Sequence[Value], observer: Observer | None) -> list[Value]:
        slots = self.start(values)
        plan, transfers = self._plan, WeightTransfers(self._batches, self._window, self._device, self._side)
        call: LayerCall | None = None
        try:
            for step, (compute, read, outputs, dying, call) in enumerate(self.steps):
                if observer is not None:
                    observer.before(call)
                operands = read(slots)
                sites = plan.get(step)
                if sites is None:
                    results = compute(operands)
                else:
                    batch = transfers.take()
                    results = compute(_with_weights(operands, sites, batch, call.layer))
                    transfers.release(batch)
                    del batch, operands
                if observer is not None:
                    observer.after(call, results)
                for at, result in zip(outputs, results, strict=True):
                    slots[at] = result
                for at in dying:
                    slots[at] = None
        except Exception as error:
            raise LayerFailure(call.name if call else "", error) from error
        finally:
            transfers.finish()
        return [slots[at] for at in self.output_slots]  # type: ignore[misc]

    def _find_sites(self) -> Mapping[tuple[int, str], list[_Site]]:
        found: dict[tuple[int, str], list[_Site]] = {}
        prepared = {at for _, inputs, _ in self._constants for at in inputs}
        shown = set(self.output_slots)
        readers: dict[int, list[_Site]] = {}
        for step, (inputs, (*_, call)) in enumerate(zip(self.reads, self.steps, strict=True)):
            for operand, at in enumerate(inputs):
                readers.setdefault(at, []).append(_Site(step, operand, at))
            layer = call.layer
            own = isinstance(layer, (IConvolutionLayer, IDeconvolutionLayer)) and len(inputs) == 1
            if own and call.compute == layer._compute:
                found.setdefault((id(layer), "KERNEL"), []).append(_Site(step, None, 0))
        for call, _, written in self._constants:
            dtype, count = call.layer._weight_spec("CONSTANT")
            if call.layer.type is LayerType.CONSTANT and dtype not in PACKED and not is_known_to_host(dtype, count):
                (at,) = written
                if at in readers and at not in prepared and at not in shown:
                    found[id(call.layer), "CONSTANT"] = readers[at]
        return found

    def _on_host(self, site: _Site) -> torch.Tensor:
        if site.operand is None:
            return self.steps[site.step][4].layer._bound["KERNEL"]
        value = self._template[site.slot]
        assert isinstance(value, torch.Tensor)
        return value


def _most_of_two(sizes: Sequence[int]) -> int:
    """The most that two neighbours have together."""
    return max((one + other for one, other in zip(sizes, [*sizes[1:], 0], strict=False)), default=0)


def _with_weights(
    given: Sequence[Value | None], sites: Sequence[_Site], batch: Batch, layer: ILayer
) -> list[Value | None]:
    """The operands of a layer, with weights that have come in place of those on the host."""
    operands = list(given)
    for site, weights in zip(sites, batch, strict=True):
        if site.operand is not None:
            operands[site.operand] = weights
            continue
        assert isinstance(layer, (IConvolutionLayer, IDeconvolutionLayer)) and operands[0] is not None
        channels = as_tensor(operands[0]).shape[1]
        operands = [operands[0], weights.reshape(layer._kernel_shape(channels)), None]
    return operands
