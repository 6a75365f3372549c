"""Reductions, searches and sums along axes."""

from __future__ import annotations

from typing import Final

from trt_portable.dtypes import FLOATS
from trt_portable.enums import (
    CumulativeOperation,
    DataType,
    ElementWiseOperation,
    ErrorCode,
    ReduceOperation,
    TopKOperation,
    UnaryOperation,
)
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.operators.sources import ramp_along
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

_PROD: Final = ElementWiseOperation.PROD

_KINDS: Final = {
    "ReduceSum": ReduceOperation.SUM,
    "ReduceProd": ReduceOperation.PROD,
    "ReduceMax": ReduceOperation.MAX,
    "ReduceMin": ReduceOperation.MIN,
    "ReduceMean": ReduceOperation.AVG,
    "ReduceL1": ReduceOperation.SUM,
    "ReduceL2": ReduceOperation.SUM,
    "ReduceLogSum": ReduceOperation.SUM,
    "ReduceLogSumExp": ReduceOperation.SUM,
    "ReduceSumSquare": ReduceOperation.SUM,
}


@operator(*_KINDS)
def reduce_along(net: NetworkWriter, data: ITensor, *, axes: list[int] | None = None, keepdims: int = 1) -> ITensor:
    """ReduceSum(data; axes, keepdims) -> reduced"""
    rank = net.rank(data)
    return _reduced(net, data, range(rank) if axes is None else net.axes(axes, rank), bool(keepdims))


