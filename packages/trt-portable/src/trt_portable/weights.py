"""Host weights: memory that a network refers to and never copies."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trt_portable.dtypes import FROM_NUMPY, nptype, storage_bytes, storage_dtype
from trt_portable.enums import DataType


class Weights:
    """A typed view of host memory: ``Weights(array)``, ``Weights(type)`` or ``Weights(type, ptr, count)``.

    An array is referred to, not copied, and kept alive. A raw pointer stays the caller's: the memory
    must outlive every build of a network that uses it.

    Args:
        type: The element type; on its own it makes empty weights. Or a C-contiguous numpy array.
        ptr: Address of host memory.
        count: Number of elements (not bytes: two 4-bit elements share a byte).
        a: The array, by the name that TensorRT has for it.

    Raises:
        ValueError: The array is not contiguous, or numpy's type has no TensorRT counterpart.
        TypeError: Neither a type nor an array.
    """

    __slots__ = ("_count", "_dtype", "_elements", "_owner", "_ptr")

    def __init__(
        self,
        type: DataType | np.ndarray[Any, Any] = DataType.FLOAT,
        ptr: int | None = None,
        count: int | None = None,
        *,
        a: np.ndarray[Any, Any] | None = None,
    ) -> None:
        source = type if a is None else a
        self._owner: object = None  # what keeps the memory alive
        self._elements: torch.Tensor | None = None  # the memory, where it is a GPU's
        if isinstance(source, np.ndarray):
            if ptr is not None or count is not None:
                raise TypeError("Weights takes an array, or a type with a pointer and a count")
            self._adopt(source)
            return
        if not isinstance(source, DataType):
            raise TypeError(f"Weights takes a numpy array or a DataType, not {source.__class__.__name__}")
        if (ptr is None) != (count is None):
            raise TypeError("Weights takes a pointer together with a count")
        self._dtype = source
        self._ptr = 0 if ptr is None else int(ptr)
        self._count = 0 if count is None else int(count)
        if self._count < 0 or (self._count > 0 and self._ptr == 0):
            raise ValueError(f"{self._count} elements at address {self._ptr:#x} are not weights")

    @classmethod
    def _on_device(cls, type: DataType, tensor: torch.Tensor) -> Weights:
        """Weights that lie on a GPU, in a contiguous tensor, which is kept alive; not a part of TensorRT's API."""
        made = cls(type)
        made._ptr, made._count, made._elements = tensor.data_ptr(), tensor.numel(), tensor.reshape(-1)
        return made

    def _leave_device(self, twins: Mapping[int, torch.Tensor]) -> None:
        """Refers to the same elements on the host from now on: in one of these tensors, by address, or in a copy."""
        assert self._elements is not None
        twin = twins.get(self._ptr)
        is_whole = twin is not None and twin.dtype is self._elements.dtype and twin.numel() == self._elements.numel()
        elements = twin.reshape(-1) if twin is not None and is_whole and twin.is_contiguous() else self._elements.cpu()
        self._ptr, self._elements = elements.data_ptr(), elements

    def _adopt(self, array: np.ndarray[Any, Any]) -> None:
        dtype = FROM_NUMPY.get(array.dtype)
        if dtype is None:
            raise ValueError(f"numpy type {array.dtype} has no TensorRT counterpart")
        if not array.flags.c_contiguous:
            raise ValueError("weights must be C-contiguous: use numpy.ascontiguousarray")
        self._dtype = dtype
        self._count = array.size
        self._ptr = array.ctypes.data if array.size else 0
        self._owner = array

    @property
    def dtype(self) -> DataType:
        """The element type."""
        return self._dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._count

    @property
    def nbytes(self) -> int:
        """Size of the memory in bytes."""
        return storage_bytes(self._dtype, self._count)

    def __len__(self) -> int:
        return self._count

    def numpy(self) -> Any:
        """The elements as a flat numpy view, or these weights where numpy has no such type."""
        try:
            kind = nptype(self._dtype)
        except TypeError:
            return self
        if not self._count:
            return np.empty(0, dtype=kind)
        if isinstance(self._owner, np.ndarray):
            return self._owner.reshape(-1)
        if self._elements is not None:
            return self._elements.cpu().numpy()
        return np.frombuffer(self._buffer(), dtype=kind)

    def _buffer(self) -> Any:
        """The memory as a ctypes array that keeps these weights alive."""
        memory = (ctypes.c_uint8 * self.nbytes).from_address(self._ptr)
        memory._owner = self  # type: ignore[attr-defined]  # ctypes arrays take attributes
        return memory

    def _tensor(self) -> torch.Tensor:
        """The memory as a flat tensor without a copy; 4-bit types as packed bytes."""
        dtype = storage_dtype(self._dtype)
        if self._elements is not None:
            return self._elements
        if not self._count:
            return torch.empty(0, dtype=dtype, device="cpu")
        return torch.frombuffer(memoryview(self._buffer()), dtype=torch.uint8).view(dtype)

    @property
    def _key(self) -> tuple[int, DataType, int]:
        """What makes two weights the same to a network: address, type and count."""
        return (self._ptr, self._dtype, self._count)

    def __repr__(self) -> str:
        return f"Weights({self._dtype}, {self._count} elements)"


def as_weights(value: Any, what: str = "weights") -> Weights:
    """The weights of anything that the bindings take for weights: `Weights`, an array or a scalar.

    Raises:
        TypeError: Something else.
        ValueError: An array that weights cannot refer to.
    """
    if isinstance(value, Weights):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return Weights(np.asarray(value))
    raise TypeError(f"{what} must be Weights or a numpy array, not {type(value).__name__}")


def optional_weights(value: Any, dtype: DataType, what: str) -> Weights:
    """Weights that may be absent: ``None`` becomes empty weights of the given type."""
    return Weights(dtype) if value is None else as_weights(value, what)
