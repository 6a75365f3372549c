"""Quotients and remainders."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.aten.arithmetic import compute_type
from trt_converters.checks import computable, never
from trt_converters.context import ConversionContext, Operand
from trt_converters.layers import binary, cast, logical_not, promote, select, unary
from trt_converters.layers.elementary import truncate, widen
from trt_converters.registry import converter
from trt_core import Reason

aten = torch.ops.aten


@converter(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar, checks=computable)
def aten_div(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """div.Tensor(Tensor self, Tensor other) -> Tensor"""
    return _quotient(ctx, self, other)


@converter(aten.div.Tensor_mode, aten.div.Scalar_mode, checks=computable)
def aten_div_mode(ctx: ConversionContext, self: Operand, other: Operand, rounding_mode: str | None) -> Any:
    """div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"""
    if rounding_mode is None:
        return _quotient(ctx, self, other)
    if rounding_mode == "floor":
        return _floor_quotient(ctx, self, other)
    if ctx.result_dtype.is_floating_point:
        return truncate(ctx, _quotient(ctx, self, other))
    return binary(ctx, "DIV", *promote(ctx, self, other, dtype=ctx.result_dtype))


@converter(aten.floor_divide.default, aten.floor_divide.Scalar, checks=computable)
def aten_floor_divide(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """floor_divide(Tensor self, Tensor other) -> Tensor"""
    return _floor_quotient(ctx, self, other)


@converter(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, checks=computable)
def aten_remainder(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """remainder.Tensor(Tensor self, Tensor other) -> Tensor"""
    left, right = promote(ctx, self, other, dtype=ctx.result_dtype)
    if not ctx.result_dtype.is_floating_point:
        return _integer_rest(ctx, left, right, "FLOOR_DIV")
    left, right = widen(ctx, left), widen(ctx, right)
    rest = _exact_rest(ctx, left, right)
    return cast(ctx, _with_sign_of_divisor(ctx, rest, right), ctx.result_dtype)


@converter(aten.fmod.Tensor, aten.fmod.Scalar, checks=computable)
def aten_fmod(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """fmod.Tensor(Tensor self, Tensor other) -> Tensor"""
    left, right = promote(ctx, self, other, dtype=ctx.result_dtype)
    if not ctx.result_dtype.is_floating_point:
        return _integer_rest(ctx, left, right, "DIV")
    return cast(ctx, _exact_rest(ctx, widen(ctx, left), widen(ctx, right)), ctx.result_dtype)


def _quotient(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    left, right = promote(ctx, left, right, dtype=compute_type(ctx.result_dtype, left, right))
    return cast(ctx, binary(ctx, "DIV", left, right), ctx.result_dtype)


def _floor_quotient(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    if not ctx.result_dtype.is_floating_point:
        return binary(ctx, "FLOOR_DIV", left, right)
    left, right = widen(ctx, left), widen(ctx, right)
    # floor(a / b) is one too many where rounding lifts the quotient to an integer: 1 // 0.1 is 9.
    # What is left over says so.
    quotient = binary(ctx, "DIV", left, right)
    rest = _with_sign_of_divisor(ctx, _exact_rest(ctx, left, right), right)
    whole = unary(ctx, "ROUND", binary(ctx, "DIV", binary(ctx, "SUB", left, rest), right))
    infinite = binary(ctx, "OR", unary(ctx, "ISINF", quotient), unary(ctx, "ISINF", right))
    zero_divisor = binary(ctx, "EQUAL", right, 0.0)
    plain = select(ctx, zero_divisor, quotient, unary(ctx, "FLOOR", quotient))
    return cast(ctx, select(ctx, binary(ctx, "OR", infinite, zero_divisor), plain, whole), ctx.result_dtype)


def _integer_rest(ctx: ConversionContext, left: Operand, right: Operand, division: str) -> Any:
    whole = binary(ctx, division, left, right)
    return binary(ctx, "SUB", left, binary(ctx, "PROD", whole, right))


def _exact_rest(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns left - trunc(left / right) * right of float32 operands, with the sign of `left`.

    The product is formed without rounding (as a sum of two floats), so that the difference keeps every digit as long
    as the quotient is below 2 ** 24.
    """
    whole = truncate(ctx, binary(ctx, "DIV", left, right))
    product, error = _two_product(ctx, whole, right)
    rest = binary(ctx, "SUB", binary(ctx, "SUB", left, product), error)
    # a quotient that rounding lifted to the next integer leaves a rest of the wrong sign
    overshot = binary(ctx, "LESS", binary(ctx, "PROD", unary(ctx, "SIGN", rest), unary(ctx, "SIGN", left)), 0.0)
    step = binary(ctx, "PROD", unary(ctx, "ABS", right), unary(ctx, "SIGN", left))
    rest = select(ctx, overshot, binary(ctx, "SUM", rest, step), rest)
    # nothing is taken away from what is smaller than the divisor, be it infinite
    smaller = binary(ctx, "LESS", unary(ctx, "ABS", left), unary(ctx, "ABS", right))
    return select(ctx, smaller, left, rest)


def _two_product(ctx: ConversionContext, left: Operand, right: Operand) -> tuple[Any, Any]:
    """Returns the rounded product of float32 operands, and what rounding took away (Dekker's algorithm)."""
    product = binary(ctx, "PROD", left, right)
    left_high, left_low = _split(ctx, left)
    right_high, right_low = _split(ctx, right)
    error = binary(ctx, "SUB", binary(ctx, "PROD", left_high, right_high), product)
    for one, other in ((left_high, right_low), (left_low, right_high), (left_low, right_low)):
        error = binary(ctx, "SUM", error, binary(ctx, "PROD", one, other))
    return product, error


def _split(ctx: ConversionContext, value: Operand) -> tuple[Any, Any]:
    """Splits a float32 value into two of 12 bits each, whose products are exact."""
    scaled = binary(ctx, "PROD", value, 4097.0)
    high = binary(ctx, "SUB", scaled, binary(ctx, "SUB", scaled, value))
    return high, binary(ctx, "SUB", value, high)


def _with_sign_of_divisor(ctx: ConversionContext, rest: Operand, divisor: Operand) -> Any:
    """Moves a rest of the dividend's sign to the divisor's, as Python's % has it."""
    opposite = binary(ctx, "XOR", binary(ctx, "LESS", rest, 0.0), binary(ctx, "LESS", divisor, 0.0))
    nonzero = logical_not(ctx, binary(ctx, "EQUAL", rest, 0.0))
    moved = binary(ctx, "SUM", rest, divisor)
    return select(ctx, binary(ctx, "AND", opposite, nonzero), moved, rest)


_EUCLID = never(Reason.TENSORRT_LIMIT, "Euclid's algorithm takes as many steps as the numbers want, and no layer does")


@converter(aten.gcd.default, aten.lcm.default, checks=_EUCLID)
def aten_gcd(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """gcd(Tensor self, Tensor other) -> Tensor"""
    raise ctx.fail("no layer finds common divisors")
