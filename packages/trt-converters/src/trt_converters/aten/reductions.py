"""Sums, products, means, extremes and logic over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, dtype_of, normalize_axes, rank_of
from trt_converters.layers import binary, cast, logical_not, reduce, select
from trt_converters.layers.elementary import is_nan, widen
from trt_converters.layers.extremum import any_along, extremum
from trt_converters.registry import converter

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


@converter(aten.sum.default, checks=computable)
def aten_sum(ctx: ConversionContext, self: Operand, dtype: torch.dtype | None) -> Any:
    """sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return reduce_as_result(ctx, "SUM", self, None, False)


@converter(aten.sum.dim_IntList, checks=computable)
def aten_sum_dim(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool, dtype: torch.dtype | None) -> Any:
    """sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return reduce_as_result(ctx, "SUM", self, dim, keepdim)


@converter(aten.nansum.default, checks=computable)
def aten_nansum(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool, dtype: torch.dtype | None) -> Any:
    """nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    if dtype_of(self).is_floating_point:
        self = select(ctx, is_nan(ctx, self), torch.zeros((), dtype=dtype_of(self)), self)
    return reduce_as_result(ctx, "SUM", self, dim, keepdim)


@converter(aten.prod.default, checks=computable)
def aten_prod(ctx: ConversionContext, self: Operand, dtype: torch.dtype | None) -> Any:
    """prod(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return reduce_as_result(ctx, "PROD", self, None, False)


@converter(aten.prod.dim_int, checks=computable)
def aten_prod_dim(ctx: ConversionContext, self: Operand, dim: int, keepdim: bool, dtype: torch.dtype | None) -> Any:
    """prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return reduce_as_result(ctx, "PROD", self, dim, keepdim)


@converter(aten.mean.default, checks=computable)
def aten_mean(ctx: ConversionContext, self: Operand, dtype: torch.dtype | None) -> Any:
    """mean(Tensor self, *, ScalarType? dtype=None) -> Tensor"""
    return reduce_as_result(ctx, "AVG", self, None, False)


@converter(aten.mean.dim, checks=computable)
def aten_mean_dim(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool, dtype: torch.dtype | None) -> Any:
    """mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"""
    return reduce_as_result(ctx, "AVG", self, dim, keepdim)


@converter(aten.amax.default, checks=computable)
def aten_amax(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool) -> Any:
    """amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return extremum(ctx, self, normalize_axes(dim, rank_of(self)), keepdim, True)


@converter(aten.amin.default, checks=computable)
def aten_amin(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool) -> Any:
    """amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"""
    return extremum(ctx, self, normalize_axes(dim, rank_of(self)), keepdim, False)


@converter(aten.max.default, checks=computable)
def aten_max(ctx: ConversionContext, self: Operand) -> Any:
    """max(Tensor self) -> Tensor"""
    return extremum(ctx, self, normalize_axes(None, rank_of(self)), False, True)


@converter(aten.min.default, checks=computable)
def aten_min(ctx: ConversionContext, self: Operand) -> Any:
    """min(Tensor self) -> Tensor"""
    return extremum(ctx, self, normalize_axes(None, rank_of(self)), False, False)


@converter(aten.aminmax.default, checks=computable)
def aten_aminmax(ctx: ConversionContext, self: Operand, dim: int | None, keepdim: bool) -> Any:
    """aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)"""
    axes = normalize_axes(dim, rank_of(self))
    # without dim, keepdim gives every axis back
    return extremum(ctx, self, axes, keepdim, False), extremum(ctx, self, axes, keepdim, True)


def _any(ctx: ConversionContext, value: Operand, axes: Axes, keep: bool) -> Any:
    return any_along(ctx, cast(ctx, value, torch.bool), normalize_axes(axes, rank_of(value)), keep)


@converter(aten.any.default, checks=computable)
def aten_any(ctx: ConversionContext, self: Operand) -> Any:
    """any(Tensor self) -> Tensor"""
    return _any(ctx, self, None, False)


@converter(aten.any.dim, aten.any.dims, checks=computable)
def aten_any_dim(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool) -> Any:
    """any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor"""
    if isinstance(dim, Sequence) and not dim:  # no axes, unlike None, is no reduction
        return cast(ctx, self, torch.bool)
    return _any(ctx, self, dim, keepdim)


def _all(ctx: ConversionContext, value: Operand, axes: Axes, keep: bool) -> Any:
    failed = any_along(ctx, logical_not(ctx, cast(ctx, value, torch.bool)), normalize_axes(axes, rank_of(value)), keep)
    return logical_not(ctx, failed)


@converter(aten.all.default, checks=computable)
def aten_all(ctx: ConversionContext, self: Operand) -> Any:
    """all(Tensor self) -> Tensor"""
    return _all(ctx, self, None, False)


@converter(aten.all.dim, aten.all.dims, checks=computable)
def aten_all_dim(ctx: ConversionContext, self: Operand, dim: Axes, keepdim: bool) -> Any:
    """all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor"""
    if isinstance(dim, Sequence) and not dim:
        return cast(ctx, self, torch.bool)
    return _all(ctx, self, dim, keepdim)


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
