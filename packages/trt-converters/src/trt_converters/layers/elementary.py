"""Elementary functions that have no layer of their own, in forms that keep their accuracy and pass NaN on."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, dtype_of
from trt_converters.layers.casts import cast
from trt_converters.layers.pointwise import binary, select, unary

_HALVES = (torch.float16, torch.bfloat16)


def widen(ctx: ConversionContext, value: Operand) -> Any:
    """Casts float16 and bfloat16 to float32, in which intermediate results keep their digits; others stay."""
    return cast(ctx, value, torch.float32) if dtype_of(value) in _HALVES else value


def negate(ctx: ConversionContext, value: Operand) -> Any:
    """Returns `-value`; integers, which NEG may not take, are subtracted from 0."""
    if dtype_of(value).is_floating_point:
        return unary(ctx, "NEG", value)
    return binary(ctx, "SUB", 0, value, "neg")


def is_nan(ctx: ConversionContext, value: Operand) -> Any:
    """Returns where a float value is NaN, bool."""
    return unary(ctx, "ISNAN", value)


def truncate(ctx: ConversionContext, value: Operand) -> Any:
    """Rounds a float value toward zero."""
    return select(ctx, binary(ctx, "LESS", value, 0.0), unary(ctx, "CEIL", value), unary(ctx, "FLOOR", value))


def has_sign(ctx: ConversionContext, value: Operand) -> Any:
    """Returns where a value is negative, -0.0 included, bool. The sign of a NaN does not count."""
    negative = binary(ctx, "LESS", value, 0)
    if not dtype_of(value).is_floating_point:
        return negative
    # only the reciprocal tells -0.0 from 0.0, and only the comparison sees -inf, whose reciprocal is -0.0
    return binary(ctx, "OR", negative, binary(ctx, "LESS", unary(ctx, "RECIP", value), 0.0))


def log1p(ctx: ConversionContext, value: Operand) -> Any:
    """Returns log(1 + value) of a float32 value: near 0 by log(1 + x) = 2 atanh(x / (2 + x)), which loses no digits."""
    small = binary(ctx, "LESS", unary(ctx, "ABS", value), 0.5)
    ratio = binary(ctx, "DIV", value, binary(ctx, "SUM", value, 2.0))
    near = binary(ctx, "PROD", unary(ctx, "ATANH", ratio), 2.0)
    return select(ctx, small, near, unary(ctx, "LOG", binary(ctx, "SUM", value, 1.0)))


def expm1(ctx: ConversionContext, value: Operand) -> Any:
    """Returns exp(value) - 1 of a float32 value: near 0 by 2t / (1 - t) with t = tanh(x / 2), which loses no digits."""
    from trt_converters.layers.pointwise import activation

    small = binary(ctx, "LESS", unary(ctx, "ABS", value), 1.0)
    half = activation(ctx, "TANH", binary(ctx, "PROD", value, 0.5))
    near = binary(ctx, "DIV", binary(ctx, "PROD", half, 2.0), binary(ctx, "SUB", 1.0, half))
    return select(ctx, small, near, binary(ctx, "SUB", unary(ctx, "EXP", value), 1.0))


def maximum(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns the larger operand; NaN where either is NaN, which the MAX layer does not promise."""
    return _extreme(ctx, "MAX", "GREATER", left, right)


def minimum(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns the smaller operand; NaN where either is NaN, which the MIN layer does not promise."""
    return _extreme(ctx, "MIN", "LESS", left, right)


def _extreme(ctx: ConversionContext, layer: str, comparison: str, left: Operand, right: Operand) -> Any:
    if not dtype_of(left).is_floating_point:
        return binary(ctx, layer, left, right)
    # a NaN on the left is taken by the second term, one on the right because neither term holds
    wins = binary(ctx, "OR", binary(ctx, comparison, left, right), is_nan(ctx, left))
    return select(ctx, wins, left, right)


def polynomial(ctx: ConversionContext, variable: Operand, coefficients: tuple[float, ...]) -> Any:
    """Evaluates a polynomial of a float value by Horner's rule; coefficients from the highest power down."""
    result = binary(ctx, "PROD", variable, coefficients[0], "polynomial")
    for coefficient in coefficients[1:-1]:
        result = binary(ctx, "SUM", result, coefficient, "polynomial")
        result = binary(ctx, "PROD", result, variable, "polynomial")
    return binary(ctx, "SUM", result, coefficients[-1], "polynomial")
