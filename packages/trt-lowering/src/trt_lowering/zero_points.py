"""Weights with zero points in operators that have none: what is stored stays small, and a shift follows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trt_core.quantization import dequantize


def dequantize_shifted(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, dtype: torch.dtype, bits: int, axis: int
) -> torch.Tensor:
    """Returns `(values - zero) * scale` as `values * scale - zero * scale`, of which the first is a dequantization.

    Both are computed in float32, whatever the result is rounded to. Unsigned values are stored as signed ones, which
    moves them and their zero points by half of the range.

    Args:
        values: int8, or uint8, whose lowest half becomes the negative numbers.
        scale: float32, in one of the shapes that `trt::dequantize` takes.
        zero: As many elements as the scale has, in their order; any type.
        dtype: Type of the result.
        bits: 8, or 4 where the values are that few.
        axis: As `trt::dequantize` takes it.
    """
    shift = 0
    if values.dtype is torch.uint8:
        shift = 2 ** (bits - 1)
        values = (values.to(torch.int32) - shift).to(torch.int8)
    wide: torch.Tensor = dequantize(values, scale, torch.float32, bits, axis)
    offset = (zero.reshape(scale.shape).to(torch.float32) - shift) * scale
    if scale.dim() == 1:
        offset = offset.reshape([-1 if index == axis else 1 for index in range(values.dim())])
    if scale.dim() < 2:
        return (wide - offset).to(dtype)
    parts, blocks = _in_blocks(values.shape, scale.shape)
    return (wide.reshape(parts) - offset.reshape(blocks)).reshape(values.shape).to(dtype)


def _in_blocks(shape: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the shapes in which the elements of blocks have an axis of their own, and what is one for each block."""
    parts: list[int] = []
    blocks: list[int] = []
    for extent, count in zip(shape, counts, strict=True):
        if count in (1, extent):
            parts.append(extent)
            blocks.append(count)
        else:
            parts += [count, extent // count]
            blocks += [count, 1]
    return parts, blocks
