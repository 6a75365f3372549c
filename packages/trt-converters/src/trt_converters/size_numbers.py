"""Numbers that follow from sizes, as values of layers: `x * n`, `x / n**0.5`, `clamp(0, n - 1)`.

Whole ones are sizes, int64. Fractions are computed in float32, which holds every size below 2 ** 24; PyTorch computes
them in Python's floats and rounds once, so the last digit may differ.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core import to_trt, trt
from trt_core.sizes.expressions import extent_of_expression

if TYPE_CHECKING:
    from trt_converters.context import ConversionContext

Fraction = float | tuple[str, Any] | tuple[str, Any, Any]
"""A known number; `("SIZE", extent)`; or the name of a layer's operation with its operands, which are fractions."""

_BINARY: Final = {
    "Add": "SUM",
    "Mul": "PROD",
    "IntTrueDiv": "DIV",
    "FloatTrueDiv": "DIV",
    "Pow": "POW",
    "FloatPow": "POW",
    "Max": "MAX",
    "Min": "MIN",
}

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
    operation = _BINARY.get(name) or _UNARY.get(name)
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
