"""Adaptive pooling: window i of an axis is [floor(i * in / out), ceil((i + 1) * in / out))."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.aten.linear import matrix_multiply
from trt_converters.aten.pooling import NUMBERS, added, first_maximum, pool, scaled
from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, Size, dtype_of, rank_of, shape_of
from trt_converters.layers import (
    binary,
    cast,
    combine,
    dimension,
    gather,
    index_range,
    permute,
    reduce,
    reshape,
    unsqueeze,
)
from trt_converters.layers.extremum import extremum
from trt_converters.layers.movement import is_same_size
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS

aten = torch.ops.aten


def known_output_size(call: Call) -> Verdict | None:
    """Refuses symbolic output sizes, except those that leave an axis as it is."""
    wanted = call["output_size"]
    extents = call.tensor("self").shape[-len(wanted) :]
    for size, extent in zip(wanted, extents, strict=True):
        if not isinstance(size, int) and not is_same_size(size, extent):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"output_size {size} is symbolic")
    return None


def window_bounds(ctx: ConversionContext, extent: Size, windows: int) -> tuple[Any, Any]:
    """Returns where each window starts and ends: two values of shape (windows,), int64."""
    number = torch.arange(windows)
    if isinstance(extent, int):
        return number * extent // windows, -((number + 1) * extent // -windows)
    divisor = torch.tensor([windows])
    starts = binary(ctx, "FLOOR_DIV", binary(ctx, "PROD", extent, number), divisor)
    # ceil(a / b) = floor((a + b - 1) / b)
    rounded = binary(ctx, "SUM", binary(ctx, "PROD", extent, number + 1), torch.tensor([windows - 1]))
    return starts, binary(ctx, "FLOOR_DIV", rounded, divisor)


def averaging_matrix(ctx: ConversionContext, extent: Size, windows: int) -> Any:
    """Returns the matrix whose column i averages window i: shape (extent, windows), float32."""
    starts, ends = window_bounds(ctx, extent, windows)
    if isinstance(starts, torch.Tensor):
        positions = torch.arange(extent).unsqueeze(1)
        inside = (positions >= starts) & (positions < ends)
        return inside.float() / (ends - starts)
    positions = unsqueeze(ctx, index_range(ctx, extent), (1,))
    starts, ends = unsqueeze(ctx, starts, (0,)), unsqueeze(ctx, ends, (0,))
    before = binary(ctx, "LESS", binary(ctx, "SUB", starts, torch.ones((), dtype=torch.int64)), positions)
    inside = cast(ctx, binary(ctx, "AND", before, binary(ctx, "LESS", positions, ends)), torch.float32)
    return binary(ctx, "DIV", inside, cast(ctx, binary(ctx, "SUB", ends, starts), torch.float32), "average")


def adaptive_average(ctx: ConversionContext, value: Operand, output_size: Sequence[Size]) -> Any:
    """Averages windows of the last axes.

    One reduction where every window is the whole axis, one pooling layer where windows are equal, and otherwise one
    matrix product per axis.
    """
    rank, spatial = rank_of(value), len(output_size)
    first = rank - spatial
    extents = shape_of(value)[first:]
    if all(isinstance(size, int) and size == 1 for size in output_size):
        return reduce(ctx, "AVG", value, range(first, rank), True)
    if all(isinstance(size, int) and e > 0 and e % size == 0 for e, size in zip(extents, output_size, strict=True)):
        window = [extent // int(size) for extent, size in zip(extents, output_size, strict=True)]
        return pool(ctx, "AVERAGE", value, window, window, (0,) * spatial, False)
    dtype = dtype_of(value)
    value = cast(ctx, value, torch.float32)
    for axis, size in enumerate(output_size, start=first):
        extent = dimension(ctx, value, axis)
        if not isinstance(size, int) or extent == size:
            continue
        order = list(range(rank))
        order[axis], order[-1] = order[-1], order[axis]
        matrix = averaging_matrix(ctx, extent, size)
        value = permute(ctx, matrix_multiply(ctx, permute(ctx, value, order), matrix), order)
    return cast(ctx, value, dtype)


def adaptive_windows(ctx: ConversionContext, value: Operand, axis: int, windows: int) -> tuple[Any, Any]:
    """Replaces an axis by windows and their elements; short windows repeat their last element.

    Returns:
        The value with the axis replaced by two, and the positions on the axis: (windows, elements), int64.
    """
    extent = dimension(ctx, value, axis)
    starts, ends = window_bounds(ctx, extent, windows)
    longest = combine(ctx, "add", [combine(ctx, "ceildiv", [extent, windows]), 1])
    offsets = index_range(ctx, longest)
    if isinstance(starts, torch.Tensor):
        positions = torch.minimum(starts.unsqueeze(1) + offsets, ends.unsqueeze(1) - 1)
    else:
        last = binary(ctx, "SUB", ends, torch.ones((), dtype=torch.int64))
        reached = binary(ctx, "SUM", unsqueeze(ctx, starts, (1,)), unsqueeze(ctx, offsets, (0,)))
        positions = binary(ctx, "MIN", reached, unsqueeze(ctx, last, (1,)))
    return gather(ctx, value, positions, axis), positions


@converter(
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    checks=(dtypes("self", FLOATS), known_output_size),
)
def aten_adaptive_avg_pool2d(ctx: ConversionContext, self: Operand, output_size: Sequence[Size]) -> Any:
    """adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"""
    return adaptive_average(ctx, self, output_size)


def window_rank(call: Call) -> Verdict | None:
    """Refuses windows whose elements need more axes than tensors have."""
    rank = call.tensor("self").dim() + len(call["output_size"])
    if rank <= 8:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"its windows need {rank} dimensions, at most 8 exist")


@converter(
    aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
    checks=(dtypes("self", NUMBERS), known_output_size, window_rank),
)
def aten_adaptive_max_pool2d(ctx: ConversionContext, self: Operand, output_size: Sequence[int]) -> tuple[Any, Any]:
    """adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"""
    assert ctx.call is not None
    spatial = len(output_size)
    first = rank_of(self) - spatial
    windows, positions, scale = self, None, 1
    for axis in reversed(range(spatial)):
        extent = dimension(ctx, self, first + axis)
        windows, along = adaptive_windows(ctx, windows, first + axis, output_size[axis])
        shape: list[Any] = [1] * (2 * spatial)
        shape[2 * axis], shape[2 * axis + 1] = output_size[axis], dimension(ctx, windows, first + axis + 1)
        along = scaled(ctx, reshape(ctx, along, shape), scale)
        positions = along if positions is None else added(ctx, positions, along)
        scale = combine(ctx, "mul", [scale, extent])
    axes = [first + 2 * axis + 1 for axis in range(spatial)]
    if not ctx.call.uses(1):
        return extremum(ctx, windows, axes, False, True), None
    return first_maximum(ctx, windows, positions, axes)
