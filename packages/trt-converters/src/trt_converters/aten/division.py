"""Quotients and remainders. What a division of floats leaves over is exact: no layer computes it."""

from __future__ import annotations

from typing import Any, Final

import torch

from trt_converters.aten.arithmetic import compute_type
from trt_converters.checks import computable, never
from trt_converters.context import ConversionContext, Operand, dtype_of, is_size_number
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
        return cast(ctx, truncate(ctx, binary(ctx, "DIV", *_float_operands(ctx, self, other))), ctx.result_dtype)
    return binary(ctx, "DIV", *promote(ctx, self, other, dtype=ctx.result_dtype))


@converter(aten.floor_divide.default, aten.floor_divide.Scalar, checks=computable)
def aten_floor_divide(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """floor_divide(Tensor self, Tensor other) -> Tensor"""
    return _floor_quotient(ctx, self, other)


@converter(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, checks=computable)
def aten_remainder(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """remainder.Tensor(Tensor self, Tensor other) -> Tensor"""
    if not ctx.result_dtype.is_floating_point:
        return _integer_rest(ctx, self, other, "FLOOR_DIV")
    left, right = (widen(ctx, item) for item in promote(ctx, self, other, dtype=ctx.result_dtype))
    rest, _ = with_sign_of_divisor(ctx, exact_remainder(ctx, left, right), right)
    return cast(ctx, rest, ctx.result_dtype)


@converter(aten.fmod.Tensor, aten.fmod.Scalar, checks=computable)
def aten_fmod(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """fmod.Tensor(Tensor self, Tensor other) -> Tensor"""
    if not ctx.result_dtype.is_floating_point:
        return _integer_rest(ctx, self, other, "DIV")
    left, right = (widen(ctx, item) for item in promote(ctx, self, other, dtype=ctx.result_dtype))
    return cast(ctx, exact_remainder(ctx, left, right), ctx.result_dtype)


def _quotient(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    left, right = promote(ctx, left, right, dtype=compute_type(ctx.result_dtype, left, right))
    return cast(ctx, binary(ctx, "DIV", left, right), ctx.result_dtype)


def _floor_quotient(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """Rounds a quotient down as `c10::div_floor_floating` does.

    The floor of a rounded quotient is one too many where rounding lifts it to an integer: 1 // 0.1 is 9. So the rest is
    taken away before dividing.
    """
    if not ctx.result_dtype.is_floating_point:
        return binary(ctx, "FLOOR_DIV", *promote(ctx, self, other, dtype=ctx.result_dtype))
    left, right = _float_operands(ctx, self, other)
    quotient = binary(ctx, "DIV", left, right)
    rest = cast(ctx, exact_remainder(ctx, widen(ctx, left), widen(ctx, right)), dtype_of(left))
    _, moved = with_sign_of_divisor(ctx, rest, right)
    exact = binary(ctx, "DIV", binary(ctx, "SUB", left, rest), right)
    exact = select(ctx, moved, binary(ctx, "SUB", exact, 1.0), exact)
    whole = unary(ctx, "FLOOR", exact)
    short = binary(ctx, "GREATER", binary(ctx, "SUB", exact, whole), 0.5)
    whole = select(ctx, short, binary(ctx, "SUM", whole, 1.0), whole)
    whole = select(ctx, binary(ctx, "EQUAL", whole, 0.0), binary(ctx, "PROD", quotient, 0.0), whole)
    # nothing is to be rounded in a quotient beyond the range, by 0 or not, unless the dividend was infinite already
    finite = logical_not(ctx, unary(ctx, "ISINF", left))
    beyond = binary(ctx, "AND", unary(ctx, "ISINF", quotient), finite)
    plain = binary(ctx, "OR", beyond, binary(ctx, "EQUAL", right, 0.0))
    return cast(ctx, select(ctx, plain, quotient, whole), ctx.result_dtype)


def _float_operands(ctx: ConversionContext, self: Operand, other: Operand) -> list[Any]:
    """Returns the operands of a float quotient that is rounded, in the type that PyTorch computes it in.

    That is the result's, each step rounded to it, and float32 where the divisor of half values is a Python number.
    """
    left = promote(ctx, self, dtype=ctx.result_dtype)[0]
    if isinstance(other, (int, float)) or is_size_number(other):
        return promote(ctx, left, other, dtype=torch.float32)
    return promote(ctx, left, other, dtype=ctx.result_dtype)


def _integer_rest(ctx: ConversionContext, left: Operand, right: Operand, division: str) -> Any:
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    whole = binary(ctx, division, left, right)
    return binary(ctx, "SUB", left, binary(ctx, "PROD", whole, right))


_EUCLID = never(Reason.TENSORRT_LIMIT, "Euclid's algorithm takes as many steps as the numbers want, and no layer does")


@converter(aten.gcd.default, aten.lcm.default, checks=_EUCLID)
def aten_gcd(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """gcd(Tensor self, Tensor other) -> Tensor"""
    raise ctx.fail("no layer finds common divisors")


_STEPS: Final = (46, 23, 0)
"""Powers of two that the divisor is multiplied by, one after the other: each leaves a quotient below 2 ** 24."""

_LARGE: Final = 2.0**96
_SCALE: Final = 2.0**-32


def exact_remainder(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns `left - trunc(left / right) * right` of float32 operands, as C's `fmod` does.

    It is exact while the quotient is below 2 ** 70, and 0 beyond. A rest of 0 has the sign of `left`; infinite `left`
    and `right` of 0 give NaN.
    """
    # where products of the halves of large numbers would overflow, both are made smaller first
    large = binary(ctx, "GREATER", unary(ctx, "ABS", left), _LARGE)
    dividend = select(ctx, large, binary(ctx, "PROD", left, _SCALE), left)
    divisor = select(ctx, large, binary(ctx, "PROD", right, _SCALE), right)
    rest = dividend
    for power in _STEPS:
        rest = _step(ctx, rest, binary(ctx, "PROD", divisor, 2.0**power) if power else divisor)
    nothing = binary(ctx, "PROD", rest, 0.0)
    beyond = binary(ctx, "GREATER", unary(ctx, "ABS", rest), unary(ctx, "ABS", divisor))
    rest = select(ctx, beyond, nothing, rest)
    rest = select(ctx, large, binary(ctx, "DIV", rest, _SCALE), rest)
    # nothing is taken away from what is smaller than the divisor, be that infinite
    smaller = binary(ctx, "LESS", unary(ctx, "ABS", left), unary(ctx, "ABS", right))
    rest = select(ctx, smaller, left, rest)
    return select(ctx, binary(ctx, "EQUAL", rest, 0.0), binary(ctx, "PROD", left, 0.0), rest)


def with_sign_of_divisor(ctx: ConversionContext, rest: Operand, divisor: Operand) -> tuple[Any, Any]:
    """Moves a rest of the dividend's sign to the divisor's, as Python's `%` has it.

    Returns:
        The rest, and where it was moved, bool.
    """
    opposite = binary(ctx, "XOR", binary(ctx, "LESS", rest, 0.0), binary(ctx, "LESS", divisor, 0.0))
    moved = binary(ctx, "AND", opposite, logical_not(ctx, binary(ctx, "EQUAL", rest, 0.0)))
    return select(ctx, moved, binary(ctx, "SUM", rest, divisor), rest), moved


def _step(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns what is left of a quotient below 2 ** 24.

    The product is formed without rounding (as a sum of two floats), so that the difference keeps every digit.
    """
    whole = truncate(ctx, binary(ctx, "DIV", left, right))
    product, error = _two_product(ctx, whole, right)
    rest = binary(ctx, "SUB", binary(ctx, "SUB", left, product), error)
    # a quotient that rounding lifted to the next integer leaves a rest of the wrong sign
    overshot = binary(ctx, "LESS", binary(ctx, "PROD", unary(ctx, "SIGN", rest), unary(ctx, "SIGN", left)), 0.0)
    back = binary(ctx, "PROD", unary(ctx, "ABS", right), unary(ctx, "SIGN", left))
    rest = select(ctx, overshot, binary(ctx, "SUM", rest, back), rest)
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
