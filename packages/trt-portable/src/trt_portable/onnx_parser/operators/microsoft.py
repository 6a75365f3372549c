"""Operators of the domain `com.microsoft` that ONNX Runtime's quantization writes; TensorRT's own parser has none.

Each computes in floats between its scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trt_portable.enums import ActivationType, ErrorCode, ReduceOperation
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.operators.quantization import dequantize_linear, quantize_linear
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

_DOMAIN: Final = "com.microsoft"
_BINARY: Final = {"QLinearAdd": Op.SUM, "QLinearMul": Op.PROD}


@operator(*_BINARY, domain=_DOMAIN)
def qlinear_binary(
    net: NetworkWriter,
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand | None,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand | None,
    c_scale: Operand,
    c_zero_point: Operand | None = None,
) -> ITensor:
    """QLinearAdd(A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point) -> C, broadcast"""
    left, right = (
        dequantize_linear(net, *operand) for operand in ((a, a_scale, a_zero_point), (b, b_scale, b_zero_point))
    )
    return quantize_linear(net, net.binary(left, right, _BINARY[net.node.operator]), c_scale, c_zero_point)


def _through_floats(
    net: NetworkWriter,
    x: Operand,
    scales: tuple[Operand, Operand | None, Operand, Operand | None],
    compute: Callable[[ITensor], ITensor],
) -> ITensor:
    """What a function makes of numbers that codes stand for, as codes of another scale."""
    x_scale, x_zero_point, y_scale, y_zero_point = scales
    return quantize_linear(net, compute(dequantize_linear(net, x, x_scale, x_zero_point)), y_scale, y_zero_point)


@operator("QLinearSigmoid", "QLinearLeakyRelu", domain=_DOMAIN)
def qlinear_activation(
    net: NetworkWriter,
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand | None,
    y_scale: Operand,
    y_zero_point: Operand | None = None,
    *,
    alpha: float = 0.01,
) -> ITensor:
    """QLinearLeakyRelu(X, X_scale, X_zero_point, Y_scale, Y_zero_point; alpha) -> Y, and its like"""
    kind = ActivationType.SIGMOID if net.node.operator == "QLinearSigmoid" else ActivationType.LEAKY_RELU
    return _through_floats(
        net, x, (x_scale, x_zero_point, y_scale, y_zero_point), lambda wide: net.activation(wide, kind, alpha)
    )


@operator("QLinearGlobalAveragePool", domain=_DOMAIN)
def qlinear_global_average_pool(
    net: NetworkWriter,
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand | None,
    y_scale: Operand,
    y_zero_point: Operand | None = None,
    *,
    channels_last: int = 0,
) -> ITensor:
    """QLinearGlobalAveragePool(X, x_scale, x_zero_point, y_scale, y_zero_point; channels_last) -> Y"""
    axes = range(1, net.rank(x) - 1) if channels_last else range(2, net.rank(x))
    return _through_floats(
        net,
        x,
        (x_scale, x_zero_point, y_scale, y_zero_point),
        lambda wide: net.reduce(wide, ReduceOperation.AVG, axes, True),
    )


@operator("QLinearConcat", domain=_DOMAIN)
def qlinear_concat(net: NetworkWriter, y_scale: Operand, y_zero_point: Operand, *inputs: Operand, axis: int) -> ITensor:
    """QLinearConcat(Y_scale, Y_zero_point, inputs; axis) -> Y; of each input its codes, scale and zero point"""
    if not inputs or len(inputs) % 3:
        raise Unsupported(f"QLinearConcat of {len(inputs)} inputs, not three of each", ErrorCode.INVALID_NODE)
    parts = [dequantize_linear(net, *inputs[at : at + 3]) for at in range(0, len(inputs), 3)]
    return quantize_linear(net, net.concat(parts, net.axis(axis, net.rank(parts[0]))), y_scale, y_zero_point)


@operator("QGemm", domain=_DOMAIN)
def qgemm(
    net: NetworkWriter,
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    c: Operand | None = None,
    y_scale: Operand | None = None,
    y_zero_point: Operand | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> ITensor:
    """QGemm(A, a_scale, a_zero_point, B, ..., C, y_scale, y_zero_point; alpha, transA, transB) -> Y"""
    left = dequantize_linear(net, a, a_scale, a_zero_point, axis=0)
    right = dequantize_linear(net, b, b_scale, b_zero_point, axis=0 if transB else 1)
    product = net.with_number(net.matmul(left, right, (bool(transA), bool(transB))), alpha, Op.PROD)
    if c is not None:  # int32, in steps of alpha and both scales
        steps = net.with_number(net.binary(net.tensor(a_scale), net.tensor(b_scale), Op.PROD), alpha, Op.PROD)
        bias = net.cast(net.tensor(c), product.dtype)
        product = net.binary(product, net.binary(bias, steps, Op.PROD), Op.SUM)
    return product if y_scale is None else quantize_linear(net, product, y_scale, y_zero_point)
