"""Variance, norms and log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.checks import computable, fixed_number
from trt_converters.context import (
    ConversionContext,
    Operand,
    combine,
    dtype_of,
    is_size_number,
    normalize_axes,
    rank_of,
)
from trt_converters.layers import binary, cast, logical_not, reduce, select, squeeze, unary
from trt_converters.layers.elementary import widen
from trt_converters.layers.extremum import extremum
from trt_converters.registry import converter

aten = torch.ops.aten

Axes = Sequence[int] | int | None
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


@converter(aten.var.correction, checks=computable)
def aten_var(ctx: ConversionContext, self: Operand, dim: Axes, correction: Number | None, keepdim: bool) -> Any:
    """var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"""
    return _narrow(ctx, _variance(ctx, self, dim, correction, keepdim))


@converter(aten.var.dim, checks=computable)
def aten_var_dim(ctx: ConversionContext, self: Operand, dim: Axes, unbiased: bool, keepdim: bool) -> Any:
    """var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor"""
    return _narrow(ctx, _variance(ctx, self, dim, int(unbiased), keepdim))


@converter(aten.var.default, checks=computable)
def aten_var_default(ctx: ConversionContext, self: Operand, unbiased: bool) -> Any:
    """var(Tensor self, bool unbiased=True) -> Tensor"""
    return _narrow(ctx, _variance(ctx, self, None, int(unbiased), False))


@converter(aten.std.correction, checks=computable)
def aten_std(ctx: ConversionContext, self: Operand, dim: Axes, correction: Number | None, keepdim: bool) -> Any:
    """std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"""
    return _narrow(ctx, unary(ctx, "SQRT", _variance(ctx, self, dim, correction, keepdim)))


@converter(aten.std.dim, checks=computable)
def aten_std_dim(ctx: ConversionContext, self: Operand, dim: Axes, unbiased: bool, keepdim: bool) -> Any:
    """std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor"""
    return _narrow(ctx, unary(ctx, "SQRT", _variance(ctx, self, dim, int(unbiased), keepdim)))


@converter(aten.std.default, checks=computable)
def aten_std_default(ctx: ConversionContext, self: Operand, unbiased: bool) -> Any:
    """std(Tensor self, bool unbiased=True) -> Tensor"""
    return _narrow(ctx, unary(ctx, "SQRT", _variance(ctx, self, None, int(unbiased), False)))


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


@converter(aten.norm.Scalar, checks=(computable, fixed_number("p")))
def aten_norm(ctx: ConversionContext, self: Operand, p: Number) -> Any:
    """norm.Scalar(Tensor self, Scalar p=2) -> Tensor"""
    return _norm(ctx, self, p, None, False)


@converter(aten.norm.ScalarOpt_dim, checks=(computable, fixed_number("p")))
def aten_norm_dim(ctx: ConversionContext, self: Operand, p: Number | None, dim: Axes, keepdim: bool) -> Any:
    """norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor"""
    return _norm(ctx, self, 2 if p is None else p, dim, keepdim)


@converter(aten.norm.ScalarOpt_dim_dtype, checks=(computable, fixed_number("p")))
def aten_norm_dim_dtype(
    ctx: ConversionContext, self: Operand, p: Number | None, dim: Axes, keepdim: bool, dtype: torch.dtype
) -> Any:
    """norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor"""
    return _norm(ctx, self, 2 if p is None else p, dim, keepdim)


@converter(aten.norm.ScalarOpt_dtype, checks=(computable, fixed_number("p")))
def aten_norm_dtype(ctx: ConversionContext, self: Operand, p: Number | None, dtype: torch.dtype) -> Any:
    """norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor"""
    return _norm(ctx, self, 2 if p is None else p, None, False)


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
