"""Larger and smaller operands, clamping between bounds, and extremes along an axis with where they stand."""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.checks import argument, computable
from trt_converters.context import (
    ConversionContext,
    Operand,
    dtype_of,
    is_exactly,
    is_size_number,
    normalize_axis,
    rank_of,
)
from trt_converters.layers import activation, binary, cast, promote, reshape, select, squeeze, unsqueeze
from trt_converters.layers.elementary import is_nan, maximum, minimum
from trt_converters.layers.extremum import extremum, first_extremum
from trt_converters.registry import converter

aten = torch.ops.aten

Number = float | int


def clip(ctx: ConversionContext, value: Operand, low: Number | None, high: Number | None) -> Any:
    """Limits a value of float or integer type to [low, high]; NaN stays NaN, and `high` wins where low > high."""
    dtype = dtype_of(value)
    if dtype.is_floating_point and _is_clip_layer(dtype, low, high):
        # the layer turns NaN into a bound
        return select(ctx, is_nan(ctx, value), value, activation(ctx, "CLIP", value, low, high))
    if low is not None and not is_exactly(low, -math.inf):
        bound = cast(ctx, low, dtype)
        value = select(ctx, binary(ctx, "LESS", value, bound), bound, value)
    if high is not None and not is_exactly(high, math.inf):
        bound = cast(ctx, high, dtype)
        value = select(ctx, binary(ctx, "GREATER", value, bound), bound, value)
    return value


def _is_clip_layer(dtype: torch.dtype, low: Number | None, high: Number | None) -> bool:
    """Whether the bounds are attributes of a layer: two finite numbers in order, of which no size decides."""
    if low is None or high is None or is_size_number(low) or is_size_number(high):
        return False
    limit = torch.finfo(dtype).max
    return -limit <= low <= high <= limit


def _larger(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    return binary(ctx, "OR", left, right) if ctx.result_dtype is torch.bool else maximum(ctx, left, right)


def _smaller(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    return binary(ctx, "AND", left, right) if ctx.result_dtype is torch.bool else minimum(ctx, left, right)


@converter(aten.maximum.default, aten.max.other, checks=computable)
def aten_maximum(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """maximum(Tensor self, Tensor other) -> Tensor"""
    return _larger(ctx, self, other)


@converter(aten.minimum.default, aten.min.other, checks=computable)
def aten_minimum(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """minimum(Tensor self, Tensor other) -> Tensor"""
    return _smaller(ctx, self, other)


@converter(aten.fmax.default, checks=computable)
def aten_fmax(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """fmax(Tensor self, Tensor other) -> Tensor"""
    return _without_nan(ctx, self, other, "GREATER", "MAX", "OR")


@converter(aten.fmin.default, checks=computable)
def aten_fmin(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """fmin(Tensor self, Tensor other) -> Tensor"""
    return _without_nan(ctx, self, other, "LESS", "MIN", "AND")


def _without_nan(ctx: ConversionContext, left: Operand, right: Operand, comparison: str, layer: str, logic: str) -> Any:
    """Returns the operand that wins the comparison; the other one where either is NaN."""
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    if ctx.result_dtype is torch.bool:
        return binary(ctx, logic, left, right)
    if not ctx.result_dtype.is_floating_point:
        return binary(ctx, layer, left, right)
    # a NaN on the left loses the comparison, one on the right is left out by the second term
    wins = binary(ctx, "OR", binary(ctx, comparison, left, right), is_nan(ctx, right))
    return select(ctx, wins, left, right)


def _is_not_nan(bound: Any) -> bool:
    return not (isinstance(bound, float) and math.isnan(bound))


_BOUNDS = tuple(argument(name, _is_not_nan, "a bound that is NaN") for name in ("min", "max"))


@converter(aten.clamp.default, aten.clip.default, checks=(computable, *_BOUNDS))
def aten_clamp(ctx: ConversionContext, self: Operand, min: Number | None, max: Number | None) -> Any:
    """clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"""
    return clip(ctx, cast(ctx, self, ctx.result_dtype), min, max)


@converter(aten.clamp_min.default, checks=(computable, _BOUNDS[0]))
def aten_clamp_min(ctx: ConversionContext, self: Operand, min: Number) -> Any:
    """clamp_min(Tensor self, Scalar min) -> Tensor"""
    return clip(ctx, cast(ctx, self, ctx.result_dtype), min, None)


@converter(aten.clamp_max.default, checks=(computable, _BOUNDS[1]))
def aten_clamp_max(ctx: ConversionContext, self: Operand, max: Number) -> Any:
    """clamp_max(Tensor self, Scalar max) -> Tensor"""
    return clip(ctx, cast(ctx, self, ctx.result_dtype), None, max)


@converter(aten.clamp.Tensor, aten.clip.Tensor, checks=computable)
def aten_clamp_tensor(ctx: ConversionContext, self: Operand, min: Operand | None, max: Operand | None) -> Any:
    """clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor"""
    value = cast(ctx, self, ctx.result_dtype)
    if min is not None:
        value = _larger(ctx, value, min)
    if max is not None:
        value = _smaller(ctx, value, max)
    return value


@converter(aten.clamp_min.Tensor, checks=computable)
def aten_clamp_min_tensor(ctx: ConversionContext, self: Operand, min: Operand) -> Any:
    """clamp_min.Tensor(Tensor self, Tensor min) -> Tensor"""
    return _larger(ctx, self, min)


@converter(aten.clamp_max.Tensor, checks=computable)
def aten_clamp_max_tensor(ctx: ConversionContext, self: Operand, max: Operand) -> Any:
    """clamp_max.Tensor(Tensor self, Tensor max) -> Tensor"""
    return _smaller(ctx, self, max)


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
