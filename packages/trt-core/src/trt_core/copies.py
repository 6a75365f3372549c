"""Copies of many tensors between the host and GPUs, by several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

_PIECE_BYTES: Final = 16 << 20
_MOST_THREADS: Final = 8
LARGE_BYTES: Final = 64 << 20
"""Less is copied sooner than threads begin."""


def copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies tensors, in pieces and side by side; done when it returns.

    Args:
        pairs: Sources and targets: dense, of the same types and sizes, on the host or on a GPU. What is to be in a
            source has been enqueued on the current stream of its device.
    """
    if sum(source.nbytes for source, _ in pairs) < LARGE_BYTES:
        for source, target in pairs:
            target.reshape(-1).copy_(source.reshape(-1))
        return
    flat = [(_bytes_of(source), _bytes_of(target)) for source, target in pairs]
    devices = {tensor.device for pair in flat for tensor in pair if tensor.is_cuda}
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    staging = {device: _Staging(device) for device in devices}

    def copy(pieces: tuple[torch.Tensor, torch.Tensor]) -> None:
        source, target = pieces
        with torch.inference_mode():  # targets may have been made in it
            if source.device == target.device:
                target.copy_(source)
            elif source.is_cuda:
                staging[source.device].to_host(source, target)
            else:
                staging[target.device].to_device(source, target)

    pieces = [
        piece
        for source, target in flat
        for piece in zip(source.split(_PIECE_BYTES), target.split(_PIECE_BYTES), strict=True)
    ]
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        for _ in threads.map(copy, pieces):
            pass
    for device in devices:
        torch.cuda.synchronize(device)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor; a single element may have any stride, which no view as bytes takes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class _Staging(threading.local):
    """A page-locked block and a stream for each thread.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._block = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True, device="cpu")
        self._stream = torch.cuda.Stream(device)

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies a piece from the device."""
        block = self._block[: source.numel()]
        with torch.cuda.stream(self._stream):
            block.copy_(source, non_blocking=True)
            self._stream.synchronize()
        target.copy_(block)

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies a piece to the device."""
        block = self._block[: source.numel()]
        block.copy_(source)
        with torch.cuda.stream(self._stream):
            target.copy_(block, non_blocking=True)
            self._stream.synchronize()
