"""TensorRT element types and the PyTorch types that carry them.

Each type is carried by the PyTorch type of the same layout, except for the two 4-bit types, whose
elements are unpacked for computing: INT4 is carried by int8, FP4 (E2M1) by float32. Weights keep the
packed form (two elements per byte, the first in the low nibble).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch

from trt_portable.enums import DataType

CARRIERS: Final[dict[DataType, torch.dtype]] = {
    DataType.FLOAT: torch.float32,
    DataType.HALF: torch.float16,
    DataType.BF16: torch.bfloat16,
    DataType.INT8: torch.int8,
    DataType.INT32: torch.int32,
    DataType.INT64: torch.int64,
    DataType.BOOL: torch.bool,
    DataType.UINT8: torch.uint8,
    DataType.FP8: torch.float8_e4m3fn,
    DataType.E8M0: torch.float8_e8m0fnu,
    DataType.INT4: torch.int8,
    DataType.FP4: torch.float32,
}

FROM_TORCH: Final[dict[torch.dtype, DataType]] = {
    carrier: dtype for dtype, carrier in CARRIERS.items() if dtype not in (DataType.INT4, DataType.FP4)
}

PACKED: Final = frozenset({DataType.INT4, DataType.FP4})
FLOATS: Final = frozenset({DataType.FLOAT, DataType.HALF, DataType.BF16})
INDICES: Final = frozenset({DataType.INT32, DataType.INT64})
QUANTIZED: Final = frozenset({DataType.INT8, DataType.INT4, DataType.FP8, DataType.FP4})

_NUMPY: Final[dict[DataType, Any]] = {
    DataType.FLOAT: np.float32,
    DataType.HALF: np.float16,
    DataType.INT8: np.int8,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.BOOL: np.bool_,
    DataType.UINT8: np.uint8,
}
FROM_NUMPY: Final[dict[np.dtype[Any], DataType]] = {np.dtype(kind): dtype for dtype, kind in _NUMPY.items()}

# The sixteen values of E2M1, by bit pattern.
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES: Final = _E2M1 + tuple(-value for value in _E2M1)


def nptype(trt_type: DataType) -> Any:
    """The numpy scalar type of a TensorRT type.

    Raises:
        TypeError: numpy has no such type (bfloat16, fp8, int4, fp4, e8m0).
    """
    if not isinstance(trt_type, DataType):
        raise TypeError(f"nptype takes a DataType, not {type(trt_type).__name__}")
    found = _NUMPY.get(trt_type)
    if found is None:
        raise TypeError(f"Could not resolve TensorRT datatype to an equivalent numpy datatype: {trt_type}")
    return found


def volume(iterable: Any) -> int:
    """The product of extents; 1 for a scalar."""
    return math.prod(iterable)


def storage_bytes(dtype: DataType, count: int) -> int:
    """Bytes that `count` elements occupy in weights; 4-bit types share bytes."""
    return (count + 1) // 2 if dtype in PACKED else count * CARRIERS[dtype].itemsize


def storage_dtype(dtype: DataType) -> torch.dtype:
    """The PyTorch type of weights in memory: the carrier, or bytes for the packed types."""
    return torch.uint8 if dtype in PACKED else CARRIERS[dtype]


def unpack(packed: torch.Tensor, dtype: DataType, count: int) -> torch.Tensor:
    """Elements of packed 4-bit weights.

    Args:
        packed: (ceil(count / 2),), uint8; the first element of a pair in the low nibble.
        dtype: INT4 or FP4.
        count: Number of elements.

    Returns:
        (count,), int8 for INT4 and float32 for FP4.
    """
    # by arithmetic alone: a table of Python's numbers would be a copy from the host, which no CUDA graph can hold
    if dtype is DataType.INT4:
        codes = packed.view(torch.int8)
        return ((torch.stack((codes & 0xF, codes >> 4 & 0xF), -1) ^ 8) - 8).reshape(-1)[:count]
    places = torch.arange(256, device=packed.device)
    codes = torch.stack((places & 0xF, places >> 4), -1)
    size = codes & 7  # in halves there are steps of 1 up to 4, of 2 up to 8, and of 4
    halves = size + (size - 4).clamp(min=0) + 2 * (size - 6).clamp(min=0)
    pairs = (halves * (0.5 - (codes >> 3))).to(CARRIERS[dtype])
    return pairs.index_select(0, packed.to(torch.int32)).reshape(-1)[:count]


def pack(elements: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """Inverse of `unpack`.

    Args:
        elements: (count,), values of the type in its carrier.
        dtype: INT4 or FP4.

    Returns:
        (ceil(count / 2),), uint8; what pads an odd count is 0.
    """
    if dtype is DataType.INT4:
        nibbles = elements.to(torch.uint8) & 0xF
    else:
        steps = torch.tensor(_E2M1, dtype=elements.dtype, device=elements.device)
        nibbles = torch.bucketize(elements.abs(), steps).to(torch.uint8) | (
            torch.signbit(elements).to(torch.uint8) << 3
        )
    if nibbles.numel() % 2:
        nibbles = torch.cat((nibbles, nibbles.new_zeros(1)))
    return nibbles[::2] | nibbles[1::2] << 4


LARGEST: Final = {
    DataType.INT8: 127.0,
    DataType.INT4: 7.0,
    DataType.FP8: 448.0,
    DataType.FP4: 6.0,
}


def is_scratch(x: torch.Tensor) -> bool:
    """Whether a tensor that nobody else reads may be overwritten: in runs, but not where operations are recorded.

    New memory for every step of a large tensor costs several times as much as the steps themselves.
    """
    return type(x) is torch.Tensor and not x.is_meta


def round_to(x: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """The nearest values of a quantized type, saturated; ties go to the even one.

    Args:
        x: Any shape, float32, already divided by its scale; what is in it is lost (`is_scratch`).
        dtype: INT8, INT4, FP8 or FP4.

    Returns:
        The values in the carrier type: int8, int8, float8_e4m3fn, float32.
    """
    largest = LARGEST[dtype]
    if dtype in (DataType.INT8, DataType.INT4):
        if is_scratch(x):
            return x.round_().clamp_(-largest - 1, largest).to(torch.int8)
        return torch.round(x).clamp(-largest - 1, largest).to(torch.int8)
    clipped = x.clamp_(-largest, largest) if is_scratch(x) else x.clamp(-largest, largest)
    if dtype is DataType.FP8:
        return clipped.to(torch.float8_e4m3fn)
    size = clipped.abs()
    # E2M1 has steps of 1/2 below 2, of 1 below 4, of 2 above.
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(clipped / step) * step
