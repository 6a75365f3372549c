"""Numbers, element by element: arithmetic, roundings, powers, trigonometry."""

from __future__ import annotations

import math
from typing import Any, Final

from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, ErrorCode, UnaryOperation
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

_FLOAT_UNARY: Final = {
    "Acos": UnaryOperation.ACOS,
    "Acosh": UnaryOperation.ACOSH,
    "Asin": UnaryOperation.ASIN,
    "Asinh": UnaryOperation.ASINH,
    "Atan": UnaryOperation.ATAN,
    "Atanh": UnaryOperation.ATANH,
    "Cos": UnaryOperation.COS,
    "Cosh": UnaryOperation.COSH,
    "Erf": UnaryOperation.ERF,
    "Exp": UnaryOperation.EXP,
    "Log": UnaryOperation.LOG,
    "Reciprocal": UnaryOperation.RECIP,
    "Sin": UnaryOperation.SIN,
    "Sinh": UnaryOperation.SINH,
    "Sqrt": UnaryOperation.SQRT,
    "Tan": UnaryOperation.TAN,
    "Abs": UnaryOperation.ABS,
    "Sign": UnaryOperation.SIGN,
}


@operator(*_FLOAT_UNARY)
def unary(net: NetworkWriter, x: ITensor, *, consumed_inputs: Any = None) -> ITensor:
    """Exp(X) -> Y, and its like."""
    return net.unary(x, _FLOAT_UNARY[net.node.operator])


@operator("Neg")
def neg(net: NetworkWriter, x: ITensor) -> ITensor:
    """Neg(X) -> Y"""
    if x.dtype in FLOATS:
        return net.unary(x, UnaryOperation.NEG)
    return net.output(net.network.add_elementwise(net.scalar_like(0, x), x, ElementWiseOperation.SUB))


_ROUNDINGS: Final = {"Ceil": UnaryOperation.CEIL, "Floor": UnaryOperation.FLOOR, "Round": UnaryOperation.ROUND}


@operator(*_ROUNDINGS)
def rounding(net: NetworkWriter, x: ITensor) -> ITensor:
    """Ceil(X) -> Y; integers stay as they are."""
    return net.unary(x, _ROUNDINGS[net.node.operator]) if x.dtype in FLOATS else x


_BINARY: Final = {
    "Add": ElementWiseOperation.SUM,
    "Sub": ElementWiseOperation.SUB,
    "Mul": ElementWiseOperation.PROD,
    "Div": ElementWiseOperation.DIV,
}


@operator(*_BINARY, since=7)
def binary(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """Add(A, B) -> C, broadcast."""
    return net.binary(a, b, _BINARY[net.node.operator])


@operator("Max", "Min", since=8)
def extreme(net: NetworkWriter, *data: ITensor) -> ITensor:
    """Max(data_0, ...) -> max; NaN wins, as in ONNX."""
    op = ElementWiseOperation.MAX if net.node.operator == "Max" else ElementWiseOperation.MIN
    return _folded(net, data, op)


@operator("Sum", since=8)
def sum_of(net: NetworkWriter, *data: ITensor) -> ITensor:
    """Sum(data_0, ...) -> sum"""
    return _folded(net, data, ElementWiseOperation.SUM)


@operator("Mean", since=8)
def mean_of(net: NetworkWriter, *data: ITensor) -> ITensor:
    """Mean(data_0, ...) -> mean"""
    return net.with_number(_folded(net, data, ElementWiseOperation.SUM), len(data), ElementWiseOperation.DIV)


def _folded(net: NetworkWriter, data: tuple[ITensor, ...], op: ElementWiseOperation) -> ITensor:
    if not data:
        raise Unsupported(f"{net.node.operator} has no inputs", ErrorCode.INVALID_NODE)
    total = data[0]
    for term in data[1:]:
        total = net.binary(total, term, op)
    return net.output(net.network.add_identity(total)) if len(data) == 1 else total


@operator("Pow", since=7)
def pow(net: NetworkWriter, x: ITensor, y: ITensor) -> ITensor:
    """Pow(X, Y) -> Z, of the type of X"""
    kind = x.dtype
    computed = next((t.dtype for t in (x, y) if t.dtype in FLOATS), DataType.FLOAT) if kind not in FLOATS else kind
    result = net.binary(net.cast(x, computed), net.cast(y, computed), ElementWiseOperation.POW)
    if kind in FLOATS:
        return result
    if y.dtype not in FLOATS:  # whole powers of whole numbers are whole, but for the last bit of a float
        result = net.unary(result, UnaryOperation.ROUND)
    return net.cast(result, kind)


@operator("Mod", since=10)
def mod(net: NetworkWriter, a: ITensor, b: ITensor, *, fmod: int = 0) -> ITensor:
    """Mod(A, B) -> C; with the sign of B, or with fmod of A"""
    if fmod and a.dtype in FLOATS:
        size = net.unary(net.binary(net.unary(a, UnaryOperation.ABS), net.unary(b, UnaryOperation.ABS), _DIV), _FLOOR)
        rest = net.binary(
            net.unary(a, UnaryOperation.ABS), net.binary(size, net.unary(b, UnaryOperation.ABS), _PROD), _SUB
        )
        return net.binary(rest, net.unary(a, UnaryOperation.SIGN), _PROD)
    quotient = net.binary(a, b, _DIV if fmod else ElementWiseOperation.FLOOR_DIV)
    return net.binary(a, net.binary(quotient, b, _PROD), _SUB)


_DIV: Final = ElementWiseOperation.DIV
_PROD: Final = ElementWiseOperation.PROD
_SUB: Final = ElementWiseOperation.SUB
_FLOOR: Final = UnaryOperation.FLOOR


@operator("BitwiseNot", since=18)
def bitwise_not(net: NetworkWriter, x: ITensor) -> ITensor:
    """BitwiseNot(X) -> Y: -1 - X"""
    if x.dtype not in INDICES | {DataType.INT8}:
        raise Unsupported(f"BitwiseNot of {x.dtype.name}", ErrorCode.UNSUPPORTED_NODE_DATATYPE)
    return net.output(net.network.add_elementwise(net.scalar_like(-1, x), x, _SUB))


@operator("Clip", since=6)
def clip_6(net: NetworkWriter, x: ITensor, *, min: float = -3.4028234e38, max: float = 3.4028234e38) -> ITensor:
    """Clip(input; min, max) -> output"""
    return net.activation(x, ActivationType.CLIP, min, max)


@operator("Clip", since=11)
def clip(net: NetworkWriter, x: ITensor, min: Operand | None = None, max: Operand | None = None) -> ITensor:
    """Clip(input, min, max) -> output"""
    low, high = (net.numbers(bound) for bound in (min, max))
    known = all(bound is None or value is not None for bound, value in ((min, low), (max, high)))
    if x.dtype in FLOATS and known:
        least = low[0] if low else -math.inf
        most = high[0] if high else math.inf
        if least <= most:
            return net.activation(x, ActivationType.CLIP, _finite(least), _finite(most))
    for bound, op in ((min, ElementWiseOperation.MAX), (max, ElementWiseOperation.MIN)):
        if bound is not None:
            x = net.binary(x, net.tensor(bound), op)
    return net.output(net.network.add_identity(x)) if min is None and max is None else x


_FLT_MAX: Final = 3.4028234663852886e38


def _finite(bound: float) -> float:
    return math.copysign(_FLT_MAX, bound) if math.isinf(bound) else bound
