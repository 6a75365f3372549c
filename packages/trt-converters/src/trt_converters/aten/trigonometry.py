"""Trigonometric and hyperbolic functions and their inverses."""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.aten.exponentials import as_result
from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand
from trt_converters.layers import activation, binary, cast, logical_not, promote, select, unary
from trt_converters.layers.elementary import has_sign, is_nan, widen
from trt_converters.registry import converter

aten = torch.ops.aten


def _through_float32(ctx: ConversionContext, operation: str, value: Operand) -> Any:
    """Layers that not every version of TensorRT has for bfloat16 compute it in float32."""
    value = as_result(ctx, value)
    if ctx.result_dtype is torch.bfloat16:
        value = cast(ctx, value, torch.float32)
    return cast(ctx, unary(ctx, operation, value), ctx.result_dtype)


@converter(aten.sin.default, checks=computable)
def aten_sin(ctx: ConversionContext, self: Operand) -> Any:
    """sin(Tensor self) -> Tensor"""
    return unary(ctx, "SIN", as_result(ctx, self))


@converter(aten.cos.default, checks=computable)
def aten_cos(ctx: ConversionContext, self: Operand) -> Any:
    """cos(Tensor self) -> Tensor"""
    return unary(ctx, "COS", as_result(ctx, self))


@converter(aten.tan.default, checks=computable)
def aten_tan(ctx: ConversionContext, self: Operand) -> Any:
    """tan(Tensor self) -> Tensor"""
    return _through_float32(ctx, "TAN", self)


@converter(aten.sinh.default, checks=computable)
def aten_sinh(ctx: ConversionContext, self: Operand) -> Any:
    """sinh(Tensor self) -> Tensor"""
    return _through_float32(ctx, "SINH", self)


@converter(aten.cosh.default, checks=computable)
def aten_cosh(ctx: ConversionContext, self: Operand) -> Any:
    """cosh(Tensor self) -> Tensor"""
    return _through_float32(ctx, "COSH", self)


@converter(aten.tanh.default, checks=computable)
def aten_tanh(ctx: ConversionContext, self: Operand) -> Any:
    """tanh(Tensor self) -> Tensor"""
    return activation(ctx, "TANH", as_result(ctx, self))


@converter(aten.asin.default, checks=computable)
def aten_asin(ctx: ConversionContext, self: Operand) -> Any:
    """asin(Tensor self) -> Tensor"""
    return _through_float32(ctx, "ASIN", self)


@converter(aten.acos.default, checks=computable)
def aten_acos(ctx: ConversionContext, self: Operand) -> Any:
    """acos(Tensor self) -> Tensor"""
    return _through_float32(ctx, "ACOS", self)


@converter(aten.atan.default, checks=computable)
def aten_atan(ctx: ConversionContext, self: Operand) -> Any:
    """atan(Tensor self) -> Tensor"""
    return _through_float32(ctx, "ATAN", self)


@converter(aten.asinh.default, checks=computable)
def aten_asinh(ctx: ConversionContext, self: Operand) -> Any:
    """asinh(Tensor self) -> Tensor"""
    return _through_float32(ctx, "ASINH", self)


@converter(aten.acosh.default, checks=computable)
def aten_acosh(ctx: ConversionContext, self: Operand) -> Any:
    """acosh(Tensor self) -> Tensor"""
    return _through_float32(ctx, "ACOSH", self)


@converter(aten.atanh.default, checks=computable)
def aten_atanh(ctx: ConversionContext, self: Operand) -> Any:
    """atanh(Tensor self) -> Tensor"""
    return _through_float32(ctx, "ATANH", self)


@converter(aten.deg2rad.default, checks=computable)
def aten_deg2rad(ctx: ConversionContext, self: Operand) -> Any:
    """deg2rad(Tensor self) -> Tensor"""
    return binary(ctx, "PROD", as_result(ctx, self), math.pi / 180)


@converter(aten.rad2deg.default, checks=computable)
def aten_rad2deg(ctx: ConversionContext, self: Operand) -> Any:
    """rad2deg(Tensor self) -> Tensor"""
    return binary(ctx, "PROD", as_result(ctx, self), 180 / math.pi)


@converter(aten.sinc.default, checks=computable)
def aten_sinc(ctx: ConversionContext, self: Operand) -> Any:
    """sinc(Tensor self) -> Tensor"""
    angle = binary(ctx, "PROD", widen(ctx, as_result(ctx, self)), math.pi)
    ratio = binary(ctx, "DIV", unary(ctx, "SIN", angle), angle)
    one = torch.ones((), dtype=torch.float32)
    return cast(ctx, select(ctx, binary(ctx, "EQUAL", angle, 0.0), one, ratio), ctx.result_dtype)


@converter(aten.atan2.default, aten.arctan2.default, checks=computable)
def aten_atan2(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """atan2(Tensor self, Tensor other) -> Tensor"""
    y, x = promote(ctx, self, other, dtype=ctx.result_dtype)
    y, x = widen(ctx, y), widen(ctx, x)
    # inf / inf has no value: only the signs of two infinities count
    both = binary(ctx, "AND", unary(ctx, "ISINF", y), unary(ctx, "ISINF", x))
    y = select(ctx, both, unary(ctx, "SIGN", y), y)
    x = select(ctx, both, unary(ctx, "SIGN", x), x)
    # nor has 0 / 0: a zero keeps its sign, unless the other operand is NaN
    zero = binary(ctx, "AND", binary(ctx, "EQUAL", y, 0.0), logical_not(ctx, is_nan(ctx, x)))
    angle = unary(ctx, "ATAN", select(ctx, zero, y, binary(ctx, "DIV", y, x)))
    pi = torch.tensor(math.pi, dtype=torch.float32)
    turn = binary(ctx, "SUM", angle, select(ctx, has_sign(ctx, y), -pi, pi))
    return cast(ctx, select(ctx, has_sign(ctx, x), turn, angle), ctx.result_dtype)
