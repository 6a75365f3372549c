"""Sizes, and numbers that follow from them, as values of layers.

Extents that are known while building stay Python ints, the others are shape tensors of shape (1,), int64. Fractions, as
in `x / n**0.5`, are computed in float32, which holds every size below 2 ** 24; PyTorch computes them in Python's floats
and rounds once, so the last digit may differ.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_converters.byte_tensor import carrier_of
from trt_core import to_trt, trt
from trt_core.sizes.expressions import evaluate_extent, extent_of_expression
from trt_core.sizes.functions import BY_CLASS

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


_LAYERS: Final = {
    "add": "SUM",
    "sub": "SUB",
    "mul": "PROD",
    "truediv": "DIV",
    "floordiv": "FLOOR_DIV",
    "pow": "POW",
    "max": "MAX",
    "min": "MIN",
}
"""Layers' operations, by the functions of `trt_core.sizes.functions`."""


def _is_neutral(operator: str, left: Any, right: Any) -> bool:
    if operator == "add":
        return (isinstance(left, int) and left == 0) or (isinstance(right, int) and right == 0)
    if operator == "mul":
        return (isinstance(left, int) and left == 1) or (isinstance(right, int) and right == 1)
    return operator in ("floordiv", "sub") and isinstance(right, int) and right == (1 if operator == "floordiv" else 0)


Fraction = float | tuple[str, Any] | tuple[str, Any, Any]
"""A known number; `("SIZE", extent)`; or the name of a layer's operation with its operands, which are fractions."""

_UNARY: Final = {"OpaqueUnaryFn_sqrt": "SQRT", "OpaqueUnaryFn_exp": "EXP", "OpaqueUnaryFn_log": "LOG"}

_ROOTS: Final = {0.5: ("SQRT",), -0.5: ("SQRT", "RECIP"), -1.0: ("RECIP",)}
"""Powers that have layers of their own, which round once."""


def is_size_number(value: Any) -> bool:
    """Whether a value is a symbolic number, which varies with the sizes of tensors."""
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def is_exactly(value: Any, number: float) -> bool:
    """Whether a number of a call is known to be a certain one; comparing one that varies would fix it."""
    return isinstance(value, (int, float)) and value == number


def fraction_of(value: torch.SymFloat) -> Fraction | None:
    """Returns how a fraction follows from sizes; None where it depends on data, or no layers compute it."""
    return _fraction_of_expression(value.node.expr)


def _fraction_of_expression(expr: Any) -> Fraction | None:
    if expr.is_number:
        return float(expr)
    name = type(expr).__name__
    if name == "ToFloat" or expr.is_integer:
        extent = extent_of_expression(expr.args[0] if name == "ToFloat" else expr)
        return None if extent is None else ("SIZE", extent)
    operation = _LAYERS.get(BY_CLASS[name].name) if name in BY_CLASS else None
    operation = operation or _UNARY.get(name)
    if operation is None:
        return None
    operands = [_fraction_of_expression(operand) for operand in expr.args]
    if any(operand is None for operand in operands):
        return None
    if name in _UNARY:
        return operation, operands[0]
    if operation == "POW" and isinstance(operands[1], float) and operands[1] in _ROOTS:
        return functools.reduce(lambda inner, root: (root, inner), _ROOTS[operands[1]], operands[0])
    return functools.reduce(lambda left, right: (operation, left, right), operands)


def compute_fraction(ctx: ConversionContext, fraction: Fraction) -> Any:
    """Adds the layers that compute a fraction.

    Returns:
        A 0-d float32 value.

    Raises:
        ConversionError: No tensor of the block has a size that it is computed from.
    """
    if isinstance(fraction, float):
        return torch.tensor(fraction, dtype=torch.float32)
    operation, *operands = fraction
    if operation == "SIZE":
        size = ctx.scalar_size(operands[0])
        if isinstance(size, int):
            return torch.tensor(size, dtype=torch.float32)
        return ctx.output(ctx.network.add_cast(size, to_trt(torch.float32)), "size")
    values = [ctx.tensor(compute_fraction(ctx, operand)) for operand in operands]
    if len(values) == 1:
        return ctx.output(ctx.network.add_unary(*values, getattr(trt.UnaryOperation, operation)), "size")
    return ctx.output(ctx.network.add_elementwise(*values, getattr(trt.ElementWiseOperation, operation)), "size")
