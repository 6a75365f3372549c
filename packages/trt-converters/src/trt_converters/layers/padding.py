"""Padding and cropping: slices that start before the first element and end after the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_converters.byte_tensor import as_bytes
from trt_converters.context import ConversionContext, Operand, Size, combine, dimension, dtype_of, rank_of
from trt_converters.layers.casts import cast
from trt_converters.layers.movement import concatenate, expand, slice_tensor

_CARRIERS: Final = {torch.bfloat16: torch.float32, torch.uint8: torch.float32}
"""Types that a sampling slice does not take, and types that hold all their values."""


def crop_and_pad(
    ctx: ConversionContext, value: Operand, before: Sequence[Size], after: Sequence[Size], fill: Any
) -> Any:
    """Adds a constant around a value; negative amounts crop.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        before, after: Elements added on each axis; known ones where the value is int64.
        fill: A number, which may vary with a size, converted to the value's type as PyTorch does.
    """
    rank = rank_of(value)
    if all(map(_is_nothing, (*before, *after))):
        return value
    dtype = dtype_of(value)
    constant = cast(ctx, fill, dtype)
    if all(isinstance(amount, int) and amount <= 0 for amount in (*before, *after)):
        return _sample(ctx, value, before, after, "STRICT_BOUNDS", None)
    if dtype is torch.int64:  # no sampling slice, and no wider type to go through
        cropped = crop_and_pad(ctx, value, [min(b, 0) for b in before], [min(a, 0) for a in after], fill)
        for axis in range(rank):
            cropped = _join_constant(ctx, cropped, axis, max(before[axis], 0), max(after[axis], 0), constant)
        return cropped
    carrier = _CARRIERS.get(dtype, dtype)
    padded = _sample(ctx, cast(ctx, value, carrier), before, after, "FILL", cast(ctx, constant, carrier))
    return _restored(ctx, padded, dtype)


def pad_by_sampling(
    ctx: ConversionContext, value: Operand, before: Sequence[Size], after: Sequence[Size], mode: str
) -> Any:
    """Extends a value by its own elements.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        before, after: Elements added on each axis, known ones for WRAP; negative amounts crop.
        mode: Name of a `trt.SampleMode`: REFLECT, CLAMP or WRAP.
    """
    dtype = dtype_of(value)
    if mode == "WRAP":
        return _wrap(ctx, value, before, after)
    carrier = _CARRIERS.get(dtype, dtype)
    return _restored(ctx, _sample(ctx, cast(ctx, value, carrier), before, after, mode, None), dtype)


def _restored(ctx: ConversionContext, carried: Operand, dtype: torch.dtype) -> Any:
    return as_bytes(carried) if dtype is torch.uint8 else cast(ctx, carried, dtype)


def _is_nothing(amount: Size) -> bool:
    return isinstance(amount, int) and amount == 0


def _sample(
    ctx: ConversionContext, value: Operand, before: Sequence[Size], after: Sequence[Size], mode: str, fill: Any
) -> Any:
    starts = [-amount for amount in before]
    sizes: list[Any] = []
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        unchanged = _is_nothing(low) and _is_nothing(high)
        sizes.append(None if unchanged else combine(ctx, "add", [dimension(ctx, value, axis), low, high]))
    return slice_tensor(ctx, value, starts, sizes, None, mode, fill)


def _wrap(ctx: ConversionContext, value: Operand, before: Sequence[int], after: Sequence[int]) -> Any:
    starts: list[Size] = []
    sizes: list[Any] = []
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        extent = dimension(ctx, value, axis)
        # indices below 0 are one round further: start from the end of the axis
        starts.append(combine(ctx, "add", [extent, -low]) if low > 0 else -low)
        sizes.append(combine(ctx, "add", [extent, low + high]) if low or high else None)
    return slice_tensor(ctx, value, starts, sizes, None, "WRAP")


def _join_constant(
    ctx: ConversionContext, value: Operand, axis: int, before: int, after: int, constant: Operand
) -> Any:
    blocks = []
    for amount in (before, after):
        shape = [amount if i == axis else dimension(ctx, value, i) for i in range(rank_of(value))]
        blocks.append([expand(ctx, constant, shape)] if amount else [])
    return concatenate(ctx, [*blocks[0], value, *blocks[1]], axis)


def sampling_takes(dtype: torch.dtype) -> bool:
    """Whether padding by a value's own elements can carry the type without loss."""
    return dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.bool, torch.uint8)
