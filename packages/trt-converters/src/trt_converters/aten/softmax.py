"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, normalize_axis, rank_of
from trt_converters.layers import binary, cast, logical_not, reduce, select, softmax, unary
from trt_converters.layers.elementary import widen
from trt_converters.layers.extremum import any_along
from trt_converters.registry import converter

aten = torch.ops.aten


@converter(aten._softmax.default, checks=computable)
def aten__softmax(ctx: ConversionContext, self: Operand, dim: int, half_to_float: bool) -> Any:
    """_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return _softmax(ctx, self, dim)


@converter(aten.softmax.int, checks=computable)
def aten_softmax(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    return _softmax(ctx, self, dim)


@converter(aten._safe_softmax.default, checks=computable)
def aten__safe_softmax(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    value = cast(ctx, self, ctx.result_dtype)
    axis = normalize_axis(dim, rank_of(value))
    present = logical_not(ctx, binary(ctx, "EQUAL", value, float("-inf")))
    some = any_along(ctx, present, (axis,), True)
    return select(ctx, some, softmax(ctx, value, axis), torch.zeros((), dtype=ctx.result_dtype))


def _softmax(ctx: ConversionContext, value: Operand, dim: int) -> Any:
    return softmax(ctx, cast(ctx, value, ctx.result_dtype), normalize_axis(dim, rank_of(value)))


@converter(aten._log_softmax.default, checks=computable)
def aten__log_softmax(ctx: ConversionContext, self: Operand, dim: int, half_to_float: bool) -> Any:
    """_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return _log_softmax(ctx, self, dim)


@converter(aten.log_softmax.int, checks=computable)
def aten_log_softmax(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    return _log_softmax(ctx, self, dim)


def _log_softmax(ctx: ConversionContext, value: Operand, dim: int) -> Any:
    """Returns x - max - log(sum(exp(x - max))): the logarithm of a softmax would be -inf where that underflows."""
    wide = widen(ctx, cast(ctx, value, ctx.result_dtype))
    if rank_of(wide) == 0:
        return cast(ctx, binary(ctx, "SUB", wide, wide), ctx.result_dtype)
    axes = (normalize_axis(dim, rank_of(wide)),)
    shifted = binary(ctx, "SUB", wide, reduce(ctx, "MAX", wide, axes, True))
    total = reduce(ctx, "SUM", unary(ctx, "EXP", shifted), axes, True)
    result = binary(ctx, "SUB", shifted, unary(ctx, "LOG", total))
    return cast(ctx, result, ctx.result_dtype)
