"""CUDA streams: the work of one context stays in order, whatever streams its calls are made on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class StreamOrder:
    """Enqueues a context on the streams of its callers; each run waits, on the device, for the one before.

    PyTorch's own streams live as long as the process, so the one of the last run is told by its handle, and is asked
    only when another one comes. A stream that the application made may be gone by then, and its handle may belong to a
    new one; there each run leaves an event behind.

    Args:
        device: A CUDA device.
        beside_default: Run beside the default stream, between two waits, instead of on it: TensorRT would
            synchronize the whole device there.

    Attributes:
        handle: Handle of the stream of the last run; -1 before the first.
    """

    def __init__(self, device: torch.device, *, beside_default: bool) -> None:
        self.handle = -1
        self._device = device
        self._beside_default = beside_default
        self._stream: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None

    def enqueue(self, native: Any, handle: int, allocators: Iterable[Any]) -> bool:
        """Enqueues one run of a context.

        Args:
            native: The provider's `IExecutionContext`.
            handle: Handle of the current stream of the device.
            allocators: Output allocators, which must know the stream that writes their memory.
        """
        if handle != self.handle or self._done is not None:
            self._follow(handle)
        beside = handle == 0 and self._beside_default
        if beside and self._side is None:
            self._side = torch.cuda.Stream(self._device)
        for allocator in allocators:
            allocator.stream = self._side if beside else self._stream
        if beside:
            return self._enqueue_beside(native)
        succeeded = bool(native.execute_async_v3(handle))
        if self._done is not None:
            self._done.record(self._stream)
        return succeeded

    def release(self, output: torch.Tensor) -> None:
        """Tells PyTorch's allocator that an output was made beside the caller's stream, if it was."""
        if self._side is not None and self._stream is not None and output.is_cuda:
            output.record_stream(self._stream)

    def wait(self) -> None:
        """Waits on the host until the last run is done."""
        if self._done is not None:
            self._done.synchronize()
        elif self._stream is not None:
            self._stream.synchronize()

    def _follow(self, handle: int) -> None:
        stream = torch.cuda.current_stream(self._device)
        if not torch.cuda.is_current_stream_capturing():  # capturing begins after all work is done
            if self._done is not None:
                stream.wait_event(self._done)
            elif self._stream is not None:
                stream.wait_stream(self._stream)
        # PyTorch gives numbers to its own streams, and knows foreign ones by their handles.
        is_foreign = handle != 0 and stream.stream_id == handle
        if not is_foreign:
            self._done = None
        elif self._done is None:
            self._done = torch.cuda.Event()
        self.handle, self._stream = handle, stream

    def _enqueue_beside(self, native: Any) -> bool:
        side, stream = self._side, self._stream
        assert side is not None and stream is not None
        side.wait_stream(stream)
        succeeded = bool(native.execute_async_v3(side.cuda_stream))
        stream.wait_stream(side)
        return succeeded
