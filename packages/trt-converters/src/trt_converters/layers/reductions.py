"""Reductions along axes, softmax, top-k, where largest and smallest elements stand, and running values.

A scan gives running values of an associative operation, in log2(extent) steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, Size, axes_mask, dtype_of, normalize_axis, rank_of
from trt_converters.layers.casts import cast
from trt_converters.layers.gathering import gather, index_range
from trt_converters.layers.movement import permute, reshape, squeeze, unsqueeze
from trt_converters.layers.pointwise import binary, is_nan, select
from trt_core import trt
from trt_core.held_arguments import also_named


@also_named(axis="axes")
def reduce(
    ctx: ConversionContext, operation: str, value: Operand, axes: int | Sequence[int], keep: bool = False
) -> Any:
    """Adds a reduce layer; a 0-d value is returned as it is.

    Args:
        ctx: The conversion context.
        operation: Name of a `trt.ReduceOperation`, such as `"MAX"`.
        value: What is reduced.
        axes: One axis or several; negative ones count from the end.
        keep: Whether they stay, with extent 1.

    Raises:
        ConversionError: TensorRT has no such operation, or the value has no such axis.
    """
    rank = rank_of(value)
    places = [axes] if isinstance(axes, int) else list(axes)
    if rank == 0 or not places:
        return value
    if not all(-rank <= axis < rank for axis in places):
        raise ctx.fail(f"axes {places} of a value of rank {rank}")
    places = [axis % rank for axis in places]
    operator = ctx.member(trt.ReduceOperation, operation)
    layer = ctx.network.add_reduce(ctx.tensor(value), operator, axes_mask(places), keep)
    return ctx.output(layer, operation.lower())


def mean_square(ctx: ConversionContext, value: Operand, axes: Sequence[int]) -> Any:
    """Returns the mean of squares over axes, which are kept: what an RMS norm divides by."""
    return reduce(ctx, "AVG", binary(ctx, "PROD", value, value, "square"), axes, True)


def softmax(ctx: ConversionContext, value: Operand, axis: int) -> Any:
    """Adds a softmax layer over one axis; the layer is stable. A value of rank 0 gets an axis for it."""
    scalar = rank_of(value) == 0
    axis = normalize_axis(axis, max(rank_of(value), 1))
    value = unsqueeze(ctx, value, (0,)) if scalar else value
    result = ctx.output(ctx.network.add_softmax(ctx.tensor(value)), "softmax", axes=1 << axis)
    return squeeze(ctx, result, (0,)) if scalar else result


def topk(ctx: ConversionContext, value: Operand, k: Size, axis: int, largest: bool) -> tuple[Any, Any]:
    """Returns the k largest (or smallest) values along an axis, sorted, and their int64 indices; k may be symbolic.

    TensorRT looks at the last four axes only, and at tensors of rank 2 and more: the axis is moved as needed.
    """
    rank = rank_of(value)
    lifted, axis = max(2 - rank, 0), normalize_axis(axis, rank)
    value = unsqueeze(ctx, value, range(lifted))
    axis, rank = axis + lifted, rank + lifted
    order = list(range(rank))
    if axis < rank - 4:
        order[axis], order[-1] = order[-1], order[axis]
        value, axis = permute(ctx, value, order), rank - 1
    operation = trt.TopKOperation.MAX if largest else trt.TopKOperation.MIN
    count = ctx.size(k)
    static = count if isinstance(count, int) else 1
    layer = ctx.own(ctx.network.add_topk(ctx.tensor(value), operation, static, 1 << axis, trt.DataType.INT64), "topk")
    if not isinstance(count, int):
        layer.set_input(1, ctx.tensor(cast(ctx, squeeze(ctx, count, (0,)), torch.int32)))
    results = [permute(ctx, layer.get_output(index), order) for index in range(2)]
    values, indices = (squeeze(ctx, result, range(lifted)) for result in results)
    return values, indices


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


def first_extremum(
    ctx: ConversionContext, value: Operand, axis: int, size: Size, largest: bool, keep: bool
) -> tuple[Any, Any]:
    """Returns the extremum along an axis of a size, and the int64 index where it stands first; see `extremum_at`."""
    if dtype_of(value) is torch.bool:
        values, indices = first_extremum(ctx, cast(ctx, value, torch.int32), axis, size, largest, keep)
        return cast(ctx, values, torch.bool), indices
    rank = rank_of(value)
    count = ctx.size(size)  # behind all places, and no greater number than needed: some kernels compute with floats
    behind = torch.tensor(count) if isinstance(count, int) else reshape(ctx, count, [1] * rank)
    return extremum_at(ctx, value, positions(ctx, size, axis, rank), behind, (axis,), largest, keep)


def extremum_at(
    ctx: ConversionContext, value: Operand, places: Any, behind: Any, axes: Sequence[int], largest: bool, keep: bool
) -> tuple[Any, Any]:
    """Returns the largest (or smallest) element along axes, and the least of the places where it stands.

    A top-k layer would leave it open which of equal elements it points to.

    Args:
        ctx: The context.
        value: Numbers of any shape; a NaN counts as the extremum.
        places: int64, broadcast to the value.
        behind: A number that is greater than all places.
        axes: Non-negative axes.
        largest: Which end.
        keep: Whether both keep the axes.
    """
    found = extremum(ctx, value, axes, True, largest)
    hits = binary(ctx, "EQUAL", value, found)
    if dtype_of(value).is_floating_point:  # there is a NaN only where the extremum is one, which nothing equals
        hits = binary(ctx, "OR", hits, is_nan(ctx, value))
    place = reduce(ctx, "MIN", select(ctx, hits, places, behind), axes, keep)
    return found if keep else squeeze(ctx, found, axes), place


Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Joins the running values of an earlier and of a later stretch."""


def running_sum(ctx: ConversionContext, value: Operand, axis: int) -> Any:
    """Returns running sums along a non-negative axis, in the value's own type (a number type)."""
    place = ctx.tensor(torch.tensor(axis, dtype=torch.int64))
    layer = ctx.network.add_cumulative(ctx.tensor(value), place, trt.CumulativeOperation.SUM, False, False)
    return ctx.output(layer, "running_sum")


def scan(ctx: ConversionContext, values: Sequence[Operand], axis: int, size: Size, combine: Combine) -> list[Any]:
    """Runs an associative operation along an axis by doubling: each step joins stretches twice as long.

    Args:
        ctx: The context.
        values: Tensors of one shape that the operation works on together.
        axis: A non-negative axis.
        size: Its extent; when symbolic, its maximum decides how many steps there are.
        combine: The operation.
    """
    rank = rank_of(values[0])
    _, _, largest = ctx.ranges.bounds(size) if not isinstance(size, int) else (size, size, size)
    places = index_range(ctx, size)
    ramp = positions(ctx, size, axis, rank)
    current = list(values)
    step = 1
    while step < largest:
        # the first `step` elements have nothing before them; the index 0 that they take instead is not used
        if isinstance(places, torch.Tensor):
            before = (places - step).clamp(min=0)
            alone = ramp < step
        else:
            before = binary(ctx, "MAX", binary(ctx, "SUB", places, step), 0)
            alone = binary(ctx, "LESS", ramp, step)
        earlier = [gather(ctx, value, before, axis) for value in current]
        joined = combine(earlier, current)
        current = [select(ctx, alone, value, both) for value, both in zip(current, joined, strict=True)]
        step *= 2
    return current
