"""Weight streaming: how many bytes of weights stay on the device, which ones, and where the others are."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.dtypes import PACKED, storage_bytes
from trt_portable.enums import LayerType
from trt_portable.execution.launcher import is_capturing
from trt_portable.execution.program import Compute, LayerCall, Program, Step, in_ranges
from trt_portable.layers.convolution import IConvolutionLayer, IDeconvolutionLayer
from trt_portable.plan.engine_info import is_host_constant
from trt_portable.shape_tensors import Value, as_tensor, is_known_to_host

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer
    from trt_portable.plan.weight_store import WeightStore

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

    def load_constants(
        self, layers: Iterable[ILayer] | None = None, prepared: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        """See `Program.load_constants`; values of constants on the host stay there."""
        super().load_constants(layers, prepared)
        self._batches = [tuple(self._on_host(site) for site in sites) for sites in self._plan.values()]
        self._window = _most_of_two([size_of(batch) for batch in self._batches])
        if self._batches and self._side is None and self._device.type == "cuda":
            self._side = torch.cuda.Stream(self._device)

    @contextmanager
    def running_steps(self) -> Iterator[Sequence[Step]]:
        """See `Program.running_steps`; a step that reads weights on the host waits for them."""
        transfers = WeightTransfers(self._batches, self._window, self._device, self._side)
        steps = list(self.steps)
        for at, sites in self._plan.items():
            compute, *rest, call = steps[at]
            fed = partial(_feed, compute, sites, transfers, call.layer)
            steps[at] = (fed, *rest, call)  # type: ignore[assignment]
        try:
            yield in_ranges(steps)
        finally:
            transfers.finish()

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """See `Program.run`."""
        with self.running_steps() as steps:
            return self._walk(self.start(values), steps)

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


def _feed(
    compute: Compute, sites: Sequence[_Site], transfers: WeightTransfers, layer: ILayer, given: Sequence[Value | None]
) -> Sequence[Value]:
    """Computes a layer on operands of which some come from the host now."""
    batch = transfers.take()
    results = compute(_with_weights(given, sites, batch, layer))
    transfers.release(batch)
    return results


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


Batch = tuple[torch.Tensor, ...]
"""Weights on the host that one layer reads."""

_BLOCK_BYTES: Final = 256 << 20
"""PyTorch rounds pinned memory up to a power of two: weights are put together in blocks of that size."""
_ALIGNMENT: Final = 256


class WeightTransfers:
    """The transfers of one run.

    The memory on the device comes from PyTorch's allocator, on the stream of the run, so it is free again for what the
    stream does next as soon as nobody holds the tensor. Copies go over a stream of their own: each waits until the
    stream of the run is done with whatever had the memory before, and the run waits for the copy.

    Args:
        batches: What is transferred, in order.
        most_bytes: Bytes that are on the device at once, those in use included; one batch may always be.
        device: Where they go. On the CPU they are copied.
        side: The stream of the copies; None for the stream of the run, as it has to be where that is being captured.
    """

    def __init__(
        self, batches: Sequence[Batch], most_bytes: int, device: torch.device, side: torch.cuda.Stream | None
    ) -> None:
        self._batches = batches
        self._most_bytes = most_bytes
        self._device = device
        self._side = None if is_capturing(device) else side
        self._main = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._begun = 0
        self._ahead: deque[tuple[Batch, torch.cuda.Event | None]] = deque()
        self._bytes = 0

    def take(self) -> Batch:
        """The next batch, for what the stream of the run does from here on; `release` it afterwards."""
        if not self._ahead:
            self._begin()
        batch, done = self._ahead.popleft()
        while (
            self._begun < len(self._batches) and self._bytes + size_of(self._batches[self._begun]) <= self._most_bytes
        ):
            self._begin()
        if done is not None and self._main is not None:
            self._main.wait_event(done)
        return batch

    def release(self, batch: Batch) -> None:
        """Notes that no work which is still to come reads a batch."""
        self._bytes -= size_of(batch)

    def finish(self) -> None:
        """Makes the stream of the run wait for copies that nobody took, since their memory is free from here on."""
        for _, done in self._ahead:
            if done is not None and self._main is not None:
                self._main.wait_event(done)
        self._ahead.clear()

    def _begin(self) -> None:
        """Starts the transfer of the next batch."""
        batch = self._batches[self._begun]
        self._begun += 1
        self._bytes += size_of(batch)
        found = tuple(torch.empty_like(weights, device=self._device) for weights in batch)
        done = None
        if self._side is None or self._main is None:
            _copy(batch, found)
        else:
            self._side.wait_stream(self._main)
            with torch.cuda.stream(self._side):
                _copy(batch, found)
            done = self._side.record_event()
        self._ahead.append((found, done))


def size_of(batch: Batch) -> int:
    """Bytes of a batch."""
    return sum(weights.nbytes for weights in batch)


def in_blocks(tensors: Sequence[torch.Tensor], most_bytes: int = sys.maxsize, **memory: Any) -> list[torch.Tensor]:
    """Copies of tensors in other memory, several in one block of it.

    Args:
        tensors: On the CPU, contiguous.
        most_bytes: Of a block that holds more than one.
        **memory: Of which kind it is, as `torch.empty` is told.

    Raises:
        RuntimeError: The system gives no such memory.
    """
    found: list[torch.Tensor] = []
    rooms = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    block, end, left = None, 0, sum(rooms)
    for tensor, room in zip(tensors, rooms, strict=True):
        if block is None or end + room > block.numel():
            block, end = torch.empty(max(room, min(left, most_bytes)), dtype=torch.uint8, **memory), 0
        place = block[end : end + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        found.append(place.copy_(tensor))
        end += room
        left -= room
    return found


def _copy(batch: Batch, target: Batch) -> None:
    for weights, place in zip(batch, target, strict=True):
        place.copy_(weights, non_blocking=True)


_SPARED: Final = 0.1
"""The part of a device's free memory that an automatic budget leaves alone."""


