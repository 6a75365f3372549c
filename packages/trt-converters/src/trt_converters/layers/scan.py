"""Inclusive scans: running values of an associative operation along an axis, in log2(extent) steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, Size, rank_of
from trt_converters.layers.extremum import positions
from trt_converters.layers.gathering import gather, index_range
from trt_converters.layers.pointwise import binary, select
from trt_core import trt

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
