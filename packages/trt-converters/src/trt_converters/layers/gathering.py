"""Reading and writing at indices: gather, scatter, and the integer ranges that indices are made of."""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.byte_tensor import as_bytes
from trt_converters.context import (
    ConversionContext,
    Operand,
    Size,
    combine,
    dtype_of,
    rank_of,
    shape_of,
    shape_vector,
    sizes_of,
)
from trt_converters.layers.casts import cast, moves_bytes
from trt_converters.layers.pointwise import binary, select
from trt_core import trt


def index_range(ctx: ConversionContext, size: Size) -> Any:
    """Returns 0, 1, ..., size - 1: shape (size,), int64; a `torch.Tensor` when the size is known."""
    known = ctx.size(size)
    if isinstance(known, int):
        return torch.arange(known)
    return linear_range(ctx, [known], [1])


def linear_range(ctx: ConversionContext, sizes: list[Any], steps: list[int], start: int = 0) -> Any:
    """Returns `start + sum(steps[d] * i_d)` for every index i into a tensor of the sizes: int64, one layer."""
    known = [ctx.size(size) for size in sizes]
    if all(isinstance(size, int) for size in known):
        total = torch.full((1,) * len(known), start)
        for axis, (size, step) in enumerate(zip(known, steps, strict=True)):
            total = total + (torch.arange(size) * step).reshape([-1 if i == axis else 1 for i in range(len(known))])
        return total
    # the static extent stands until the inputs are set: alone, a ramp has one axis
    layer = ctx.network.add_fill((1,), trt.FillOperation.LINSPACE, trt.DataType.INT64)
    layer.set_input(0, ctx.tensor(shape_vector(ctx, known)))
    layer.set_input(1, ctx.tensor(torch.tensor(start)))
    layer.set_input(2, ctx.tensor(torch.tensor(steps)))
    return ctx.output(layer, "range")


def wrap_negative(ctx: ConversionContext, indices: Operand, size: Size) -> Any:
    """Makes indices that may count from the end count from the front.

    Args:
        ctx: The context.
        indices: Integers of any shape, each in [-size, size).
        size: Extent of the axis they point into.
    """
    known = ctx.size(size)
    if isinstance(indices, torch.Tensor):
        if not bool((indices < 0).any()):
            return indices
        if isinstance(known, int):
            return torch.where(indices < 0, indices + known, indices)
    extent = torch.tensor([known]) if isinstance(known, int) else known
    extent = cast(ctx, extent, dtype_of(indices))
    scalar = rank_of(indices) == 0
    if scalar:
        from trt_converters.layers.movement import squeeze

        extent = squeeze(ctx, extent, (0,))
    shifted = binary(ctx, "SUM", indices, extent, "wrap")
    return select(ctx, binary(ctx, "LESS", indices, torch.zeros((), dtype=dtype_of(indices))), shifted, indices)


@moves_bytes
def gather(ctx: ConversionContext, value: Operand, indices: Operand, axis: int) -> Any:
    """Replaces an axis by the axes of `indices`: `value[:, ..., indices, ..., :]`.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        indices: int32 or int64, any shape; not negative when the axis has a dynamic extent.
        axis: A non-negative axis of the value.
    """
    if isinstance(value, torch.Tensor) and isinstance(indices, torch.Tensor):
        picked = value.index_select(axis, indices.reshape(-1))
        return picked.reshape((*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :]))
    layer = ctx.network.add_gather(ctx.tensor(value), ctx.tensor(_as_indices(ctx, indices)), axis)
    return ctx.output(layer, "gather")


@moves_bytes
def gather_elements(ctx: ConversionContext, value: Operand, indices: Operand, axis: int) -> Any:
    """Takes `value[i, ..., indices[i, ..., k], ...]`; both have one rank, and equal extents on every other axis."""
    layer = ctx.network.add_gather_v2(ctx.tensor(value), ctx.tensor(_as_indices(ctx, indices)), trt.GatherMode.ELEMENT)
    return ctx.output(layer, "gather", axis=axis)


def scatter_elements(ctx: ConversionContext, value: Operand, indices: Operand, updates: Operand, axis: int) -> Any:
    """Returns the value with `updates` at `indices` of an axis; all have one rank. Repeated indices: any one wins."""
    return _scatter(ctx, value, indices, updates, trt.ScatterMode.ELEMENT, axis)


def scatter_nd(ctx: ConversionContext, value: Operand, indices: Operand, updates: Operand) -> Any:
    """Returns the value with slices replaced.

    Args:
        ctx: The context.
        value: Shape (D1, ..., Dr).
        indices: Shape (..., k): each row points at a slice of the value by its first k axes. Not negative.
        updates: Shape (..., D(k+1), ..., Dr).
    """
    return _scatter(ctx, value, indices, updates, trt.ScatterMode.ND, None)


def _scatter(
    ctx: ConversionContext, value: Operand, indices: Operand, updates: Operand, mode: Any, axis: int | None
) -> Any:
    dtype = dtype_of(value)
    carrier = {torch.bool: torch.int32, torch.uint8: torch.float32}.get(dtype, dtype)  # the layer has neither
    value, updates = cast(ctx, value, carrier), cast(ctx, updates, carrier)
    operands = [ctx.tensor(operand) for operand in (value, _as_indices(ctx, indices), updates)]
    result = ctx.output(ctx.network.add_scatter(*operands, mode), "scatter", axis=axis)
    return as_bytes(result) if dtype is torch.uint8 else cast(ctx, result, dtype)


def _as_indices(ctx: ConversionContext, indices: Operand) -> Any:
    if dtype_of(indices) in (torch.int32, torch.int64):
        return indices
    return cast(ctx, indices, torch.int64)


def one_hot_matrix(ctx: ConversionContext, indices: Operand, size: Size) -> Any:
    """Returns a bool matrix of shape (size, len(indices)): True where row i is index j.

    Args:
        ctx: The context.
        indices: Shape (n,), integers.
        size: Number of rows.
    """
    from trt_converters.layers.movement import unsqueeze

    rows = unsqueeze(ctx, cast(ctx, index_range(ctx, size), dtype_of(indices)), (1,))
    columns = unsqueeze(ctx, indices, (0,))
    if isinstance(rows, torch.Tensor) and isinstance(columns, torch.Tensor):
        return rows == columns
    return binary(ctx, "EQUAL", rows, columns)


def is_whole(shape: tuple[int, ...]) -> bool:
    """Whether every extent of a shape is known."""
    return all(extent >= 0 for extent in shape)


def volume(ctx: ConversionContext, value: Operand) -> Any:
    """Returns the number of elements of a value as a size."""
    shape = shape_of(value)
    if is_whole(shape):
        return math.prod(shape)
    return combine(ctx, "mul", [1, *sizes_of(ctx, value)])
