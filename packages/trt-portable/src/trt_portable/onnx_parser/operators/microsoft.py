"""Operators of the domain `com.microsoft` that ONNX Runtime's quantization writes; TensorRT's own parser has none.

Each computes in floats between its scales; matrices of few bits stay codes where engines multiply these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from trt_portable.enums import ActivationType, ErrorCode, ReduceOperation
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import Initializer, from_array, unpacked
from trt_portable.onnx_parser.operators.products import matmul
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


@operator("MatMulNBits", domain=_DOMAIN)
def matmul_of_few_bits(
    net: NetworkWriter,
    a: ITensor,
    b: Operand,
    scales: Operand,
    zero_points: Operand | None = None,
    g_idx: Operand | None = None,
    bias: ITensor | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> ITensor:
    """MatMulNBits(A, B, scales, zero_points, g_idx, bias; K, N, bits, block_size, ...) -> Y

    A row of B has the codes of one column of the product, in blocks: each has a scale, and a zero point that is half of
    all codes where none is given.
    """
    if g_idx is not None or weight_prepacked:
        raise Unsupported("MatMulNBits of rows in another order", ErrorCode.UNSUPPORTED_NODE_ATTR)
    if bits not in _CODES or block_size < 1 or block_size * bits % 8 or min(K, N) < 1:
        raise Unsupported(
            f"MatMulNBits of {bits} bits in blocks of {block_size} for K={K} and N={N}", ErrorCode.INVALID_NODE
        )
    blocks = math.ceil(K / block_size)
    packed = _elements(b, (N, blocks, block_size * bits // 8), "B")
    factors = _elements(scales, (N, blocks), "scales")
    codes = unpacked(packed, bits).astype(np.int16) - (1 << bits - 1)
    held = Initializer("", codes.shape, _CODES[bits], codes.astype(np.int8))
    matrix = dequantize_linear(net, held, from_array(factors[..., None]), axis=2, block_size=block_size)
    if zero_points is not None:
        zeros = _zero_points(zero_points, (N, blocks), bits) - (1 << bits - 1)
        matrix = net.binary(matrix, net.constant((zeros * factors)[..., None], matrix.dtype), Op.SUB)
    rows = net.reshape(matrix, [N, blocks * block_size])
    if blocks * block_size > K:
        rows = net.narrow(rows, 1, 0, K)
    product = matmul(net, a, net.transpose(rows, [1, 0]))
    return product if bias is None else net.binary(product, bias, Op.SUM)


_CODES: Final = {2: 22, 4: 22, 8: 3}
"""Of which of ONNX's types codes of so many bits are: INT4, INT8."""


def _elements(constant: Operand, shape: tuple[int, ...], name: str) -> np.ndarray[Any, Any]:
    """The elements of a constant of MatMulNBits, which may lie in other extents.

    Raises:
        Unsupported: It is computed by the model, or has another number of elements.
    """
    if not isinstance(constant, Initializer):
        raise Unsupported(f"MatMulNBits whose {name} the model computes", ErrorCode.UNSUPPORTED_NODE_INPUT)
    if constant.array.size != math.prod(shape):
        raise Unsupported(f"{name} of shape {constant.shape} in place of {shape}", ErrorCode.INVALID_NODE)
    return constant.array.reshape(shape)


def _zero_points(constant: Operand, shape: tuple[int, int], bits: int) -> np.ndarray[Any, Any]:
    """The zero point of each block: codes, each row of which begins with a byte, or numbers."""
    if isinstance(constant, Initializer) and constant.array.dtype != np.uint8:
        return _elements(constant, shape, "zero_points").astype(np.float32)
    rows, blocks = shape
    packed = _elements(constant, (rows, math.ceil(blocks * bits / 8)), "zero_points")
    return unpacked(packed, bits)[:, :blocks].astype(np.float32)
