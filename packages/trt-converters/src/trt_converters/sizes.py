"""Sizes: extents that are known while building stay Python ints, the others are shape tensors of shape (1,), int64."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from trt_converters.byte_tensor import carrier_of
from trt_core import trt
from trt_core.sizes.expressions import evaluate_extent

if TYPE_CHECKING:
    from trt_converters.context import ConversionContext, Operand, Size


def dimension(ctx: ConversionContext, value: Operand, axis: int) -> Any:
    """Returns the extent of a value along a non-negative axis: an int, or a shape tensor of shape (1,), int64."""
    extent = int(value.shape[axis])
    if extent >= 0:
        return extent
    shape = ctx.output(ctx.network.add_shape(carrier_of(value)), "shape")
    return ctx.output(ctx.network.add_slice(shape, (axis,), (1,), (1,)), "dimension")


def sizes_of(ctx: ConversionContext, value: Operand) -> list[Any]:
    """Returns the extents of a value; see `dimension`."""
    return [dimension(ctx, value, axis) for axis in range(len(value.shape))]


def shape_vector(ctx: ConversionContext, sizes: Sequence[Size]) -> Any:
    """Returns sizes as one shape tensor of shape (len(sizes),), int64; a `torch.Tensor` when all are known."""
    known = [ctx.size(size) for size in sizes]
    if all(isinstance(size, int) for size in known):
        return torch.tensor(known, dtype=torch.int64)
    pieces: list[Any] = []
    for size in known:  # runs of known sizes become one constant
        if isinstance(size, int):
            if pieces and isinstance(pieces[-1], list):
                pieces[-1].append(size)
            else:
                pieces.append([size])
        else:
            pieces.append(size)
    tensors = [
        ctx.tensor(torch.tensor(piece, dtype=torch.int64)) if isinstance(piece, list) else piece for piece in pieces
    ]
    if len(tensors) == 1:
        return tensors[0]
    layer = ctx.network.add_concatenation(tensors)
    layer.axis = 0
    return ctx.output(layer, "sizes")


def combine(ctx: ConversionContext, operator: str, operands: Sequence[Size]) -> Any:
    """Applies an operator of `trt_core.sizes.expressions` to sizes.

    Args:
        ctx: The context.
        operator: `add`, `mul`, `floordiv`, `ceildiv`, `mod`, `max`, `min` or `pow`.
        operands: Two or more sizes.
    """
    return functools.reduce(lambda left, right: _apply(ctx, operator, left, right), [ctx.size(o) for o in operands])


def _apply(ctx: ConversionContext, operator: str, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return evaluate_extent([operator, left, right], {})
    if operator == "ceildiv":  # ceil(a / b) = -floor(-a / b)
        return _apply(ctx, "mul", _apply(ctx, "floordiv", _apply(ctx, "mul", left, -1), right), -1)
    if operator == "mod":
        whole = _apply(ctx, "mul", _apply(ctx, "floordiv", left, right), right)
        return _apply(ctx, "sub", left, whole)
    if operator == "pow":
        return functools.reduce(lambda a, b: _apply(ctx, "mul", a, b), [left] * int(right))
    if _is_neutral(operator, left, right):
        return right if isinstance(left, int) else left
    operation = getattr(trt.ElementWiseOperation, _LAYERS[operator])
    tensors = [
        ctx.tensor(torch.tensor([side], dtype=torch.int64) if isinstance(side, int) else side) for side in (left, right)
    ]
    return ctx.output(ctx.network.add_elementwise(*tensors, operation), operator)


_LAYERS = {"add": "SUM", "sub": "SUB", "mul": "PROD", "floordiv": "FLOOR_DIV", "max": "MAX", "min": "MIN"}


def _is_neutral(operator: str, left: Any, right: Any) -> bool:
    if operator == "add":
        return (isinstance(left, int) and left == 0) or (isinstance(right, int) and right == 0)
    if operator == "mul":
        return (isinstance(left, int) and left == 1) or (isinstance(right, int) and right == 1)
    return operator in ("floordiv", "sub") and isinstance(right, int) and right == (1 if operator == "floordiv" else 0)
