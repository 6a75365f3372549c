"""Weights on their way from the host to the device, a little ahead of the layers that read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import torch

from trt_portable.runtime.launcher import is_capturing

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


def pinned(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors in memory that devices read by themselves, without waiting for the host.

    Args:
        tensors: On the CPU, contiguous.

    Raises:
        RuntimeError: The system gives no such memory.
    """
    found: list[torch.Tensor] = []
    block, end = torch.empty(0, dtype=torch.uint8), 0
    left = sum(_room(tensor) for tensor in tensors)
    for tensor in tensors:
        room = _room(tensor)
        if end + room > block.numel():
            block, end = torch.empty(max(room, min(left, _BLOCK_BYTES)), dtype=torch.uint8, pin_memory=True), 0
        place = block[end : end + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        found.append(place.copy_(tensor))
        end += room
        left -= room
    return found


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _copy(batch: Batch, target: Batch) -> None:
    for weights, place in zip(batch, target, strict=True):
        place.copy_(weights, non_blocking=True)
