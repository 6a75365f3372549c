"""Comparisons, logic and choices."""

from __future__ import annotations

from typing import Final

from trt_portable.enums import DataType, ElementWiseOperation, UnaryOperation
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter

_LOGIC: Final = {"And": ElementWiseOperation.AND, "Or": ElementWiseOperation.OR, "Xor": ElementWiseOperation.XOR}


@operator(*_LOGIC, since=7)
def logic(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """And(A, B) -> C"""
    return net.binary(a, b, _LOGIC[net.node.operator])


@operator("Not")
def logical_not(net: NetworkWriter, x: ITensor) -> ITensor:
    """Not(X) -> Y"""
    return net.logical_not(x)


@operator("Equal", since=7)
def equal(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """Equal(A, B) -> C"""
    if a.dtype is DataType.BOOL:
        return net.logical_not(net.binary(a, b, ElementWiseOperation.XOR))
    return _compared(net, a, b, ElementWiseOperation.EQUAL)


_ORDER: Final = {"Greater": ElementWiseOperation.GREATER, "Less": ElementWiseOperation.LESS}


@operator(*_ORDER, since=7)
def order(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """Greater(A, B) -> C"""
    return _compared(net, a, b, _ORDER[net.node.operator])


@operator("GreaterOrEqual", "LessOrEqual", since=12)
def order_or_equal(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """GreaterOrEqual(A, B) -> C; false for NaN"""
    op = _ORDER[net.node.operator.removesuffix("OrEqual")]
    same = _compared(net, a, b, ElementWiseOperation.EQUAL)
    return net.binary(_compared(net, a, b, op), same, ElementWiseOperation.OR)


def _compared(net: NetworkWriter, a: ITensor, b: ITensor, op: ElementWiseOperation) -> ITensor:
    if a.dtype is DataType.INT8:
        a, b = net.cast(a, DataType.INT32), net.cast(b, DataType.INT32)
    return net.binary(a, b, op)


@operator("Where", since=9)
def where(net: NetworkWriter, condition: ITensor, x: ITensor, y: ITensor) -> ITensor:
    """Where(condition, X, Y) -> output"""
    return net.select(condition, x, y)


@operator("IsNaN", since=9)
def is_nan(net: NetworkWriter, x: ITensor) -> ITensor:
    """IsNaN(X) -> Y"""
    return net.unary(x, UnaryOperation.ISNAN)


@operator("IsInf", since=10)
def is_inf(net: NetworkWriter, x: ITensor, *, detect_negative: int = 1, detect_positive: int = 1) -> ITensor:
    """IsInf(X; detect_negative, detect_positive) -> Y"""
    net.require_float(x)
    found = net.unary(x, UnaryOperation.ISINF)
    if detect_negative and detect_positive:
        return found
    if not detect_negative and not detect_positive:
        return net.binary(found, net.logical_not(found), ElementWiseOperation.AND)
    op = ElementWiseOperation.LESS if detect_negative else ElementWiseOperation.GREATER
    return net.binary(found, net.with_number(x, 0, op), ElementWiseOperation.AND)
