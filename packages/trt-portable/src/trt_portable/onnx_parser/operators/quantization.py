"""Quantization: layers of the network where TensorRT has them, arithmetic where zero points are not zero.

Codes of type uint8, which TensorRT has at the ends of networks only, are int32 inside.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trt_portable.dtypes import FLOATS, QUANTIZED
from trt_portable.enums import DataType, ErrorCode, ReduceOperation, UnaryOperation
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import Initializer, dtype_of
from trt_portable.onnx_parser.operators.convolution import FILTER_ATTRIBUTES, conv
from trt_portable.onnx_parser.operators.movement import nan_beyond_fp8
from trt_portable.onnx_parser.operators.products import matmul
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

_RANGES: Final = {DataType.INT8: (-128, 127), DataType.UINT8: (0, 255), DataType.INT4: (-8, 7)}


def _is_zero(net: NetworkWriter, zero_point: Operand | None) -> bool:
    numbers = net.numbers(zero_point)
    return zero_point is None or (numbers is not None and not any(numbers))


def _scale_and_axis(net: NetworkWriter, x: Operand, scale: Operand, axis: int, block_size: int) -> tuple[ITensor, int]:
    """The scale as the layers take it, and the axis of its channels; -1 where it has none."""
    tensor = net.tensor(scale)
    rank = net.rank(x)
    if net.rank(tensor) == 0 or tuple(tensor.shape) == (1,):
        return net.scalar(tensor), -1
    if net.rank(tensor) == 1:
        return tensor, net.axis(axis, rank)
    if not block_size:
        raise Unsupported(f"scales of shape {tuple(tensor.shape)} without block_size", ErrorCode.INVALID_NODE)
    return tensor, -1


@operator("QuantizeLinear", since=10)
def quantize_linear(
    net: NetworkWriter,
    x: ITensor,
    y_scale: Operand,
    y_zero_point: Operand | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> ITensor:
    """QuantizeLinear(x, y_scale, y_zero_point; axis, block_size, output_dtype, precision, saturate) -> y"""
    if output_dtype:
        target = dtype_of(output_dtype, "the result")
    else:
        target = DataType.UINT8 if y_zero_point is None else y_zero_point.dtype
    if target is DataType.INT32:  # as which zero points of type uint8 are held
        target = DataType.UINT8
    if x.dtype not in FLOATS:
        x = net.cast(x, DataType.FLOAT)
    if target in QUANTIZED and _is_zero(net, y_zero_point) and net.rank(x) > 0:
        scale, place = _scale_and_axis(net, x, y_scale, axis, block_size)
        if scale.dtype in FLOATS and scale.dtype is not x.dtype and scale.dtype is not DataType.FLOAT:
            scale = net.cast(scale, x.dtype)
        if target is DataType.FP8 and not saturate:
            steps = _spread(net, x, y_scale, axis, block_size)
            x = net.through(x, DataType.FLOAT, lambda wide: nan_beyond_fp8(net, wide, steps))
        layer = net.layer(net.network.add_quantize(x, scale, target))
        if place >= 0:
            layer.axis = place
        return net.output_of(layer)
    if target not in _RANGES:
        raise Unsupported(f"quantization to {target.name} with a zero point", ErrorCode.UNSUPPORTED_NODE_DATATYPE)
    low, high = _RANGES[target]
    factor, zero = (_spread(net, x, number, axis, block_size) for number in (y_scale, y_zero_point))
    assert factor is not None
    value = net.unary(net.binary(net.cast(x, DataType.FLOAT), factor, Op.DIV), UnaryOperation.ROUND)
    if zero is not None:
        value = net.binary(value, zero, Op.SUM)
    value = net.with_number(net.with_number(value, low, Op.MAX), high, Op.MIN)
    if target is DataType.INT4:
        return net.output(net.network.add_quantize(value, net.constant(1.0, DataType.FLOAT), target))
    return net.mark_byte(net.cast(value, DataType.INT32)) if target is DataType.UINT8 else net.cast(value, target)


def _spread(net: NetworkWriter, x: Operand, number: Operand | None, axis: int, block_size: int) -> ITensor | None:
    """A scale or zero point as floats that broadcast to the data."""
    if number is None:
        return None
    tensor = _as_floats(net, number)
    rank = net.rank(x)
    if net.rank(tensor) == 0 or tuple(tensor.shape) == (1,):
        return net.scalar(tensor)
    if net.rank(tensor) == 1 and not block_size:
        place = net.axis(axis, rank)
        return net.unsqueeze(tensor, [other for other in range(rank) if other != place])
    place = net.axis(axis, rank)
    wide = net.extents(tensor)
    blocks = [*wide[: place + 1], block_size, *wide[place + 1 :]]
    repeated = net.expand(net.unsqueeze(tensor, [place + 1]), blocks)
    wide[place] = net.combine(wide[place], block_size, Op.PROD)
    spread = net.reshape(repeated, wide)
    have = x.shape[place]
    return spread if have < 0 or spread.shape[place] == have else net.narrow(spread, place, 0, have)


def _as_floats(net: NetworkWriter, number: Operand) -> ITensor:
    """Numbers of any type as floats; of constants also those that TensorRT does not compute with."""
    if isinstance(number, Initializer):
        if number.array.dtype.kind in "iub" or number.elem_type not in (1, 10, 16):
            return net.constant(number.array.astype(np.float32), DataType.FLOAT)
        return net.cast(net.tensor(number), DataType.FLOAT)
    if number.dtype in (DataType.FP8, DataType.INT4, DataType.FP4):
        return net.output(net.network.add_dequantize(number, net.constant(1.0, DataType.FLOAT), DataType.FLOAT))
    return net.cast(number, DataType.FLOAT)


@operator("DequantizeLinear", since=10)
def dequantize_linear(
    net: NetworkWriter,
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> ITensor:
    """DequantizeLinear(x, x_scale, x_zero_point; axis, block_size, output_dtype) -> y"""
    target = dtype_of(output_dtype, "the result") if output_dtype else x_scale.dtype
    if target is DataType.E8M0:
        target = DataType.FLOAT
    is_known = not isinstance(x, Initializer) or x.elem_type in (3, 17, 22, 23)
    if is_known and x.dtype in QUANTIZED and _is_zero(net, x_zero_point) and net.rank(x) > 0:
        scale, place = _scale_and_axis(net, x, x_scale, axis, block_size)
        if scale.dtype in (DataType.HALF, DataType.BF16) and scale.dtype is not target:
            scale = net.cast(scale, target)
        layer = net.layer(net.network.add_dequantize(net.tensor(x), scale, target))
        if place >= 0:
            layer.axis = place
        return net.output_of(layer)
    value = _as_floats(net, x)
    factor, zero = (_spread(net, x, number, axis, block_size) for number in (x_scale, x_zero_point))
    assert factor is not None
    if zero is not None:
        value = net.binary(value, zero, Op.SUB)
    return net.cast(net.binary(value, factor, Op.PROD), target)


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(net: NetworkWriter, x: ITensor) -> tuple[ITensor, ITensor, ITensor]:
    """DynamicQuantizeLinear(x) -> (y, y_scale, y_zero_point), uint8"""
    axes = range(net.rank(x))
    low = net.with_number(net.reduce(x, ReduceOperation.MIN, axes, False), 0, Op.MIN)
    high = net.with_number(net.reduce(x, ReduceOperation.MAX, axes, False), 0, Op.MAX)
    scale = net.with_number(net.binary(high, low, Op.SUB), 255, Op.DIV)
    offset = net.binary(net.unary(low, UnaryOperation.NEG), scale, Op.DIV)
    clipped = net.with_number(net.with_number(offset, 0, Op.MAX), 255, Op.MIN)
    zero = net.unary(clipped, UnaryOperation.ROUND)
    value = net.binary(net.unary(net.binary(x, scale, Op.DIV), UnaryOperation.ROUND), zero, Op.SUM)
    value = net.with_number(net.with_number(value, 0, Op.MAX), 255, Op.MIN)
    return net.cast(value, DataType.INT32), scale, net.cast(zero, DataType.INT32)


@operator("QLinearMatMul", since=10)
def qlinear_matmul(
    net: NetworkWriter,
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
) -> ITensor:
    """QLinearMatMul(a, a_scale, a_zero_point, b, ..., y_zero_point) -> y"""
    left = dequantize_linear(net, a, a_scale, a_zero_point, axis=max(net.rank(a) - 2, 0))
    right = dequantize_linear(net, b, b_scale, b_zero_point, axis=net.rank(b) - 1)
    return quantize_linear(net, matmul(net, left, right), y_scale, y_zero_point, axis=-1)


@operator("QLinearConv", since=10, attributes=FILTER_ATTRIBUTES)
def qlinear_conv(
    net: NetworkWriter,
    x: Operand,
    x_scale: Operand,
    x_zero_point: Operand,
    w: Operand,
    w_scale: Operand,
    w_zero_point: Operand,
    y_scale: Operand,
    y_zero_point: Operand,
    b: Operand | None = None,
    **filters: Any,
) -> ITensor:
    """QLinearConv(x, x_scale, x_zero_point, w, ..., B; as Conv) -> y"""
    image = dequantize_linear(net, x, x_scale, x_zero_point)
    kernel = dequantize_linear(net, w, w_scale, w_zero_point, axis=0)
    bias = None
    if b is not None:  # int32, in steps of both scales
        steps = net.binary(net.tensor(x_scale), net.tensor(w_scale), Op.PROD)
        bias = net.binary(net.cast(net.tensor(b), DataType.FLOAT), steps, Op.PROD)
    result = conv(net, image, kernel, bias, **filters)
    return quantize_linear(net, result, y_scale, y_zero_point)


@operator("ConvInteger", since=10, attributes=FILTER_ATTRIBUTES)
def conv_integer(
    net: NetworkWriter,
    x: Operand,
    w: Operand,
    x_zero_point: Operand | None = None,
    w_zero_point: Operand | None = None,
    **filters: Any,
) -> ITensor:
    """ConvInteger(x, w, x_zero_point, w_zero_point; as Conv) -> y, int32"""
    operands = []
    for value, zero_point in ((x, x_zero_point), (w, w_zero_point)):
        floats, zero = _as_floats(net, value), _spread(net, value, zero_point, 0, 0)
        operands.append(floats if zero is None else net.binary(floats, zero, Op.SUB))
    result = conv(net, *operands, **filters)
    return net.cast(net.unary(result, UnaryOperation.ROUND), DataType.INT32)