class WeightStreaming:
    """Places the weights of an engine that was built for streaming, on the host and on the device.

    The plan's own memory holds all of them and is what a refit replaces; what is on the device are copies.

    Args:
        weights: The engine's weights, on the host.
        layers: Its layers, by the index that a slot names.
        program: What runs while some weights lie on the host.
        device: The engine's device.

    Attributes:
        program: As given.
        streamable_bytes: Bytes of weights that may lie on the host.
    """

    def __init__(
        self, weights: WeightStore, layers: Sequence[ILayer], program: StreamedProgram, device: torch.device
    ) -> None:
        self.program = program
        self._weights = weights
        self._layers = layers
        self._device = device
        allowed = set(program.streamable)
        fixed: set[str] = set()
        sizes: dict[str, int] = {}
        for slot in weights.slots:
            if (id(layers[slot.layer]), slot.role) in allowed:
                sizes[slot.weights] = storage_bytes(slot.dtype, slot.count)
            else:
                fixed.add(slot.weights)
        self._sizes = {name: size for name, size in sizes.items() if name not in fixed}
        self.streamable_bytes = sum(self._sizes.values())

    def place(self, budget: int) -> bool:
        """Puts weights where a budget wants them, and binds them to their layers.

        Args:
            budget: Bytes of streamable weights that may stay on the device.

        Returns:
            Whether some lie on the host, so that nothing but `program` can run.

        Raises:
            RuntimeError: There is no memory for them.
        """
        self._let_go()
        slots = self._weights.slots
        streamed = self._streamed(budget)
        away = [index for index, slot in enumerate(slots) if slot.weights in streamed]
        here = [
            index for index, slot in enumerate(slots) if slot.weights not in streamed and not is_host_constant(slot)
        ]
        self.program.stream([(self._layers[slots[index].layer], slots[index].role) for index in away])
        self._bind(away, most_bytes=_BLOCK_BYTES, pin_memory=True)
        self._bind(here, device=self._device)
        return bool(away)

    def scratch_bytes(self, budget: int) -> int:
        """Bytes on the device for weights on their way, at a budget."""
        slots, streamed = self._weights.slots, self._streamed(budget)
        sizes = {
            (id(self._layers[slot.layer]), slot.role): self._sizes[slot.weights]
            for slot in slots
            if slot.weights in streamed
        }
        return self.program.scratch_bytes(sizes)

    def automatic_budget(self, run_bytes: int) -> int:
        """Bytes of weights for which the device has memory now, beside what a run needs.

        Args:
            run_bytes: Bytes of intermediate values of a run.
        """
        if self._device.type != "cuda":
            return self.streamable_bytes
        free, _ = torch.cuda.mem_get_info(self._device)
        free += torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        everything = self._weights.bytes_of()
        room = int(free * (1 - _SPARED)) - run_bytes - (everything - self.streamable_bytes)
        if room >= self.streamable_bytes:
            return self.streamable_bytes
        return max(room - self.scratch_bytes(0), 0)

    def _streamed(self, budget: int) -> set[str]:
        return self._sizes.keys() - resident_weights(self._sizes, budget)

    def _let_go(self) -> None:
        """Binds weights where the plan holds them, so that nothing keeps what a former budget had on the device."""
        for index in range(len(self._weights.slots)):
            tensor = self._weights.tensor(index)
            if tensor is not None:
                self._weights.bind(index, tensor)
        for layer in self._layers:
            if isinstance(layer, (IConvolutionLayer, IDeconvolutionLayer)):
                layer._own = None

    def _bind(self, indices: Sequence[int], **memory: Any) -> None:
        """Binds uses of weights to copies in memory of a kind (see `in_blocks`); what they share, they share there."""
        given = {index: tensor for index in indices if (tensor := self._weights.tensor(index)) is not None}
        keys = {index: (tensor.data_ptr(), tensor.dtype, tensor.numel()) for index, tensor in given.items()}
        distinct = {keys[index]: tensor for index, tensor in given.items()}
        moved = dict(zip(distinct, in_blocks(list(distinct.values()), **memory), strict=True))
        for index, key in keys.items():
            self._weights.bind(index, moved[key])


def resident_weights(sizes: Mapping[str, int], budget: int) -> set[str]:
    """The weights that stay on the device: small ones first, whose transfers cost more than they save.

    Of those of one size of which only some fit, every so many stays: while their layers compute, weights of the others
    are on their way.

    Args:
        sizes: Bytes of weights by id, in the order of their layers.
        budget: Bytes that may stay.
    """
    resident: set[str] = set()
    for size, group in groupby(sorted(sizes, key=sizes.__getitem__), key=sizes.__getitem__):
        names = list(group)
        count = len(names) if not size else min(len(names), budget // size)
        resident.update(names[at * len(names) // count] for at in range(count))
        budget -= count * size
    return resident
