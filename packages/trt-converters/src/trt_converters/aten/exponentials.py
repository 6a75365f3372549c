"""Exponentials, logarithms and roots."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, dtype_of
from trt_converters.layers import activation, binary, cast, unary
from trt_converters.layers.elementary import expm1, log1p, maximum, minimum, widen
from trt_converters.registry import converter

aten = torch.ops.aten


def as_result(ctx: ConversionContext, value: Operand) -> Any:
    """Casts an operand to the type of the node's result: integers become floats."""
    return cast(ctx, value, ctx.result_dtype)


def in_float32(ctx: ConversionContext, value: Operand, function: Callable[[Any], Any]) -> Any:
    """Applies a function to a float value, in float32 when it is a half type, and returns the node's result type."""
    return cast(ctx, function(widen(ctx, as_result(ctx, value))), ctx.result_dtype)


@converter(aten.exp.default, checks=computable)
def aten_exp(ctx: ConversionContext, self: Operand) -> Any:
    """exp(Tensor self) -> Tensor"""
    return unary(ctx, "EXP", as_result(ctx, self))


@converter(aten.exp2.default, checks=computable)
def aten_exp2(ctx: ConversionContext, self: Operand) -> Any:
    """exp2(Tensor self) -> Tensor"""
    return binary(ctx, "POW", 2.0, as_result(ctx, self))


@converter(aten.expm1.default, checks=computable)
def aten_expm1(ctx: ConversionContext, self: Operand) -> Any:
    """expm1(Tensor self) -> Tensor"""
    return in_float32(ctx, self, lambda value: expm1(ctx, value))


@converter(aten.log.default, checks=computable)
def aten_log(ctx: ConversionContext, self: Operand) -> Any:
    """log(Tensor self) -> Tensor"""
    return unary(ctx, "LOG", as_result(ctx, self))


@converter(aten.log1p.default, checks=computable)
def aten_log1p(ctx: ConversionContext, self: Operand) -> Any:
    """log1p(Tensor self) -> Tensor"""
    return in_float32(ctx, self, lambda value: log1p(ctx, value))


@converter(aten.log2.default, checks=computable)
def aten_log2(ctx: ConversionContext, self: Operand) -> Any:
    """log2(Tensor self) -> Tensor"""
    return in_float32(ctx, self, lambda value: binary(ctx, "PROD", unary(ctx, "LOG", value), 1 / math.log(2)))


@converter(aten.log10.default, checks=computable)
def aten_log10(ctx: ConversionContext, self: Operand) -> Any:
    """log10(Tensor self) -> Tensor"""
    return in_float32(ctx, self, lambda value: binary(ctx, "PROD", unary(ctx, "LOG", value), 1 / math.log(10)))


@converter(aten.sqrt.default, checks=computable)
def aten_sqrt(ctx: ConversionContext, self: Operand) -> Any:
    """sqrt(Tensor self) -> Tensor"""
    return unary(ctx, "SQRT", as_result(ctx, self))


@converter(aten.rsqrt.default, checks=computable)
def aten_rsqrt(ctx: ConversionContext, self: Operand) -> Any:
    """rsqrt(Tensor self) -> Tensor"""
    return in_float32(ctx, self, lambda value: unary(ctx, "RECIP", unary(ctx, "SQRT", value)))


@converter(aten.reciprocal.default, checks=computable)
def aten_reciprocal(ctx: ConversionContext, self: Operand) -> Any:
    """reciprocal(Tensor self) -> Tensor"""
    return unary(ctx, "RECIP", as_result(ctx, self))


@converter(aten.square.default, checks=computable)
def aten_square(ctx: ConversionContext, self: Operand) -> Any:
    """square(Tensor self) -> Tensor"""
    value = as_result(ctx, self)
    return binary(ctx, "PROD", value, value)


@converter(aten.sigmoid.default, aten.special_expit.default, checks=computable)
def aten_sigmoid(ctx: ConversionContext, self: Operand) -> Any:
    """sigmoid(Tensor self) -> Tensor"""
    return activation(ctx, "SIGMOID", as_result(ctx, self))


@converter(aten.logit.default, checks=computable)
def aten_logit(ctx: ConversionContext, self: Operand, eps: float | None) -> Any:
    """logit(Tensor self, float? eps=None) -> Tensor"""

    def logit(value: Any) -> Any:
        if eps is not None:
            low, high = (cast(ctx, bound, dtype_of(value)) for bound in (eps, 1.0 - eps))
            value = minimum(ctx, maximum(ctx, value, low), high)
        return unary(ctx, "LOG", binary(ctx, "DIV", value, binary(ctx, "SUB", 1.0, value)))

    return in_float32(ctx, self, logit)
