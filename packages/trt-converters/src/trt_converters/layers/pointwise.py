"""Pointwise layers, what their operands share (one type and one rank), and elementary functions without a layer."""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.byte_tensor import as_bytes
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers.casts import cast, result_type
from trt_converters.layers.movement import with_rank
from trt_core import trt


def binary(ctx: ConversionContext, operation: str, left: Operand, right: Operand, suffix: str = "") -> Any:
    """Adds an elementwise layer over operands of one type.

    Args:
        ctx: The context.
        operation: Name of a `trt.ElementWiseOperation`.
        left, right: Tensors of one type; ranks are raised to the larger one. Numbers, which may vary with the sizes
            of tensors, take the other operand's type.
        suffix: What the layer is for, in its name.
    """
    tensor_types = [dtype_of(side) for side in (left, right) if hasattr(side, "shape")]
    left, right = promote(ctx, left, right, dtype=tensor_types[0] if tensor_types else None)
    operator = ctx.member(trt.ElementWiseOperation, operation)
    layer = ctx.network.add_elementwise(ctx.tensor(left), ctx.tensor(right), operator)
    return ctx.output(layer, suffix or operation.lower())


def unary(ctx: ConversionContext, operation: str, value: Operand) -> Any:
    """Adds a unary layer; `operation` is the name of a `trt.UnaryOperation`."""
    layer = ctx.network.add_unary(ctx.tensor(value), ctx.member(trt.UnaryOperation, operation))
    return ctx.output(layer, operation.lower())


def activation(
    ctx: ConversionContext, kind: str, value: Operand, alpha: float | None = None, beta: float | None = None
) -> Any:
    """Adds an activation layer; `kind` is the name of a `trt.ActivationType`.

    Raises:
        ConversionError: A coefficient is not finite: the layer would keep the one that it has, and compute with that.
    """
    if not all(math.isfinite(coefficient) for coefficient in (alpha or 0.0, beta or 0.0)):
        raise ctx.fail(f"coefficients of {kind} must be finite, not {alpha} and {beta}")
    layer = ctx.network.add_activation(ctx.tensor(value), ctx.member(trt.ActivationType, kind))
    alpha, beta = (None if coefficient is None else float(coefficient) for coefficient in (alpha, beta))
    return ctx.output(layer, kind.lower(), alpha=alpha, beta=beta)


def select(ctx: ConversionContext, condition: Operand, then: Operand, otherwise: Operand) -> Any:
    """Adds a select layer: `then` where the bool condition holds; both values have one type, all are broadcast."""
    then, otherwise = promote(ctx, then, otherwise)
    rank = max(len(condition.shape), len(then.shape))

    if dtype_of(then) is torch.uint8:
        carried = (cast(ctx, part, torch.float32) for part in (then, otherwise))
        return as_bytes(select(ctx, condition, *carried))
    condition, then, otherwise = (with_rank(ctx, part, rank) for part in (condition, then, otherwise))
    assert dtype_of(condition) is torch.bool, "the condition of a select is a bool tensor"
    layer = ctx.network.add_select(*(ctx.tensor(part) for part in (condition, then, otherwise)))
    return ctx.output(layer, "select")


def logical_not(ctx: ConversionContext, value: Operand) -> Any:
    """Negates a bool tensor."""
    return unary(ctx, "NOT", value)


def greater_equal(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """`left >= right` that is False for NaN: NOT(LESS) would be True."""
    return binary(ctx, "OR", binary(ctx, "GREATER", left, right), binary(ctx, "EQUAL", left, right))


def less_equal(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """`left <= right` that is False for NaN: NOT(GREATER) would be True."""
    return binary(ctx, "OR", binary(ctx, "LESS", left, right), binary(ctx, "EQUAL", left, right))


def promote(ctx: ConversionContext, *values: Operand, dtype: torch.dtype | None = None) -> list[Any]:
    """Casts operands to one type and raises them to one rank, as broadcasting layers want them.

    Args:
        ctx: The context.
        values: Tensors and numbers, which may vary with the sizes of tensors.
        dtype: The common type; by default the one that PyTorch promotes to.

    Returns:
        One value for each operand; all have the same type and rank, and extents that broadcast.
    """
    common = dtype or result_type(*values)
    rank = max(rank_of(value) for value in values)
    return [with_rank(ctx, cast(ctx, value, common), rank) for value in values]


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
    small = binary(ctx, "LESS", unary(ctx, "ABS", value), 1.0)
    half = activation(ctx, "TANH", binary(ctx, "PROD", value, 0.5))
    near = binary(ctx, "DIV", binary(ctx, "PROD", half, 2.0), binary(ctx, "SUB", 1.0, half))
    return select(ctx, small, near, binary(ctx, "SUB", unary(ctx, "EXP", value), 1.0))


def maximum(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns the larger operand; NaN where either is NaN, which the MAX layer does not promise."""
    return extreme(ctx, "MAX", "GREATER", left, right, left)


def minimum(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns the smaller operand; NaN where either is NaN, which the MIN layer does not promise."""
    return extreme(ctx, "MIN", "LESS", left, right, left)


def extreme(
    ctx: ConversionContext, layer: str, comparison: str, left: Operand, right: Operand, missing: Operand
) -> Any:
    """Returns the left operand where it wins a comparison, or where `missing`, one of the two, is NaN; else the right.

    A NaN on the left is taken if that is missing, and else loses; one on the right comes where neither term holds, and
    is left out if that is missing.
    """
    if not dtype_of(left).is_floating_point:
        return binary(ctx, layer, left, right)
    wins = binary(ctx, "OR", binary(ctx, comparison, left, right), is_nan(ctx, missing))
    return select(ctx, wins, left, right)


def polynomial(ctx: ConversionContext, variable: Operand, coefficients: tuple[float, ...]) -> Any:
    """Evaluates a polynomial of a float value by Horner's rule; coefficients from the highest power down."""
    result = binary(ctx, "PROD", variable, coefficients[0], "polynomial")
    for coefficient in coefficients[1:-1]:
        result = binary(ctx, "SUM", result, coefficient, "polynomial")
        result = binary(ctx, "PROD", result, variable, "polynomial")
    return binary(ctx, "SUM", result, coefficients[-1], "polynomial")
