"""What converters are made of, by the names that scripts of this field import: `impl.elementwise.add(ctx, ...)`.

Each takes the context, then the operator, where it comes from and a name for the layer, then values: `trt.ITensor`s,
or tensors and numbers that are known while building. They are those of `trt_converters.layers`, which need less.
Functions of two values bring them to one type, as PyTorch does, and to one rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trt_converters import layers
from trt_converters.context import rank_of
from trt_converters.layers import pointwise

activation = condition = elementwise = reduce = shuffle = unary = sys.modules[__name__]
"""The modules that scripts import these from."""


def convert_activation(
    ctx: Any,
    target: Any,
    source_ir: Any,
    name: str,
    operation_type: Any,
    input_val: Any,
    alpha: float | None = None,
    beta: float | None = None,
) -> Any:
    """Adds an activation layer; `operation_type` is a `trt.ActivationType`."""
    return layers.activation(ctx, operation_type.name, input_val, alpha, beta)


def _activation(kind: str) -> Callable[..., Any]:
    def convert(
        ctx: Any,
        target: Any,
        source_ir: Any,
        name: str,
        input_val: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        return layers.activation(ctx, kind, input_val, alpha, beta)

    convert.__doc__ = f"Adds an activation layer, `trt.ActivationType.{kind}`."
    return convert


relu, sigmoid, tanh = _activation("RELU"), _activation("SIGMOID"), _activation("TANH")
clip, hard_sigmoid, thresholded_relu = _activation("CLIP"), _activation("HARD_SIGMOID"), _activation("THRESHOLDED_RELU")
elu, leaky_relu, selu = _activation("ELU"), _activation("LEAKY_RELU"), _activation("SELU")
softplus, softsign = _activation("SOFTPLUS"), _activation("SOFTSIGN")


def select(ctx: Any, target: Any, source_ir: Any, name: str, input: Any, other: Any, condition: Any) -> Any:
    """Returns `input` where the condition holds, else `other`; they are brought to one type."""
    return layers.select(ctx, condition, input, other)


where = select


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


def _reduction(operation: str) -> Callable[..., Any]:
    def convert(
        ctx: Any,
        target: Any,
        source_ir: Any,
        name: str,
        input_val: Any,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Any:
        axes = range(rank_of(input_val)) if dim is None else [dim] if isinstance(dim, int) else dim
        return layers.reduce(ctx, operation, input_val, list(axes), keepdim)

    convert.__doc__ = f"Adds a reduce layer, `trt.ReduceOperation.{operation}`; over all axes where `dim` is None."
    return convert


amax, amin, mean = _reduction("MAX"), _reduction("MIN"), _reduction("AVG")
prod, sum = _reduction("PROD"), _reduction("SUM")  # noqa: A001 - what scripts call it


def reshape(ctx: Any, target: Any, source_ir: Any, name: str, input: Any, shape: Sequence[Any]) -> Any:
    """Returns the elements in another shape, in which one size may be -1."""
    return layers.reshape(ctx, input, list(shape))


def convert_unary(ctx: Any, target: Any, source_ir: Any, name: str, operation_type: Any, input_val: Any) -> Any:
    """Adds a unary layer; `operation_type` is a `trt.UnaryOperation`."""
    return layers.unary(ctx, operation_type.name, input_val)


def _of_one(operation: str) -> Callable[..., Any]:
    def convert(ctx: Any, target: Any, source_ir: Any, name: str, input_val: Any) -> Any:
        return layers.unary(ctx, operation, input_val)

    convert.__doc__ = f"Adds a unary layer, `trt.UnaryOperation.{operation}`."
    return convert


abs = _of_one("ABS")  # noqa: A001 - what scripts call it
acos, acosh = _of_one("ACOS"), _of_one("ACOSH")
asin, asinh = _of_one("ASIN"), _of_one("ASINH")
atan, atanh = _of_one("ATAN"), _of_one("ATANH")
ceil, floor, round, sign = (_of_one(name) for name in ("CEIL", "FLOOR", "ROUND", "SIGN"))  # noqa: A001
cos, cosh, sin, sinh, tan = (_of_one(name) for name in ("COS", "COSH", "SIN", "SINH", "TAN"))
erf, exp, log, neg, recip, sqrt = (_of_one(name) for name in ("ERF", "EXP", "LOG", "NEG", "RECIP", "SQRT"))
isinf, isnan, logical_not = _of_one("ISINF"), _of_one("ISNAN"), _of_one("NOT")
