"""What is left over by a division of floats, exactly: no layer computes it."""

from __future__ import annotations

from typing import Any, Final

from trt_converters.context import ConversionContext, Operand
from trt_converters.layers.elementary import truncate
from trt_converters.layers.pointwise import binary, logical_not, select, unary

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
