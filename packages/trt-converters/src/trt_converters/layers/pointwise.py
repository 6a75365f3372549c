"""Pointwise layers, and what their operands share: one type and one rank."""

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
    if layer is not None and alpha is not None:
        layer.alpha = float(alpha)
    if layer is not None and beta is not None:
        layer.beta = float(beta)
    return ctx.output(layer, kind.lower())


def select(ctx: ConversionContext, condition: Operand, then: Operand, otherwise: Operand) -> Any:
    """Adds a select layer: `then` where the bool condition holds; both values have one type, all are broadcast."""
    import torch

    then, otherwise = promote(ctx, then, otherwise)
    rank = max(len(condition.shape), len(then.shape))
    from trt_converters.layers.movement import with_rank

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
