"""Running sums, products and extremes along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.aten.arithmetic import log_add_exp
from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, dtype_of, normalize_axis, rank_of
from trt_converters.layers import binary, cast, expand, greater_equal, less_equal, logical_not, select
from trt_converters.layers.elementary import is_nan, widen
from trt_converters.layers.extremum import positions
from trt_converters.layers.scan import running_sum, scan
from trt_converters.registry import converter

aten = torch.ops.aten


@converter(aten.cumsum.default, checks=computable)
def aten_cumsum(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    value = widen(ctx, cast(ctx, self, ctx.result_dtype))
    if rank_of(value) == 0:
        return cast(ctx, value, ctx.result_dtype)
    if ctx.result_dtype is torch.bool:
        total = running_sum(ctx, cast(ctx, value, torch.int32), normalize_axis(dim, rank_of(value)))
    else:
        total = running_sum(ctx, value, normalize_axis(dim, rank_of(value)))
    return cast(ctx, total, ctx.result_dtype)


@converter(aten.cumprod.default, checks=computable)
def aten_cumprod(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"""
    value = widen(ctx, cast(ctx, self, ctx.result_dtype))
    operation = "AND" if ctx.result_dtype is torch.bool else "PROD"
    if rank_of(value) == 0:
        return cast(ctx, value, ctx.result_dtype)

    def multiply(earlier: Sequence[Any], later: Sequence[Any]) -> Sequence[Any]:
        return [binary(ctx, operation, earlier[0], later[0])]

    axis = normalize_axis(dim, rank_of(value))
    (found,) = scan(ctx, [value], axis, ctx.symbolic_shape("self")[axis], multiply)
    return cast(ctx, found, ctx.result_dtype)


@converter(aten.logcumsumexp.default, checks=computable)
def aten_logcumsumexp(ctx: ConversionContext, self: Operand, dim: int) -> Any:
    """logcumsumexp(Tensor self, int dim) -> Tensor"""
    if rank_of(self) == 0:
        return self
    axis = normalize_axis(dim, rank_of(self))

    def add(earlier: Sequence[Any], later: Sequence[Any]) -> Sequence[Any]:
        return [log_add_exp(ctx, earlier[0], later[0])]

    (found,) = scan(ctx, [widen(ctx, self)], axis, ctx.symbolic_shape("self")[axis], add)
    return cast(ctx, found, ctx.result_dtype)


@converter(aten.cummax.default, checks=computable)
def aten_cummax(ctx: ConversionContext, self: Operand, dim: int) -> Any:
    """cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _running_extremum(ctx, self, dim, True)


@converter(aten.cummin.default, checks=computable)
def aten_cummin(ctx: ConversionContext, self: Operand, dim: int) -> Any:
    """cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"""
    return _running_extremum(ctx, self, dim, False)


def _running_extremum(ctx: ConversionContext, value: Operand, dim: int, largest: bool) -> tuple[Any, Any]:
    """Returns running extremes and the places of the latest elements that equal them; a NaN stays from where it is."""
    dtype = dtype_of(value)
    if rank_of(value) == 0:
        return value, torch.zeros((), dtype=torch.int64)
    if dtype is torch.bool:
        value = cast(ctx, value, torch.int32)
    axis = normalize_axis(dim, rank_of(value))
    size = ctx.symbolic_shape("self")[axis]
    not_beaten = greater_equal if largest else less_equal

    def pick(earlier: Sequence[Any], later: Sequence[Any]) -> Sequence[Any]:
        wins = not_beaten(ctx, later[0], earlier[0])
        if dtype.is_floating_point:
            wins = binary(ctx, "AND", wins, logical_not(ctx, is_nan(ctx, earlier[0])))
            wins = binary(ctx, "OR", wins, is_nan(ctx, later[0]))
        return [select(ctx, wins, one, other) for one, other in zip(later, earlier, strict=True)]

    places = expand(ctx, positions(ctx, size, axis, rank_of(value)), ctx.result_shape)
    found, where = scan(ctx, [value, places], axis, size, pick)
    return cast(ctx, found, dtype), where
