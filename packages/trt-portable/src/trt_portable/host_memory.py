"""`IHostMemory`: bytes that the library hands out, readable through the buffer protocol without a copy."""

from __future__ import annotations

import torch

from trt_portable.context_managers import ContextManaged
from trt_portable.enums import DataType


class IHostMemory(ContextManaged, bytearray):
    """A block of host memory, such as a serialized engine.

    It derives from `bytearray` because, before Python 3.12, only built-in types can export their memory:
    ``memoryview(host_memory)`` is a view of these very bytes.
    """

    def __repr__(self) -> str:
        return f"<IHostMemory of {len(self)} bytes>"

    __str__ = __repr__

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return len(self)

    @property
    def dtype(self) -> DataType:
        """Always `DataType.INT8`: raw bytes."""
        return DataType.INT8

    def as_tensor(self) -> torch.Tensor:
        """The bytes as a one-dimensional uint8 tensor over the same memory."""
        return torch.frombuffer(self, dtype=torch.uint8)