@operator("ReduceSum", since=13)
@operator(*_KINDS, since=18)
def reduce(
    net: NetworkWriter,
    data: ITensor,
    axes: Operand | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> ITensor:
    """ReduceSum(data, axes; keepdims, noop_with_empty_axes) -> reduced"""
    rank = net.rank(data)
    chosen = net.axes(net.integers(axes, "the axes"), rank) if axes is not None else []
    if not chosen and not noop_with_empty_axes:
        chosen = list(range(rank))
    return _reduced(net, data, chosen, bool(keepdims))


def _reduced(net: NetworkWriter, data: ITensor, axes: list[int] | range, keep: bool) -> ITensor:
    kind, name = data.dtype, net.node.operator
    x = net.cast(data, DataType.INT32) if kind is DataType.BOOL else data
    if name in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2") and kind not in FLOATS:
        x = net.cast(x, DataType.FLOAT)
    if name == "ReduceLogSumExp":
        return net.cast(_log_sum_exp(net, x, list(axes), keep), kind)
    if name == "ReduceL1":
        x = net.unary(x, UnaryOperation.ABS)
    elif name in ("ReduceL2", "ReduceSumSquare"):
        x = net.binary(x, x, _PROD)
    x = net.reduce(x, _KINDS[name], list(axes), keep)
    if name == "ReduceL2":
        x = net.unary(x, UnaryOperation.SQRT)
    elif name == "ReduceLogSum":
        x = net.unary(x, UnaryOperation.LOG)
    if kind is DataType.BOOL and name == "ReduceMax":  # which is False of no elements
        x = net.with_number(x, 0, ElementWiseOperation.MAX)
    x = net.cast(x, kind)
    return net.output(net.network.add_identity(x)) if x is data else x


def _log_sum_exp(net: NetworkWriter, x: ITensor, axes: list[int], keep: bool) -> ITensor:
    """The logarithm of a sum of exponentials, without overflow; an infinite maximum is not subtracted."""
    most = net.reduce(x, ReduceOperation.MAX, axes, True)
    zero = net.scalar_like(0, most)
    shift = net.select(net.unary(most, UnaryOperation.ISINF), zero, most)
    powers = net.unary(net.binary(x, shift, ElementWiseOperation.SUB), UnaryOperation.EXP)
    total = net.reduce(powers, ReduceOperation.SUM, axes, True)
    result = net.binary(net.unary(total, UnaryOperation.LOG), shift, ElementWiseOperation.SUM)
    return result if keep else net.squeeze(result, axes)


def first_place(net: NetworkWriter, x: ITensor, axis: int, greatest: bool, last: bool = False) -> ITensor:
    """Where the extreme element along an axis is, int64, the axis kept; the first (or last) of equal ones."""
    op = ReduceOperation.MAX if greatest else ReduceOperation.MIN
    if x.dtype is DataType.BOOL:
        x = net.cast(x, DataType.INT32)
    best = net.reduce(x, op, [axis], True)
    if x.dtype is DataType.INT8:
        x, best = net.cast(x, DataType.INT32), net.cast(best, DataType.INT32)
    matches = net.binary(x, best, ElementWiseOperation.EQUAL)
    places = ramp_along(net, x, axis)
    other = net.scalar_like(-1 if last else (1 << 62), places)
    chosen = net.select(matches, places, other)
    return net.reduce(chosen, ReduceOperation.MAX if last else ReduceOperation.MIN, [axis], True)


@operator("ArgMax", "ArgMin")
def arg_extreme(
    net: NetworkWriter, data: ITensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> ITensor:
    """ArgMax(data; axis, keepdims, select_last_index) -> reduced"""
    chosen = net.axis(axis, net.rank(data))
    place = first_place(net, data, chosen, net.node.operator == "ArgMax", bool(select_last_index))
    return place if keepdims else net.squeeze(place, [chosen])


@operator("TopK", since=10)
def top_k(
    net: NetworkWriter, x: ITensor, k: Operand, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[ITensor, ITensor]:
    """TopK(X, K; axis, largest, sorted) -> (Values, Indices)"""
    if net.rank(x) == 1:  # for which there is no layer
        values, indices = top_k(net, net.unsqueeze(x, [0]), k, axis=1, largest=largest, sorted=sorted)
        return net.squeeze(values, [0]), net.squeeze(indices, [0])
    rank = net.rank(x)
    place = net.axis(axis, rank)
    order = [*(axis for axis in range(rank) if axis != place), place]
    moved = net.transpose(x, order) if place < rank - 4 else x
    at = rank - 1 if place < rank - 4 else place
    kind = x.dtype
    if kind is DataType.INT8:
        moved = net.cast(moved, DataType.INT32)
    op = TopKOperation.MAX if largest else TopKOperation.MIN
    count = net.numbers(k)
    layer = net.layer(net.network.add_topk(moved, op, int(count[0]) if count else 0, 1 << at, DataType.INT64))
    if count is None:
        layer.set_input(1, net.scalar(net.cast(net.tensor(k), DataType.INT32)))
    values, indices = net.output_of(layer, 0), net.output_of(layer, 1)
    if moved is not x and place < rank - 4:
        back = [order.index(axis) for axis in range(rank)]
        values, indices = net.transpose(values, back), net.transpose(indices, back)
    return net.cast(values, kind), indices


@operator("TopK")
def top_k_1(net: NetworkWriter, x: ITensor, *, k: int, axis: int = -1) -> tuple[ITensor, ITensor]:
    """TopK(X; k, axis) -> (Values, Indices)"""
    return top_k(net, x, net.constant([k], DataType.INT64), axis=axis)


@operator("CumSum", since=11)
def cum_sum(net: NetworkWriter, x: ITensor, axis: Operand, *, exclusive: int = 0, reverse: int = 0) -> ITensor:
    """CumSum(x, axis; exclusive, reverse) -> y"""
    (place,) = net.integers(axis, "the axis of CumSum")
    at = net.constant(net.axis(place, net.rank(x)), DataType.INT64)
    layer = net.network.add_cumulative(x, at, CumulativeOperation.SUM, bool(exclusive), bool(reverse))
    return net.output(layer)


@operator("LpNormalization")
def lp_normalization(net: NetworkWriter, x: ITensor, *, axis: int = -1, p: int = 2) -> ITensor:
    """LpNormalization(input; axis, p) -> output; 0 where the norm is 0"""
    net.require_float(x)
    at = [net.axis(axis, net.rank(x))]
    if p == 1:
        norm = net.reduce(net.unary(x, UnaryOperation.ABS), ReduceOperation.SUM, at, True)
    elif p == 2:
        norm = net.unary(net.reduce(net.binary(x, x, _PROD), ReduceOperation.SUM, at, True), UnaryOperation.SQRT)
    else:
        raise Unsupported(f"LpNormalization with p = {p}", ErrorCode.UNSUPPORTED_NODE_ATTR)
    is_zero = net.with_number(norm, 0, ElementWiseOperation.EQUAL)
    divisor = net.select(is_zero, net.scalar_like(1, norm), norm)
    return net.binary(x, divisor, ElementWiseOperation.DIV)
