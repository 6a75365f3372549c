"""Reductions, softmax and top-k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, Size, axes_mask, normalize_axis, rank_of
from trt_converters.layers.casts import cast
from trt_converters.layers.movement import squeeze, unsqueeze
from trt_converters.layers.pointwise import binary
from trt_core import trt


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
    layer = ctx.network.add_softmax(ctx.tensor(value))
    if layer is not None:
        layer.axes = 1 << axis
    result = ctx.output(layer, "softmax")
    return squeeze(ctx, result, (0,)) if scalar else result


def topk(ctx: ConversionContext, value: Operand, k: Size, axis: int, largest: bool) -> tuple[Any, Any]:
    """Returns the k largest (or smallest) values along an axis, sorted, and their int64 indices; k may be symbolic.

    TensorRT looks at the last four axes only, and at tensors of rank 2 and more: the axis is moved as needed.
    """
    from trt_converters.layers.movement import permute

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
