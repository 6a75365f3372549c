"""Memory for outputs of engines whose extents depend on data: the provider asks for it while an engine runs."""

from __future__ import annotations

import contextlib
import functools
import math
from types import ModuleType
from typing import Any

import torch

from trt_core.errors import ExecutionError
from trt_core.provider import provider_module


def output_allocator(dtype: torch.dtype, device: torch.device) -> Any:
    """Returns an `IOutputAllocator` of the provider in use; its `take()` hands over the output tensor.

    Args:
        dtype: Element type of the output.
        device: Where the output lies.
    """
    return _allocator_class(provider_module())(dtype, device)


@functools.lru_cache(maxsize=2)
def _allocator_class(trt: ModuleType) -> Any:
    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc, name-defined]  # known at run time
        def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
            trt.IOutputAllocator.__init__(self)
            self._dtype = dtype
            self._device = device
            self._buffer: torch.Tensor | None = None
            self._shape: tuple[int, ...] | None = None
            self.stream: torch.cuda.Stream | None = None

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            # On the stream that writes it: memory that other streams freed may still be in use there.
            writing = torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()
            with writing:
                self._buffer = torch.empty(max(size, 1), dtype=torch.uint8, device=self._device)
            return self._buffer.data_ptr()

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            return self.reallocate_output_async(tensor_name, memory, size, alignment, 0)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self._shape = tuple(shape)

        def take(self, name: str) -> torch.Tensor:
            """Returns the output of the run that just ended, and forgets it.

            Raises:
                ExecutionError: The provider did not say its shape.
            """
            buffer, shape, dtype = self._buffer, self._shape, self._dtype
            self._buffer = self._shape = None
            if buffer is None or shape is None:
                raise ExecutionError(f"the provider did not say the shape of output {name!r}")
            count = math.prod(shape)
            return buffer[: count * dtype.itemsize].view(dtype).view(shape)

    return OutputAllocator
