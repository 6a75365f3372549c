"""Choice between elements, and the special values of floats."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, dtype_of
from trt_converters.layers import binary, cast, logical_not, promote, select, unary
from trt_converters.registry import converter

aten = torch.ops.aten

Number = float | int


@converter(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, checks=computable)
def aten_where(ctx: ConversionContext, condition: Operand, self: Operand, other: Operand) -> Any:
    """where.self(Tensor condition, Tensor self, Tensor other) -> Tensor"""
    then, otherwise = promote(ctx, self, other, dtype=ctx.result_dtype)
    return select(ctx, cast(ctx, condition, torch.bool), then, otherwise)


@converter(aten.masked_fill.Scalar, aten.masked_fill.Tensor, checks=computable)
def aten_masked_fill(ctx: ConversionContext, self: Operand, mask: Operand, value: Operand) -> Any:
    """masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor"""
    return select(ctx, cast(ctx, mask, torch.bool), cast(ctx, value, dtype_of(self)), self)


def _special(ctx: ConversionContext, value: Operand, operation: str) -> Any:
    """Returns where a value is NaN or infinite; integers never are."""
    if dtype_of(value).is_floating_point:
        return unary(ctx, operation, value)
    return _nowhere(ctx, value)


def _nowhere(ctx: ConversionContext, value: Operand) -> Any:
    number = cast(ctx, value, torch.int32)
    return binary(ctx, "LESS", number, number)


@converter(aten.isnan.default, checks=computable)
def aten_isnan(ctx: ConversionContext, self: Operand) -> Any:
    """isnan(Tensor self) -> Tensor"""
    return _special(ctx, self, "ISNAN")


@converter(aten.isinf.default, checks=computable)
def aten_isinf(ctx: ConversionContext, self: Operand) -> Any:
    """isinf(Tensor self) -> Tensor"""
    return _special(ctx, self, "ISINF")


@converter(aten.isfinite.default, checks=computable)
def aten_isfinite(ctx: ConversionContext, self: Operand) -> Any:
    """isfinite(Tensor self) -> Tensor"""
    if not dtype_of(self).is_floating_point:
        return logical_not(ctx, _nowhere(ctx, self))
    return logical_not(ctx, binary(ctx, "OR", unary(ctx, "ISNAN", self), unary(ctx, "ISINF", self)))


@converter(aten.isposinf.default, checks=computable)
def aten_isposinf(ctx: ConversionContext, self: Operand) -> Any:
    """isposinf(Tensor self) -> Tensor"""
    if not dtype_of(self).is_floating_point:
        return _nowhere(ctx, self)
    return binary(ctx, "EQUAL", self, float("inf"))


@converter(aten.isneginf.default, checks=computable)
def aten_isneginf(ctx: ConversionContext, self: Operand) -> Any:
    """isneginf(Tensor self) -> Tensor"""
    if not dtype_of(self).is_floating_point:
        return _nowhere(ctx, self)
    return binary(ctx, "EQUAL", self, float("-inf"))


@converter(aten.nan_to_num.default, checks=computable)
def aten_nan_to_num(
    ctx: ConversionContext, self: Operand, nan: Number | None, posinf: Number | None, neginf: Number | None
) -> Any:
    """nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor"""
    dtype = dtype_of(self)
    if not dtype.is_floating_point:
        return self
    limits = torch.finfo(dtype)
    replacements = (
        (unary(ctx, "ISNAN", self), 0.0 if nan is None else nan),
        (binary(ctx, "EQUAL", self, float("inf")), limits.max if posinf is None else posinf),
        (binary(ctx, "EQUAL", self, float("-inf")), limits.min if neginf is None else neginf),
    )
    value = self
    for condition, number in replacements:
        value = select(ctx, condition, cast(ctx, number, dtype), value)
    return value


@converter(aten.heaviside.default, checks=computable)
def aten_heaviside(ctx: ConversionContext, self: Operand, values: Operand) -> Any:
    """heaviside(Tensor self, Tensor values) -> Tensor"""
    dtype = ctx.result_dtype
    value, middle = promote(ctx, self, values, dtype=torch.int32 if dtype is torch.bool else dtype)
    zero, one = torch.zeros((), dtype=dtype_of(value)), torch.ones((), dtype=dtype_of(value))
    step = select(ctx, binary(ctx, "GREATER", value, 0), one, zero)
    return cast(ctx, select(ctx, binary(ctx, "EQUAL", value, 0), middle, step), dtype)
