"""Rounding, signs and absolute values."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.checks import argument, computable
from trt_converters.context import ConversionContext, Operand, dtype_of
from trt_converters.layers import binary, cast, select, unary
from trt_converters.layers.elementary import has_sign, negate, truncate, widen
from trt_converters.registry import converter

aten = torch.ops.aten


def _round(ctx: ConversionContext, operation: str, value: Operand) -> Any:
    return unary(ctx, operation, value) if dtype_of(value).is_floating_point else value


@converter(aten.abs.default, checks=computable)
def aten_abs(ctx: ConversionContext, self: Operand) -> Any:
    """abs(Tensor self) -> Tensor"""
    return self if dtype_of(self) is torch.bool else unary(ctx, "ABS", self)


@converter(aten.neg.default, checks=computable)
def aten_neg(ctx: ConversionContext, self: Operand) -> Any:
    """neg(Tensor self) -> Tensor"""
    return negate(ctx, self)


@converter(aten.positive.default)
def aten_positive(ctx: ConversionContext, self: Operand) -> Any:
    """positive(Tensor(a) self) -> Tensor(a)"""
    return self


@converter(aten.sign.default, aten.sgn.default, checks=computable)
def aten_sign(ctx: ConversionContext, self: Operand) -> Any:
    """sign(Tensor self) -> Tensor"""
    if dtype_of(self) is torch.bool:
        return self
    if not dtype_of(self).is_floating_point:
        return unary(ctx, "SIGN", self)
    # the layer's sign of NaN is not specified, PyTorch's is 0
    positive = cast(ctx, binary(ctx, "GREATER", self, 0.0), dtype_of(self))
    return binary(ctx, "SUB", positive, cast(ctx, binary(ctx, "LESS", self, 0.0), dtype_of(self)))


@converter(aten.signbit.default, checks=computable)
def aten_signbit(ctx: ConversionContext, self: Operand) -> Any:
    """signbit(Tensor self) -> Tensor"""
    if dtype_of(self) is torch.bool:
        self = cast(ctx, self, torch.int32)
    return has_sign(ctx, self)


@converter(aten.ceil.default, checks=computable)
def aten_ceil(ctx: ConversionContext, self: Operand) -> Any:
    """ceil(Tensor self) -> Tensor"""
    return _round(ctx, "CEIL", self)


@converter(aten.floor.default, checks=computable)
def aten_floor(ctx: ConversionContext, self: Operand) -> Any:
    """floor(Tensor self) -> Tensor"""
    return _round(ctx, "FLOOR", self)


@converter(aten.round.default, checks=computable)
def aten_round(ctx: ConversionContext, self: Operand) -> Any:
    """round(Tensor self) -> Tensor"""
    return _round(ctx, "ROUND", self)


@converter(
    aten.round.decimals,
    checks=(computable, argument("decimals", lambda decimals: abs(decimals) <= 30, "10 ** decimals is not finite")),
)
def aten_round_decimals(ctx: ConversionContext, self: Operand, decimals: int) -> Any:
    """round.decimals(Tensor self, *, int decimals) -> Tensor"""
    dtype = dtype_of(self)
    if decimals == 0 or not dtype.is_floating_point:
        return _round(ctx, "ROUND", self)
    scale = 10.0 ** abs(decimals)
    self = widen(ctx, self)  # 65504 * 10 is no half number
    forward, back = ("PROD", "DIV") if decimals > 0 else ("DIV", "PROD")
    rounded = unary(ctx, "ROUND", binary(ctx, forward, self, scale))
    return cast(ctx, binary(ctx, back, rounded, scale), dtype)


@converter(aten.trunc.default, aten.fix.default, checks=computable)
def aten_trunc(ctx: ConversionContext, self: Operand) -> Any:
    """trunc(Tensor self) -> Tensor"""
    return truncate(ctx, self) if dtype_of(self).is_floating_point else self


@converter(aten.frac.default, checks=computable)
def aten_frac(ctx: ConversionContext, self: Operand) -> Any:
    """frac(Tensor self) -> Tensor"""
    return binary(ctx, "SUB", self, truncate(ctx, self))


@converter(aten.angle.default, checks=computable)
def aten_angle(ctx: ConversionContext, self: Operand) -> Any:
    """angle(Tensor self) -> Tensor"""
    dtype = ctx.result_dtype
    value = cast(ctx, self, dtype)
    real = select(
        ctx, binary(ctx, "LESS", value, 0.0), torch.tensor(torch.pi, dtype=dtype), torch.zeros((), dtype=dtype)
    )
    return select(ctx, unary(ctx, "ISNAN", value), value, real)
