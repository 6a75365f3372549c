"""Largest and smallest elements along axes, where they stand, and positions along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, Size, dtype_of, rank_of
from trt_converters.layers.casts import cast
from trt_converters.layers.elementary import is_nan
from trt_converters.layers.gathering import index_range
from trt_converters.layers.movement import reshape
from trt_converters.layers.pointwise import binary, select
from trt_converters.layers.reductions import reduce

_FAR = torch.iinfo(torch.int64).max


def positions(ctx: ConversionContext, size: Size, axis: int, rank: int) -> Any:
    """Returns 0, 1, ... along one axis of a tensor whose other extents are 1, int64."""
    return reshape(ctx, index_range(ctx, size), [size if index == axis else 1 for index in range(rank)])


def any_along(ctx: ConversionContext, condition: Operand, axes: Sequence[int], keep: bool) -> Any:
    """Returns where a bool value holds anywhere along axes; reductions take no bools."""
    if rank_of(condition) == 0:
        return condition
    return cast(ctx, reduce(ctx, "MAX", cast(ctx, condition, torch.int32), axes, keep), torch.bool)


def extremum(ctx: ConversionContext, value: Operand, axes: Sequence[int], keep: bool, largest: bool) -> Any:
    """Returns the largest (or smallest) element along axes; NaN where there is one, which no layer promises."""
    operation = "MAX" if largest else "MIN"
    dtype = dtype_of(value)
    if dtype is torch.bool:
        return cast(ctx, reduce(ctx, operation, cast(ctx, value, torch.int32), axes, keep), torch.bool)
    found = reduce(ctx, operation, value, axes, keep)
    if not dtype.is_floating_point or rank_of(value) == 0:
        return found
    poisoned = any_along(ctx, is_nan(ctx, value), axes, keep)
    return select(ctx, poisoned, torch.tensor(float("nan"), dtype=dtype), found)


def first_extremum(ctx: ConversionContext, value: Operand, axis: int, size: Size, largest: bool) -> tuple[Any, Any]:
    """Returns the largest (or smallest) element along an axis, and where it stands first; both keep the axis.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1; a NaN counts as the extremum.
        axis: A non-negative axis.
        size: Its extent.
        largest: Which end.

    Returns:
        The values, and int64 indices. A top-k layer would leave it open which of equal elements it points to.
    """
    dtype = dtype_of(value)
    if dtype is torch.bool:
        values, indices = first_extremum(ctx, cast(ctx, value, torch.int32), axis, size, largest)
        return cast(ctx, values, torch.bool), indices
    found = extremum(ctx, value, (axis,), True, largest)
    hits = binary(ctx, "EQUAL", value, found)
    if dtype.is_floating_point:
        # where the extremum is NaN nothing equals it, and the NaNs are the hits
        hits = binary(ctx, "OR", hits, is_nan(ctx, value))
        hits = select(ctx, is_nan(ctx, found), is_nan(ctx, value), hits)
    places = positions(ctx, size, axis, rank_of(value))
    return found, reduce(ctx, "MIN", select(ctx, hits, places, torch.tensor(_FAR)), (axis,), True)
