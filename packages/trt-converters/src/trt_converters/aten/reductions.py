"""Sums, products, means, extremes, logic and statistics over axes, and running ones along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trt_converters.aten.arithmetic import log_add_exp
from trt_converters.checks import computable, dtypes, fixed_number
from trt_converters.context import (
    ConversionContext,
    Operand,
    combine,
    dtype_of,
    is_size_number,
    normalize_axes,
    normalize_axis,
    rank_of,
)
from trt_converters.layers import (
    binary,
    cast,
    expand,
    greater_equal,
    less_equal,
    logical_not,
    reduce,
    select,
    squeeze,
    unary,
)
from trt_converters.layers.pointwise import is_nan, widen
from trt_converters.layers.reductions import any_along, extremum, positions, running_sum, scan
from trt_converters.registry import convert_each, converter
from trt_core.dtypes import FLOATS, INTEGERS

aten = torch.ops.aten

Axes = Sequence[int] | int | None


def reduce_as_result(ctx: ConversionContext, operation: str, value: Operand, axes: Axes, keep: bool) -> Any:
    """Reduces in the result's type, half types in float32: what sums up many elements must not round at each."""
    reduced_axes = normalize_axes(axes, rank_of(value))
    if ctx.result_dtype is torch.bool:  # a sum of bools is True where any is, a product where all are
        number = cast(ctx, cast(ctx, value, torch.bool), torch.int32)
        logic = "MAX" if operation == "SUM" else "MIN"
        return cast(ctx, reduce(ctx, logic, number, reduced_axes, keep), torch.bool)
    wide = widen(ctx, cast(ctx, value, ctx.result_dtype))
    return cast(ctx, reduce(ctx, operation, wide, reduced_axes, keep), ctx.result_dtype)


def _any(ctx: ConversionContext, value: Operand, axes: Axes = None, keep: bool = False) -> Any:
    value = cast(ctx, value, torch.bool)
    if isinstance(axes, Sequence) and not axes:  # no axes, unlike None, is no reduction
        return value
    return any_along(ctx, value, normalize_axes(axes, rank_of(value)), keep)


def _all(ctx: ConversionContext, value: Operand, axes: Axes = None, keep: bool = False) -> Any:
    return logical_not(ctx, _any(ctx, logical_not(ctx, cast(ctx, value, torch.bool)), axes, keep))


convert_each(
    {
        aten.amax.default: lambda ctx, self, dim, keepdim: extremum(
            ctx, self, normalize_axes(dim, rank_of(self)), keepdim, True
        ),
        aten.amin.default: lambda ctx, self, dim, keepdim: extremum(
            ctx, self, normalize_axes(dim, rank_of(self)), keepdim, False
        ),
        aten.sum.default: lambda ctx, self, dtype: reduce_as_result(ctx, "SUM", self, None, False),
        aten.sum.dim_IntList: lambda ctx, self, dim, keepdim, dtype: reduce_as_result(ctx, "SUM", self, dim, keepdim),
        aten.prod.default: lambda ctx, self, dtype: reduce_as_result(ctx, "PROD", self, None, False),
        aten.prod.dim_int: lambda ctx, self, dim, keepdim, dtype: reduce_as_result(ctx, "PROD", self, dim, keepdim),
        aten.mean.default: lambda ctx, self, dtype: reduce_as_result(ctx, "AVG", self, None, False),
        aten.mean.dim: lambda ctx, self, dim, keepdim, dtype: reduce_as_result(ctx, "AVG", self, dim, keepdim),
        aten.max.default: lambda ctx, self: extremum(ctx, self, normalize_axes(None, rank_of(self)), False, True),
        aten.min.default: lambda ctx, self: extremum(ctx, self, normalize_axes(None, rank_of(self)), False, False),
        aten.any.default: lambda ctx, self: _any(ctx, self),
        aten.all.default: lambda ctx, self: _all(ctx, self),
        (aten.any.dim, aten.any.dims): lambda ctx, self, dim, keepdim: _any(ctx, self, dim, keepdim),
        (aten.all.dim, aten.all.dims): lambda ctx, self, dim, keepdim: _all(ctx, self, dim, keepdim),
    },
    checks=computable,
)


@converter(aten.count_nonzero.default, aten.count_nonzero.dim_IntList, checks=computable)
def aten_count_nonzero(ctx: ConversionContext, self: Operand, dim: Axes) -> Any:
    """count_nonzero(Tensor self, int? dim=None) -> Tensor"""
    nonzero = cast(ctx, cast(ctx, self, torch.bool), torch.int64)
    return reduce(ctx, "SUM", nonzero, normalize_axes(dim, rank_of(self)), False)


