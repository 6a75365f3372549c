"""Raw addresses as tensors: no copy, about two microseconds, CPU and CUDA alike; and bytes that are handed out.

A DLPack capsule is the public door through which PyTorch adopts foreign memory. The descriptor behind
the capsule has no deleter and PyTorch copies extents and address out of it, so a descriptor can be
refilled for the next address. Memory stays the caller's: it must outlive the tensor.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final, TypeAlias

import torch
from torch.utils.dlpack import from_dlpack

from trt_portable.dims import MAX_RANK
from trt_portable.enums import DataType
from trt_portable.pybind import ContextManaged

CUDA_ALIGNMENT: Final = 256


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _ElementType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _ElementType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_DEVICE_KINDS: Final = {"cpu": 1, "cuda": 2}
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
# Types that DLPack gained only lately travel as bytes and are viewed as themselves afterwards.
_ELEMENT_TYPES: Final[dict[torch.dtype, tuple[int, int]]] = {
    torch.float32: (_FLOAT, 32),
    torch.float16: (_FLOAT, 16),
    torch.float64: (_FLOAT, 64),
    torch.bfloat16: (_BFLOAT, 16),
    torch.int8: (_INT, 8),
    torch.int16: (_INT, 16),
    torch.int32: (_INT, 32),
    torch.int64: (_INT, 64),
    torch.uint8: (_UINT, 8),
    torch.bool: (_BOOL, 8),
}
_BYTE: Final = (_UINT, 8)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_hold_forever = ctypes.pythonapi.Py_IncRef
_hold_forever.restype = None
_hold_forever.argtypes = [ctypes.py_object]
_Descriptor: TypeAlias = tuple[_ManagedTensor, Any]


def _new_descriptor() -> _Descriptor:
    managed, extents = _ManagedTensor(), (ctypes.c_int64 * MAX_RANK)()
    managed.tensor.shape = ctypes.addressof(extents)
    managed.tensor.dtype.lanes = 1
    _hold_forever(managed)
    return managed, extents


# A tensor reads its descriptor once more when it dies, so descriptors are reused and never freed: not with this module
# either, which goes before the last tensors do when a process ends.
_idle: Final[deque[_Descriptor]] = deque()


class AddressWindow:
    """Presents memory of one type on one device as dense row-major tensors; for one thread at a time.

    Args:
        dtype: Any dtype of one byte or more per element.
        device: ``cpu`` or ``cuda:n``; must be where the addresses lie.
    """

    __slots__ = ("_address", "_descriptor", "_dtype", "_elements", "_extents", "_is_native", "_shape", "_tensor")

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        try:
            self._descriptor = _idle.pop()
        except IndexError:
            self._descriptor = _new_descriptor()
        managed, self._extents = self._descriptor
        self._address = ctypes.addressof(managed)
        self._tensor = managed.tensor
        self._tensor.device.kind = _DEVICE_KINDS[device.type]
        self._tensor.device.index = device.index or 0
        self._is_native = dtype in _ELEMENT_TYPES
        self._tensor.dtype.code, self._tensor.dtype.bits = _ELEMENT_TYPES.get(dtype, _BYTE)
        self._dtype = dtype
        self._shape: Sequence[int] = ()
        self._elements = 1
        self._tensor.rank = 0

    def __del__(self, idle: deque[_Descriptor] = _idle) -> None:
        idle.append(self._descriptor)

    def at(self, address: int, shape: Sequence[int]) -> torch.Tensor:
        """The memory at an address, without copying it or taking ownership.

        Args:
            address: First byte; may be 0 when the tensor is empty.
            shape: At most 8 extents.

        Raises:
            ValueError: More than 8 extents, or a null address for a tensor that has elements.
        """
        if shape != self._shape:
            rank = len(shape)
            if rank > MAX_RANK:
                raise ValueError(f"a tensor has at most {MAX_RANK} dimensions, not {rank}")
            self._extents[:rank] = list(shape)
            self._tensor.rank = rank
            self._shape = shape
            self._elements = math.prod(shape)
        if not address and self._elements:
            raise ValueError(f"null address for a tensor of shape {tuple(shape)}")
        self._tensor.data = address
        tensor: torch.Tensor = from_dlpack(_new_capsule(self._address, b"dltensor", None))
        return tensor if self._is_native else tensor.view(self._dtype)


def wrap_address(address: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Presents memory as a dense row-major tensor, without copying it or taking ownership.

    Args:
        address: First byte; may be 0 when the tensor is empty.
        shape: At most 8 extents.
        dtype: Any dtype of one byte or more per element.
        device: ``cpu`` or ``cuda:n``; must be where the address lies.

    Raises:
        ValueError: More than 8 extents, or a null address for a tensor that has elements.
    """
    return AddressWindow(dtype, device).at(address, shape)


def is_aligned(address: int, device: torch.device) -> bool:
    """Whether an address may be bound: CUDA needs 256 bytes as in TensorRT, CPU memory anything."""
    return device.type != "cuda" or address % CUDA_ALIGNMENT == 0


class IHostMemory(ContextManaged, mmap.mmap):
    """A block of host memory, such as a serialized engine.

    It is a map because, before Python 3.12, only built-in types can export their memory: ``memoryview(host_memory)`` is
    a view of these very bytes. Large content lies in a file without a name, in the folder for temporary files, so that
    the system can give its memory to others and read it again; what is written to the memory never reaches the file.
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
        return torch.frombuffer(memoryview(self), dtype=torch.uint8)


def zeros(num_bytes: int) -> IHostMemory:
    """Memory of a size, at least 1 byte.

    Raises:
        MemoryError: There is not so much.
    """
    private: dict[str, int] = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        return IHostMemory(-1, num_bytes, **private)
    except OSError as error:  # a map says so in this way
        raise MemoryError(f"no room for {num_bytes:,} bytes") from error


def memory_of(content: bytes) -> IHostMemory:
    """Memory that holds bytes, at least one."""
    memory = zeros(len(content))
    memory[:] = content
    return memory


def memory_in_file(write: Callable[[BinaryIO], None]) -> IHostMemory | None:
    """Memory with content that is written to a file; None where there is no room for one, or no folder.

    Writing takes less time than copying to fresh memory, which is made page by page.

    Args:
        write: Writes the content, at least 1 byte, to an open, seekable file.
    """
    try:
        with tempfile.TemporaryFile() as file:
            write(file)
            file.flush()
            return IHostMemory(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError:
        return None


def filled_in_file(num_bytes: int, fill: Callable[[IHostMemory], None]) -> IHostMemory | None:
    """As `memory_in_file`, of a known size, for content that several threads bring from elsewhere.

    Args:
        num_bytes: Its size, at least 1.
        fill: Writes the content to memory, of which it keeps nothing.
    """

    def write(file: BinaryIO) -> None:
        # what the disk has no room for is found here: a map of it would end the process
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        fill(IHostMemory(file.fileno(), num_bytes))

    return memory_in_file(write) if hasattr(os, "posix_fallocate") else None
