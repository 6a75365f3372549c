"""Powers."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.checks import computable, never
from trt_converters.context import ConversionContext, Operand, dtype_of
from trt_converters.layers import binary, cast, promote, select, unary
from trt_converters.layers.elementary import has_sign, negate, widen
from trt_converters.registry import converter
from trt_core import Reason

aten = torch.ops.aten

Number = float | int

_EXPONENT_BITS = 6


@converter(aten.pow.Tensor_Scalar, checks=computable)
def aten_pow_scalar(ctx: ConversionContext, self: Operand, exponent: Number) -> Any:
    """pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"""
    dtype = ctx.result_dtype
    base = cast(ctx, self, dtype)
    if not dtype.is_floating_point:
        return _integer_power(ctx, base, int(exponent))
    if exponent == 0:
        # 1 whatever the base, NaN included: POW promises that, multiplication by 0 would not
        return binary(ctx, "POW", base, 0.0)
    if exponent in (1, 2, 3):
        return _integer_power(ctx, base, int(exponent))
    if exponent == -1:
        return unary(ctx, "RECIP", base)
    if exponent == 0.5:
        return unary(ctx, "SQRT", base)
    if exponent == -0.5:  # PyTorch's kernel is that of rsqrt, of which zeros and negative numbers know
        return cast(ctx, unary(ctx, "RECIP", unary(ctx, "SQRT", widen(ctx, base))), dtype)
    return _float_power(ctx, base, torch.tensor(exponent, dtype=torch.float32))


def _float_power(ctx: ConversionContext, base: Operand, exponent: Operand) -> Any:
    power = binary(ctx, "POW", widen(ctx, base), widen(ctx, exponent))
    return cast(ctx, power, ctx.result_dtype)


def _integer_power(ctx: ConversionContext, base: Operand, exponent: int) -> Any:
    """Returns a power by repeated squaring, exact for integers."""
    result = None
    while exponent:
        if exponent & 1:
            result = base if result is None else binary(ctx, "PROD", result, base)
        exponent >>= 1
        if exponent:
            base = binary(ctx, "PROD", base, base)
    if result is None:
        one = torch.ones((), dtype=dtype_of(base))
        return select(ctx, binary(ctx, "EQUAL", base, base), one, one)
    return result


@converter(aten.pow.Tensor_Tensor, aten.pow.Scalar, checks=computable)
def aten_pow(ctx: ConversionContext, self: Operand, exponent: Operand) -> Any:
    """pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor"""
    base, power = promote(ctx, self, exponent, dtype=ctx.result_dtype)
    if ctx.result_dtype.is_floating_point:
        return _float_power(ctx, base, power)
    return _integer_tensor_power(ctx, base, power)


def _integer_tensor_power(ctx: ConversionContext, base: Operand, exponent: Operand) -> Any:
    """Powers of integers by repeated squaring over the bits of the exponent.

    Exponents beyond 63 matter for even bases, of which nothing is left within 64 bits, and for 1 and -1, as every
    other power has left the range of int64 by then. They are replaced by 62 and 63, which have the parity that decides
    for -1. Negative exponents give the integer part of the inverse: 1, -1, or 0.
    """
    one = torch.ones((), dtype=ctx.result_dtype)
    zero = torch.zeros((), dtype=ctx.result_dtype)
    size = unary(ctx, "ABS", exponent)
    beyond = binary(ctx, "GREATER", size, 63)
    parity = binary(ctx, "SUB", size, binary(ctx, "PROD", binary(ctx, "FLOOR_DIV", size, 2), 2))
    size = select(ctx, beyond, binary(ctx, "SUM", parity, 62), size)
    result: Any = None
    square, rest = base, size
    for bit in range(_EXPONENT_BITS):
        half = binary(ctx, "FLOOR_DIV", rest, 2)
        odd = binary(ctx, "GREATER", rest, binary(ctx, "PROD", half, 2))
        factor = select(ctx, odd, square, one)
        result = factor if result is None else binary(ctx, "PROD", result, factor)
        rest = half
        if bit < _EXPONENT_BITS - 1:
            square = binary(ctx, "PROD", square, square)
    half = binary(ctx, "FLOOR_DIV", base, 2)
    even = binary(ctx, "EQUAL", binary(ctx, "PROD", half, 2), base)
    result = select(ctx, binary(ctx, "AND", beyond, even), zero, result)
    unit = binary(ctx, "EQUAL", unary(ctx, "ABS", base), 1)
    inverse = select(ctx, unit, result, zero)
    return select(ctx, binary(ctx, "LESS", exponent, 0), inverse, result)


_NO_DOUBLE = never(Reason.UNSUPPORTED_DTYPE, "float_power computes in float64, which TensorRT does not have")


@converter(aten.float_power.Tensor_Tensor, aten.float_power.Tensor_Scalar, aten.float_power.Scalar, checks=_NO_DOUBLE)
def aten_float_power(ctx: ConversionContext, self: Operand, exponent: Operand) -> Any:
    """float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor"""
    raise ctx.fail("float_power computes in float64")


@converter(aten.ldexp.Tensor, checks=computable)
def aten_ldexp(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """ldexp.Tensor(Tensor self, Tensor other) -> Tensor"""
    value, exponent = (widen(ctx, operand) for operand in promote(ctx, self, other, dtype=ctx.result_dtype))
    return cast(ctx, binary(ctx, "PROD", value, binary(ctx, "POW", 2.0, exponent)), ctx.result_dtype)


@converter(aten.copysign.Tensor, aten.copysign.Scalar, checks=computable)
def aten_copysign(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """copysign.Tensor(Tensor self, Tensor other) -> Tensor"""
    value, sign = promote(ctx, self, other, dtype=ctx.result_dtype)
    size = unary(ctx, "ABS", value)
    return select(ctx, has_sign(ctx, sign), negate(ctx, size), size)