@converter(aten.nanmean.default, checks=computable)
def aten_nanmean(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool, dtype: torch.dtype | None) -> Any:
    """nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    axes = normalize_axes(dim, rank_of(self))
    value = widen(ctx, cast(ctx, self, ctx.result_dtype))
    missing = is_nan(ctx, value)
    present = cast(ctx, logical_not(ctx, missing), dtype_of(value))
    total = reduce(ctx, "SUM", select(ctx, missing, torch.zeros((), dtype=dtype_of(value)), value), axes, keepdim)
    count = reduce(ctx, "SUM", present, axes, keepdim)
    return cast(ctx, binary(ctx, "DIV", total, count), ctx.result_dtype)


@converter(torch.ops.prims.sum.default, checks=dtypes("inp", FLOATS | INTEGERS))
def prims_sum(
    ctx: ConversionContext, inp: Operand, dims: Sequence[int] | None, output_dtype: torch.dtype | None
) -> Any:
    """sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    axes = normalize_axes(dims, rank_of(inp)) if dims is None or len(dims) else ()
    return reduce(ctx, "SUM", cast(ctx, inp, ctx.result_dtype), axes, False)


# Variance, norms and log-sum-exp ------------------------------------------------------------------------------------


Number = float | int


def _count(ctx: ConversionContext, parameter: str, axes: Sequence[int], dtype: torch.dtype) -> Any:
    """Returns how many elements axes of an argument have together: a 0-d value."""
    shape = ctx.symbolic_shape(parameter)
    total = combine(ctx, "mul", [1, *(shape[axis] for axis in axes)])
    if isinstance(total, int):
        return torch.tensor(total, dtype=dtype)
    return cast(ctx, squeeze(ctx, total, (0,)), dtype)


def _moments(ctx: ConversionContext, value: Operand, axes: Axes, correction: Number, keep: bool) -> tuple[Any, Any]:
    """Returns variance and mean over axes, in float32 for half types."""
    wide = widen(ctx, value)
    reduced = normalize_axes(axes, rank_of(value))
    mean = reduce(ctx, "AVG", wide, reduced, True)
    centered = binary(ctx, "SUB", wide, mean)
    squares = reduce(ctx, "SUM", binary(ctx, "PROD", centered, centered), reduced, keep)
    count = _count(ctx, "self", reduced, dtype_of(wide))
    freedom = _freedom(ctx, count, correction)
    variance = binary(ctx, "DIV", squares, freedom)
    return variance, mean if keep else squeeze(ctx, mean, reduced)


def _freedom(ctx: ConversionContext, count: Operand, correction: Number) -> Any:
    """Returns max(count - correction, 0), the degrees of freedom; a `torch.Tensor` when the count is known."""
    if isinstance(count, torch.Tensor) and not is_size_number(correction):
        return (count - correction).clamp(min=0)
    return binary(ctx, "MAX", binary(ctx, "SUB", count, correction), 0.0)


def _variance(ctx: ConversionContext, value: Operand, axes: Axes, correction: Number | None, keep: bool) -> Any:
    variance, _ = _moments(ctx, value, axes, 1 if correction is None else correction, keep)
    return variance


def _narrow(ctx: ConversionContext, value: Operand) -> Any:
    return cast(ctx, value, ctx.result_dtype)


convert_each(
    {
        aten.var.correction: lambda ctx, self, dim, correction, keepdim: _narrow(
            ctx, _variance(ctx, self, dim, correction, keepdim)
        ),
        aten.var.dim: lambda ctx, self, dim, unbiased, keepdim: _narrow(
            ctx, _variance(ctx, self, dim, int(unbiased), keepdim)
        ),
        aten.var.default: lambda ctx, self, unbiased: _narrow(ctx, _variance(ctx, self, None, int(unbiased), False)),
        aten.std.correction: lambda ctx, self, dim, correction, keepdim: _narrow(
            ctx, unary(ctx, "SQRT", _variance(ctx, self, dim, correction, keepdim))
        ),
        aten.std.dim: lambda ctx, self, dim, unbiased, keepdim: _narrow(
            ctx, unary(ctx, "SQRT", _variance(ctx, self, dim, int(unbiased), keepdim))
        ),
        aten.std.default: lambda ctx, self, unbiased: _narrow(
            ctx, unary(ctx, "SQRT", _variance(ctx, self, None, int(unbiased), False))
        ),
    },
    checks=computable,
)


