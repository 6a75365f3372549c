"""Extremes along an axis together with where they stand."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, normalize_axis, rank_of
from trt_converters.layers import reshape, squeeze, unsqueeze
from trt_converters.layers.extremum import extremum, first_extremum
from trt_converters.registry import converter

aten = torch.ops.aten


def _along(ctx: ConversionContext, value: Operand, dim: int, keep: bool, largest: bool) -> tuple[Any, Any]:
    rank = rank_of(value)
    axis = normalize_axis(dim, rank)
    assert ctx.call is not None
    if not ctx.call.uses(1) and isinstance(ctx.result, (tuple, list)):
        return extremum(ctx, value, (axis,) if rank else (), keep, largest), None
    if rank == 0:
        values, indices = first_extremum(ctx, unsqueeze(ctx, value, (0,)), 0, 1, largest)
        return squeeze(ctx, values, (0,)), squeeze(ctx, indices, (0,))
    values, indices = first_extremum(ctx, value, axis, ctx.symbolic_shape("self")[axis], largest)
    removed = () if keep else (axis,)
    return squeeze(ctx, values, removed), squeeze(ctx, indices, removed)


@converter(aten.max.dim, checks=computable)
def aten_max_dim(ctx: ConversionContext, self: Operand, dim: int, keepdim: bool) -> Any:
    """max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _along(ctx, self, dim, keepdim, True)


@converter(aten.min.dim, checks=computable)
def aten_min_dim(ctx: ConversionContext, self: Operand, dim: int, keepdim: bool) -> Any:
    """min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    return _along(ctx, self, dim, keepdim, False)


def _place(ctx: ConversionContext, value: Operand, dim: int | None, keep: bool, largest: bool) -> Any:
    if dim is not None:
        return _along(ctx, value, dim, keep, largest)[1]
    flat = reshape(ctx, value, [-1])
    shape = ctx.symbolic_shape("self")
    count: Any = 1
    for extent in shape:
        count = count * extent
    _, indices = first_extremum(ctx, flat, 0, count, largest)
    return reshape(ctx, indices, ctx.result_shape)


@converter(aten.argmax.default, checks=computable)
def aten_argmax(ctx: ConversionContext, self: Operand, dim: int | None, keepdim: bool) -> Any:
    """argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _place(ctx, self, dim, keepdim, True)


@converter(aten.argmin.default, checks=computable)
def aten_argmin(ctx: ConversionContext, self: Operand, dim: int | None, keepdim: bool) -> Any:
    """argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"""
    return _place(ctx, self, dim, keepdim, False)
