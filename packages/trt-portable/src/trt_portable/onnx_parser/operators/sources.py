"""Tensors that are made of nothing but numbers: constants, ranges, random ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trt_portable.dims import MAX_RANK, MAX_VOLUME
from trt_portable.enums import DataType, ErrorCode, FillOperation, UnaryOperation
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import DOUBLE, Initializer, dtype_of, from_array
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import Extent, NetworkWriter, Operand

if TYPE_CHECKING:
    from onnx import TensorProto

    from trt_portable.onnx_parser.graph_walk import ImportingWriter


@operator("Constant")
def constant(
    net: ImportingWriter,
    *,
    value: TensorProto | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
    value_string: str | None = None,
    value_strings: list[str] | None = None,
    sparse_value: Any = None,
) -> Initializer:
    """Constant(; value) -> output"""
    if value is not None:
        made = net.read_constant(value)
        made.name = made.name or net.node.name
        return made
    for number, kind in (
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
    ):
        if number is not None:
            return from_array(np.asarray(number, kind), net.node.name)
    what = "sparse" if sparse_value is not None else "of strings, or empty"
    raise Unsupported(f"the constant is {what}", ErrorCode.UNSUPPORTED_NODE_ATTR)


@operator("ConstantOfShape", since=9)
def constant_of_shape(net: ImportingWriter, shape: Operand, *, value: TensorProto | None = None) -> Operand:
    """ConstantOfShape(input; value) -> output"""
    filled = from_array(np.zeros(1, np.float32)) if value is None else net.read_constant(value)
    if filled.array.size != 1:
        raise Unsupported("the value of ConstantOfShape has more than one element", ErrorCode.INVALID_NODE)
    extents = net.numbers(shape)
    if extents is not None:
        known = [int(extent) for extent in extents]
        if any(extent < 0 for extent in known) or math.prod(known) > MAX_VOLUME:
            raise Unsupported(f"a constant of shape {known}", ErrorCode.UNSUPPORTED_NODE_SHAPE)
        if net.has_room(math.prod(known)):
            whole = np.broadcast_to(filled.array.reshape(()), known)
            return Initializer("", tuple(known), filled.elem_type, np.ascontiguousarray(whole))
    target = net.index_vector(shape)
    rank = target.shape[0]
    if not 0 <= rank <= MAX_RANK:
        raise Unsupported(f"a constant of {rank} extents", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    one = net.tensor(Initializer("", (1,) * rank, filled.elem_type, filled.array.reshape((1,) * rank)))
    return filled_like(net, one, target)


def filled_like(net: NetworkWriter, one: ITensor, target: ITensor) -> ITensor:
    """A tensor of one element repeated to the extents that a tensor of int64 gives."""
    rank = net.rank(one)
    layer = net.layer(net.network.add_slice(one, (0,) * rank, (0,) * rank, (0,) * rank))
    layer.set_input(2, target)
    return net.output_of(layer)


@operator("Range", since=11)
def range_of(net: NetworkWriter, start: Operand, limit: Operand, delta: Operand) -> Operand:
    """Range(start, limit, delta) -> output"""
    known = [net.numbers(number) for number in (start, limit, delta)]
    if any(number is not None and len(number) != 1 for number in known):
        raise Unsupported("Range of other than single numbers", ErrorCode.INVALID_NODE)
    dtype = start.dtype
    if all(number is not None for number in known) and dtype in _NUMPY:
        first, last, step = (number[0] for number in known if number is not None)
        if step == 0 or not abs((last - first) / step) <= MAX_VOLUME:
            raise Unsupported(f"a range from {first} to {last} by {step}", ErrorCode.INVALID_NODE)
        if net.has_room(abs((last - first) / step)):
            return from_array(np.arange(first, last, step, dtype=_NUMPY[dtype]))
    begin, end, step_by = (net.scalar(net.tensor(number)) for number in (start, limit, delta))
    kind = dtype
    if dtype in (DataType.HALF, DataType.BF16):
        dtype = DataType.FLOAT
        begin, end, step_by = (net.cast(number, dtype) for number in (begin, end, step_by))
    if dtype in (DataType.INT32, DataType.INT64):
        span = net.binary(begin, end, Op.SUB)  # -ceil(a / b) = floor(-a / b)
        negative = net.binary(span, step_by, Op.FLOOR_DIV)
        count = net.binary(net.constant(0, dtype), negative, Op.SUB)
    else:
        span = net.binary(net.binary(end, begin, Op.SUB), step_by, Op.DIV)
        count = net.unary(span, UnaryOperation.CEIL)
    count = net.binary(net.cast(count, DataType.INT64), net.constant(0, DataType.INT64), Op.MAX)
    layer = net.layer(net.network.add_fill((0,), FillOperation.LINSPACE, dtype))
    layer.set_input(0, net.reshape(count, (1,)))
    layer.set_input(1, begin)
    layer.set_input(2, net.reshape(step_by, (1,)))
    return net.cast(net.output_of(layer), kind)


_NUMPY: Final = {DataType.FLOAT: np.float32, DataType.INT32: np.int32, DataType.INT64: np.int64}


def ramp(net: NetworkWriter, count: Extent) -> ITensor:
    """0, 1, ... as int64, (count,)."""
    if isinstance(count, int) and count <= 1 << 20:
        return net.constant(np.arange(count), DataType.INT64)
    layer = net.layer(net.network.add_fill((0,), FillOperation.LINSPACE, DataType.INT64))
    layer.set_input(0, net.as_tensor(count))
    layer.set_input(1, net.constant(0, DataType.INT64))
    layer.set_input(2, net.constant([1], DataType.INT64))
    return net.output_of(layer)


def ramp_along(net: NetworkWriter, x: ITensor, axis: int) -> ITensor:
    """The index along an axis, int64, of the rank of a tensor and with extent 1 on the other axes."""
    rank = net.rank(x)
    return net.unsqueeze(ramp(net, net.extents(x)[axis]), [place for place in range(rank) if place != axis])


@operator("EyeLike", since=9)
def eye_like(net: NetworkWriter, x: ITensor, *, dtype: int | None = None, k: int = 0) -> ITensor:
    """EyeLike(input; dtype, k) -> output"""
    if net.rank(x) != 2:
        raise Unsupported("EyeLike of a tensor that is no matrix", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    kind = x.dtype if dtype is None else DataType.FLOAT if dtype == DOUBLE else dtype_of(dtype, "the result")
    rows = net.with_number(ramp_along(net, x, 0), k, Op.SUM)
    return net.cast(net.binary(rows, ramp_along(net, x, 1), Op.EQUAL), kind)


def _random(
    net: NetworkWriter, op: FillOperation, extents: list[Extent], kind: DataType, alpha: float, beta: float
) -> ITensor:
    made = kind if kind is DataType.HALF else DataType.FLOAT
    layer = net.layer(net.network.add_fill((0,) * len(extents), op, made))
    if all(isinstance(extent, int) for extent in extents):
        layer.shape = tuple(extents)
    else:
        layer.set_input(0, net.vector(extents))
    layer.alpha, layer.beta = float(alpha), float(beta)
    return net.cast(net.output_of(layer), kind)


_NORMAL: Final = {"mean": 0.0, "scale": 1.0}
_UNIFORM: Final = {"low": 0.0, "high": 1.0}


def _distributed(net: NetworkWriter, extents: list[Extent], kind: DataType, given: Mapping[str, float]) -> ITensor:
    """Random numbers of the distribution that the operator at hand is named after, whose seed is ignored."""
    if "Normal" in net.node.operator:
        return _random(net, FillOperation.RANDOM_NORMAL, extents, kind, *{**_NORMAL, **given}.values())
    return _random(net, FillOperation.RANDOM_UNIFORM, extents, kind, *{**_UNIFORM, **given}.values())


@operator("RandomNormal", attributes=_NORMAL)
@operator("RandomUniform", attributes=_UNIFORM)
def random(
    net: NetworkWriter, *, shape: list[int], dtype: int = 1, seed: float | None = None, **given: float
) -> ITensor:
    """RandomNormal(; shape, dtype, mean, scale, seed) -> output"""
    return _distributed(net, [*shape], dtype_of(dtype, "the result"), given)


@operator("RandomNormalLike", attributes=_NORMAL)
@operator("RandomUniformLike", attributes=_UNIFORM)
def random_like(
    net: NetworkWriter, x: ITensor, *, dtype: int | None = None, seed: float | None = None, **given: float
) -> ITensor:
    """RandomNormalLike(input; dtype, mean, scale, seed) -> output"""
    return _distributed(net, net.extents(x), x.dtype if dtype is None else dtype_of(dtype, "the result"), given)


@operator("Bernoulli", since=15)
def bernoulli(net: NetworkWriter, x: ITensor, *, dtype: int | None = None, seed: float | None = None) -> ITensor:
    """Bernoulli(input; dtype, seed) -> output: 1 with the probability that the input says; the seed is ignored"""
    kind = x.dtype if dtype is None else dtype_of(dtype, "the result")
    drawn = _random(net, FillOperation.RANDOM_UNIFORM, net.extents(x), x.dtype, 0.0, 1.0)
    return net.cast(net.binary(drawn, x, Op.LESS), kind)
