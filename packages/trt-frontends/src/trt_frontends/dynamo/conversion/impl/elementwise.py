"""Functions of two values, element by element. Operands are brought to one type, as PyTorch does, and to one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trt_converters import layers
from trt_converters.layers import pointwise

Helper = Callable[[Any, Any, Any, str, Any, Any], Any]
"""(ctx, target, source_ir, name, lhs_val, rhs_val) -> `trt.ITensor`."""


def convert_binary_elementwise(
    ctx: Any, target: Any, source_ir: Any, name: str, op_type: Any, lhs_val: Any, rhs_val: Any
) -> Any:
    """Adds an elementwise layer; `op_type` is a `trt.ElementWiseOperation`."""
    return layers.binary(ctx, op_type.name, *layers.promote(ctx, lhs_val, rhs_val))


def _named(combine: Callable[[Any, Any, Any], Any], doc: str) -> Helper:
    def convert(ctx: Any, target: Any, source_ir: Any, name: str, lhs_val: Any, rhs_val: Any) -> Any:
        return combine(ctx, *layers.promote(ctx, lhs_val, rhs_val))

    convert.__doc__ = doc
    return convert


def _layer(operation: str) -> Helper:
    doc = f"Adds an elementwise layer, `trt.ElementWiseOperation.{operation}`."
    return _named(lambda ctx, lhs, rhs: layers.binary(ctx, operation, lhs, rhs), doc)


def _quotient(ctx: Any, lhs: Any, rhs: Any) -> Any:
    dtype = layers.result_type(lhs, rhs)
    wanted = dtype if dtype.is_floating_point else torch.float32
    return layers.binary(ctx, "DIV", *layers.promote(ctx, lhs, rhs, dtype=wanted))


add, sub, mul, pow = (_layer(name) for name in ("SUM", "SUB", "PROD", "POW"))  # noqa: A001 - what scripts call it
div = _named(_quotient, "Divides; the quotient of integers is float32.")
floor_divide = _layer("FLOOR_DIV")
max = _named(pointwise.maximum, "Returns the larger one; NaN where either is.")  # noqa: A001
min = _named(pointwise.minimum, "Returns the smaller one; NaN where either is.")  # noqa: A001
eq, gt, lt = _layer("EQUAL"), _layer("GREATER"), _layer("LESS")
ge = _named(layers.greater_equal, "Whether the left one is the larger one, or both are equal; not for NaN.")
le = _named(layers.less_equal, "Whether the left one is the smaller one, or both are equal; not for NaN.")
ne = _named(
    lambda ctx, lhs, rhs: layers.logical_not(ctx, layers.binary(ctx, "EQUAL", lhs, rhs)), "Whether they differ."
)
logical_and, logical_or, logical_xor = _layer("AND"), _layer("OR"), _layer("XOR")
