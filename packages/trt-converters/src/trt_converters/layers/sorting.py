"""Sorting along an axis so that equal elements keep their order, which a top-k layer alone does not promise."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, Size, dtype_of
from trt_converters.layers.casts import cast
from trt_converters.layers.elementary import is_nan
from trt_converters.layers.gathering import gather, gather_elements, index_range
from trt_converters.layers.pointwise import binary, logical_not, select
from trt_converters.layers.reductions import topk
from trt_converters.layers.scan import running_sum

TOPK_LIMIT = 3840
"""Most elements that a top-k layer returns."""


def stable_sort(ctx: ConversionContext, value: Operand, axis: int, size: Size, descending: bool) -> tuple[Any, Any]:
    """Sorts along an axis; NaN counts as the largest, as in PyTorch.

    A first top-k orders the values, and leaves equal ones in any order. Numbering the groups of equal values gives
    every element a key of its own (group, then place), and a second top-k orders those.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        axis: A non-negative axis of at most `TOPK_LIMIT` elements.
        size: Its extent.
        descending: Whether the largest element comes first.

    Returns:
        The sorted values, and the int64 places they came from.
    """
    dtype = dtype_of(value)
    if dtype is torch.bool:
        values, indices = stable_sort(ctx, cast(ctx, value, torch.int32), axis, size, descending)
        return cast(ctx, values, torch.bool), indices
    ordered = value
    if dtype.is_floating_point:
        ordered = select(ctx, is_nan(ctx, value), torch.tensor(float("inf"), dtype=dtype), value)
    values, places = topk(ctx, ordered, size, axis, descending)
    group = _group_numbers(ctx, values, axis, size)
    if dtype.is_floating_point:
        # NaN went with infinity, and comes after it: two groups for each
        nan_here = gather_elements(ctx, cast(ctx, is_nan(ctx, value), torch.int32), places, axis)
        last = cast(ctx, nan_here, torch.int64)
        if descending:
            last = binary(ctx, "SUB", 1, last)
        group = binary(ctx, "SUM", binary(ctx, "PROD", group, 2), last)
    key = binary(ctx, "SUM", binary(ctx, "PROD", group, _size_operand(ctx, size)), places)
    _, order = topk(ctx, key, size, axis, False)
    indices = gather_elements(ctx, places, order, axis)
    return gather_elements(ctx, value, indices, axis), indices


def _group_numbers(ctx: ConversionContext, values: Operand, axis: int, size: Size) -> Any:
    """Numbers the groups of equal elements along an axis that is sorted, from 0, int64."""
    places = index_range(ctx, size)
    if isinstance(places, torch.Tensor):
        before = (places - 1).clamp(min=0)
    else:
        before = binary(ctx, "MAX", binary(ctx, "SUB", places, 1), 0)
    changed = logical_not(ctx, binary(ctx, "EQUAL", values, gather(ctx, values, before, axis)))
    return running_sum(ctx, cast(ctx, changed, torch.int64), axis)


def _size_operand(ctx: ConversionContext, size: Size) -> Any:
    known = ctx.size(size)
    return torch.tensor(known) if isinstance(known, int) else known
