"""The quantized types: what they can hold, and how numbers become theirs."""

from __future__ import annotations

from typing import Final

import torch

from trt_portable.enums import DataType

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
