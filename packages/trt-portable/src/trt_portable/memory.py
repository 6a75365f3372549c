"""Raw addresses as tensors: no copy, about two microseconds, CPU and CUDA alike.

A DLPack capsule is the public door through which PyTorch adopts foreign memory. The descriptor behind
the capsule has no deleter and PyTorch copies what it needs from it, so one descriptor per process is
refilled for every address. Memory stays the caller's: it must outlive the tensor.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils.dlpack import from_dlpack

MAX_RANK: Final = 8
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

_lock = threading.Lock()
_descriptor = _ManagedTensor()
_extents = (ctypes.c_int64 * MAX_RANK)()
_descriptor.tensor.shape = ctypes.addressof(_extents)
_descriptor.tensor.dtype.lanes = 1
_tensor = _descriptor.tensor
_element_type = _tensor.dtype
_device = _tensor.device
_descriptor_address: Final = ctypes.addressof(_descriptor)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


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
    rank = len(shape)
    if rank > MAX_RANK:
        raise ValueError(f"a tensor has at most {MAX_RANK} dimensions, not {rank}")
    extents: list[Any] = list(shape)
    if not address and math.prod(extents):
        raise ValueError(f"null address for a tensor of shape {tuple(shape)}")
    code, bits = _ELEMENT_TYPES.get(dtype, _BYTE)
    with _lock:
        _extents[:rank] = extents
        _tensor.data = address
        _tensor.rank = rank
        _device.kind = _DEVICE_KINDS[device.type]
        _device.index = device.index or 0
        _element_type.code = code
        _element_type.bits = bits
        tensor: torch.Tensor = from_dlpack(_new_capsule(_descriptor_address, b"dltensor", None))
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


def is_aligned(address: int, device: torch.device) -> bool:
    """Whether an address may be bound: CUDA needs 256 bytes as in TensorRT, CPU memory anything."""
    return device.type != "cuda" or address % CUDA_ALIGNMENT == 0
