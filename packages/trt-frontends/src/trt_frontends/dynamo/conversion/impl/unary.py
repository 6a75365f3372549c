"""Functions of one value, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trt_converters import layers

Helper = Callable[[Any, Any, Any, str, Any], Any]
"""(ctx, target, source_ir, name, input_val) -> `trt.ITensor`."""


def convert_unary(ctx: Any, target: Any, source_ir: Any, name: str, operation_type: Any, input_val: Any) -> Any:
    """Adds a unary layer; `operation_type` is a `trt.UnaryOperation`."""
    return layers.unary(ctx, operation_type.name, input_val)


def _function(operation: str) -> Helper:
    def convert(ctx: Any, target: Any, source_ir: Any, name: str, input_val: Any) -> Any:
        return layers.unary(ctx, operation, input_val)

    convert.__doc__ = f"Adds a unary layer, `trt.UnaryOperation.{operation}`."
    return convert


abs = _function("ABS")  # noqa: A001 - what scripts call it
acos, acosh = _function("ACOS"), _function("ACOSH")
asin, asinh = _function("ASIN"), _function("ASINH")
atan, atanh = _function("ATAN"), _function("ATANH")
ceil, floor, round, sign = (_function(name) for name in ("CEIL", "FLOOR", "ROUND", "SIGN"))  # noqa: A001
cos, cosh, sin, sinh, tan = (_function(name) for name in ("COS", "COSH", "SIN", "SINH", "TAN"))
erf, exp, log, neg, recip, sqrt = (_function(name) for name in ("ERF", "EXP", "LOG", "NEG", "RECIP", "SQRT"))
isinf, isnan, logical_not = _function("ISINF"), _function("ISNAN"), _function("NOT")
