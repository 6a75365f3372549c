"""Joining and repeating: cat, stack, repeat, tile, roll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.checks import constant
from trt_converters.context import ConversionContext, Operand, Size, normalize_axis, rank_of
from trt_converters.layers import (
    cast,
    combine,
    concatenate,
    dimension,
    expand,
    gather,
    reshape,
    slice_tensor,
    unsqueeze,
    with_rank,
)
from trt_converters.registry import converter

aten = torch.ops.aten


@converter(aten.cat.default, aten.concat.default, aten.concatenate.default)
def aten_cat(ctx: ConversionContext, tensors: Sequence[Operand], dim: int) -> Any:
    """cat(Tensor[] tensors, int dim=0) -> Tensor"""
    parts = [cast(ctx, part, ctx.result_dtype) for part in tensors]
    return concatenate(ctx, parts, normalize_axis(dim, rank_of(parts[0])))


@converter(aten.stack.default, aten._stack.default)
def aten_stack(ctx: ConversionContext, tensors: Sequence[Operand], dim: int) -> Any:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    axis = dim % (rank_of(tensors[0]) + 1)
    parts = [unsqueeze(ctx, cast(ctx, part, ctx.result_dtype), (axis,)) for part in tensors]
    return concatenate(ctx, parts, axis)


def repeated(ctx: ConversionContext, value: Operand, repeats: Sequence[Size]) -> Any:
    """Repeats a value along its axes: one slice whose indices wrap around.

    Args:
        ctx: The context.
        value: A tensor of at most as many axes as there are repeats.
        repeats: How often, per axis of the result.
    """
    value = with_rank(ctx, value, len(repeats))
    sizes = [
        None if isinstance(count, int) and count == 1 else size
        for count, size in zip(repeats, ctx.result_shape, strict=True)
    ]
    return slice_tensor(ctx, value, [0] * len(sizes), sizes, None, "WRAP")


@converter(aten.repeat.default)
def aten_repeat(ctx: ConversionContext, self: Operand, repeats: Sequence[Size]) -> Any:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    return repeated(ctx, self, repeats)


@converter(aten.tile.default)
def aten_tile(ctx: ConversionContext, self: Operand, dims: Sequence[Size]) -> Any:
    """tile(Tensor self, SymInt[] dims) -> Tensor"""
    return repeated(ctx, self, [1] * (rank_of(self) - len(dims)) + list(dims))


@converter(aten.repeat_interleave.self_int)
def aten_repeat_interleave_int(
    ctx: ConversionContext, self: Operand, repeats: Size, dim: int | None, output_size: Size | None
) -> Any:
    """repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""
    shape: list[Any] = list(ctx.symbolic_shape("self"))
    if dim is None or not shape:
        total: Any = 1
        for extent in shape:
            total = total * extent
        self, shape, dim = reshape(ctx, self, (total,)), [total], 0
    axis = normalize_axis(dim, len(shape))
    lifted = unsqueeze(ctx, self, (axis + 1,))
    sizes = [*shape[: axis + 1], repeats, *shape[axis + 1 :]]
    wide = expand(ctx, lifted, sizes, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    return reshape(ctx, wide, ctx.result_shape)


@converter(aten.repeat_interleave.self_Tensor, checks=constant("repeats"))
def aten_repeat_interleave_tensor(
    ctx: ConversionContext, self: Operand, repeats: torch.Tensor, dim: int | None, output_size: Size | None
) -> Any:
    """repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""  # noqa: E501
    if dim is None:
        self, dim = reshape(ctx, self, (-1,)), 0
    axis = normalize_axis(dim, rank_of(self))
    extent = ctx.symbolic_shape("self")[axis] if rank_of(self) == len(ctx.symbolic_shape("self")) else None
    if repeats.numel() == 1 and isinstance(extent, int):
        repeats = repeats.reshape(-1).expand(extent)
    return gather(ctx, self, torch.repeat_interleave(repeats), axis)


@converter(aten.roll.default)
def aten_roll(ctx: ConversionContext, self: Operand, shifts: Sequence[Size], dims: Sequence[int]) -> Any:
    """roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor"""
    rank, shape = rank_of(self), ctx.symbolic_shape("self")
    if rank == 0:
        return self
    if not dims:
        return reshape(ctx, _rolled(ctx, reshape(ctx, self, (-1,)), {0: shifts[0]}, None), shape)
    total: dict[int, Any] = {}
    for axis, shift in zip(dims, shifts, strict=True):
        axis = normalize_axis(axis, rank)
        total[axis] = total.get(axis, 0) + shift
    return _rolled(ctx, self, total, shape)


def _rolled(ctx: ConversionContext, value: Any, shifts: dict[int, Any], shape: Sequence[Any] | None) -> Any:
    rank = rank_of(value)
    extents = [dimension(ctx, value, axis) if shape is None else shape[axis] for axis in range(rank)]
    # element i comes from i - shift: start that many elements before the end and wrap around
    starts = [
        combine(ctx, "mod", [combine(ctx, "mul", [shifts[axis], -1]), extents[axis]]) if axis in shifts else 0
        for axis in range(rank)
    ]
    sizes = [extents[axis] if axis in shifts else None for axis in range(rank)]
    return slice_tensor(ctx, value, starts, sizes, None, "WRAP")