@converter(aten.var_mean.correction, checks=computable)
def aten_var_mean(ctx: ConversionContext, self: Operand, dim: Axes, correction: Number | None, keepdim: bool) -> Any:
    """var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)"""  # noqa: E501 - the schema
    variance, mean = _moments(ctx, self, dim, 1 if correction is None else correction, keepdim)
    return _narrow(ctx, variance), _narrow(ctx, mean)


@converter(aten.std_mean.correction, checks=computable)
def aten_std_mean(ctx: ConversionContext, self: Operand, dim: Axes, correction: Number | None, keepdim: bool) -> Any:
    """std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)"""  # noqa: E501 - the schema
    variance, mean = _moments(ctx, self, dim, 1 if correction is None else correction, keepdim)
    return _narrow(ctx, unary(ctx, "SQRT", variance)), _narrow(ctx, mean)


@converter(aten.logsumexp.default, checks=computable)
def aten_logsumexp(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool) -> Any:
    """logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"""
    axes = normalize_axes(dim, rank_of(self))
    value = widen(ctx, cast(ctx, self, ctx.result_dtype))
    largest = reduce(ctx, "MAX", value, axes, True)
    # an infinite largest element shifts nothing: inf - inf has no value
    infinite = unary(ctx, "ISINF", largest)
    shift = select(ctx, infinite, torch.zeros((), dtype=dtype_of(value)), largest)
    total = reduce(ctx, "SUM", unary(ctx, "EXP", binary(ctx, "SUB", value, shift)), axes, True)
    result = binary(ctx, "SUM", unary(ctx, "LOG", total), shift)
    return _narrow(ctx, result if keepdim or rank_of(value) == 0 else squeeze(ctx, result, axes))


@converter(aten.linalg_vector_norm.default, checks=(computable, fixed_number("ord")))
def aten_linalg_vector_norm(
    ctx: ConversionContext, self: Operand, ord: Number, dim: Axes, keepdim: bool, dtype: torch.dtype | None
) -> Any:
    """linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""  # noqa: E501 - the schema
    return _norm(ctx, self, ord, dim, keepdim)


def _norm(ctx: ConversionContext, value: Operand, order: Number, axes: Axes, keep: bool) -> Any:
    """Returns the vector norm of an order over axes; half types sum up in float32."""
    wide = widen(ctx, cast(ctx, value, ctx.result_dtype))
    reduced = normalize_axes(axes, rank_of(value))
    if order == 2:
        total = reduce(ctx, "SUM", binary(ctx, "PROD", wide, wide), reduced, keep)
        return _narrow(ctx, unary(ctx, "SQRT", total))
    if order == 0:
        nonzero = logical_not(ctx, binary(ctx, "EQUAL", wide, 0.0))
        return _narrow(ctx, reduce(ctx, "SUM", cast(ctx, nonzero, dtype_of(wide)), reduced, keep))
    size = unary(ctx, "ABS", wide)
    if order == 1:
        return _narrow(ctx, reduce(ctx, "SUM", size, reduced, keep))
    if abs(order) == math.inf:
        return _narrow(ctx, extremum(ctx, size, reduced, keep, order > 0))
    total = reduce(ctx, "SUM", binary(ctx, "POW", size, float(order)), reduced, keep)
    return _narrow(ctx, binary(ctx, "POW", total, 1.0 / order))


# Running sums, products and extremes along an axis ------------------------------------------------------------------


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
    return _scanned(ctx, value, dim, lambda earlier, later: binary(ctx, operation, earlier, later))


@converter(aten.logcumsumexp.default, checks=computable)
def aten_logcumsumexp(ctx: ConversionContext, self: Operand, dim: int) -> Any:
    """logcumsumexp(Tensor self, int dim) -> Tensor"""
    return _scanned(ctx, widen(ctx, self), dim, lambda earlier, later: log_add_exp(ctx, earlier, later))


def _scanned(ctx: ConversionContext, value: Operand, dim: int, combine: Callable[[Any, Any], Any]) -> Any:
    """Combines each element with all before it along an axis."""
    if rank_of(value) == 0:
        return cast(ctx, value, ctx.result_dtype)
    axis = normalize_axis(dim, rank_of(value))
    size = ctx.symbolic_shape("self")[axis]
    (found,) = scan(ctx, [value], axis, size, lambda earlier, later: [combine(earlier[0], later[0])])
    return cast(ctx, found, ctx.result_dtype)


convert_each(
    {
        aten.cummax.default: lambda ctx, self, dim: _running_extremum(ctx, self, dim, True),
        aten.cummin.default: lambda ctx, self, dim: _running_extremum(ctx, self, dim, False),
    },
    checks=computable,
)


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
