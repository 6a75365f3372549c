"""Powers."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.checks import computable, never
from trt_converters.context import ConversionContext, Operand, dtype_of, is_size_number
from trt_converters.layers import binary, cast, promote, select, unary
from trt_converters.layers.elementary import has_sign, negate, widen
from trt_converters.registry import converter
from trt_core import Reason

aten = torch.ops.aten

Number = float | int


@converter(aten.pow.Tensor_Scalar, checks=computable)
def aten_pow_scalar(ctx: ConversionContext, self: Operand, exponent: Number) -> Any:
    """pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"""
    dtype = ctx.result_dtype
    base = cast(ctx, self, dtype)
    if isinstance(exponent, torch.SymInt) and not dtype.is_floating_point:
        _, _, most = ctx.ranges.bounds(exponent)
        return _integer_tensor_power(ctx, base, cast(ctx, exponent, dtype), most.bit_length())
    if is_size_number(exponent):
        return _float_power(ctx, base, cast(ctx, exponent, torch.float32))
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


def _integer_tensor_power(ctx: ConversionContext, base: Operand, exponent: Operand, bits: int | None = None) -> Any:
    """Powers of integers by repeated squaring over the bits of the exponent, which wrap around as products do.

    Modulo 2^n, powers of an odd number repeat after 2^(n-2), and nothing is left of an even one beyond n. So n-2 bits
    matter, and fewer for numbers known ahead: six for even ones, one for 1 and -1. Negative exponents give the integer
    part of the inverse: 1, -1, or 0. An exponent of which the largest is known has as many `bits` as that.
    """
    one = torch.ones((), dtype=ctx.result_dtype)
    zero = torch.zeros((), dtype=ctx.result_dtype)
    size = unary(ctx, "ABS", exponent)
    result: Any = None
    square, rest = base, size
    matter = _bits_that_matter(base, ctx.result_dtype)
    bits = matter if bits is None else min(max(bits, 1), matter)
    for bit in range(bits):
        half = binary(ctx, "FLOOR_DIV", rest, 2)
        odd = binary(ctx, "GREATER", rest, binary(ctx, "PROD", half, 2))
        factor = select(ctx, odd, square, one)
        result = factor if result is None else binary(ctx, "PROD", result, factor)
        rest = half
        if bit < bits - 1:
            square = binary(ctx, "PROD", square, square)
    half = binary(ctx, "FLOOR_DIV", base, 2)
    even = binary(ctx, "EQUAL", binary(ctx, "PROD", half, 2), base)
    result = select(ctx, binary(ctx, "AND", binary(ctx, "GREATER", size, 63), even), zero, result)
    unit = binary(ctx, "EQUAL", unary(ctx, "ABS", base), 1)
    inverse = select(ctx, unit, result, zero)
    return select(ctx, binary(ctx, "LESS", exponent, 0), inverse, result)


def _bits_that_matter(base: Operand, dtype: torch.dtype) -> int:
    """How many bits of an exponent change the power; what is beyond 63 is told from the rest where the base is even."""
    if isinstance(base, torch.Tensor):
        if bool((base.abs() == 1).all()):
            return 1
        if bool((base % 2 == 0).all()):
            return 6
    return torch.iinfo(dtype).bits - 2


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
