"""Reductions, searches and sums along axes, and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trt_portable.dtypes import FLOATS
from trt_portable.enums import CumulativeOperation, DataType, ErrorCode, ReduceOperation, TopKOperation, UnaryOperation
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import DOUBLE, dtype_of
from trt_portable.onnx_parser.operators.sources import ramp_along
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

REDUCTIONS: Final = {
    "ReduceSum": ReduceOperation.SUM,
    "ReduceProd": ReduceOperation.PROD,
    "ReduceMax": ReduceOperation.MAX,
    "ReduceMin": ReduceOperation.MIN,
    "ReduceMean": ReduceOperation.AVG,
}
"""What ONNX calls reductions."""
_SUMS: Final = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


@operator(*REDUCTIONS, *_SUMS, from_attributes=("axes",))
@operator("ReduceSum", since=13)
@operator(*REDUCTIONS, *_SUMS, since=18)
def reduce(
    net: NetworkWriter, data: ITensor, axes: Operand | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> ITensor:
    """ReduceSum(data, axes; keepdims, noop_with_empty_axes) -> reduced"""
    rank = net.rank(data)
    chosen = net.axes(net.integers(axes, "the axes"), rank) if axes is not None else []
    if not chosen and not noop_with_empty_axes:
        chosen = list(range(rank))
    return _reduced(net, data, chosen, bool(keepdims))


def _reduced(net: NetworkWriter, data: ITensor, axes: list[int], keep: bool) -> ITensor:
    kind, name = data.dtype, net.node.operator
    x = net.cast(data, DataType.INT32) if kind is DataType.BOOL else data
    if name in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2") and kind not in FLOATS:
        x = net.cast(x, DataType.FLOAT)
    if name == "ReduceLogSumExp":
        return net.cast(_log_sum_exp(net, x, axes, keep), kind)
    if name == "ReduceL1":
        x = net.unary(x, UnaryOperation.ABS)
    elif name in ("ReduceL2", "ReduceSumSquare"):
        x = net.binary(x, x, Op.PROD)
    x = net.reduce(x, REDUCTIONS.get(name, ReduceOperation.SUM), axes, keep)
    if name == "ReduceL2":
        x = net.unary(x, UnaryOperation.SQRT)
    elif name == "ReduceLogSum":
        x = net.unary(x, UnaryOperation.LOG)
    if kind is DataType.BOOL and name == "ReduceMax":  # which is False of no elements
        x = net.with_number(x, 0, Op.MAX)
    x = net.cast(x, kind)
    return net.output(net.network.add_identity(x)) if x is data else x


def _log_sum_exp(net: NetworkWriter, x: ITensor, axes: list[int], keep: bool) -> ITensor:
    """The logarithm of a sum of exponentials, without overflow; an infinite maximum is not subtracted."""
    most = net.reduce(x, ReduceOperation.MAX, axes, True)
    zero = net.scalar_like(0, most)
    shift = net.select(net.unary(most, UnaryOperation.ISINF), zero, most)
    powers = net.unary(net.binary(x, shift, Op.SUB), UnaryOperation.EXP)
    total = net.reduce(powers, ReduceOperation.SUM, axes, True)
    result = net.binary(net.unary(total, UnaryOperation.LOG), shift, Op.SUM)
    return result if keep else net.squeeze(result, axes)


def first_place(net: NetworkWriter, x: ITensor, axis: int, greatest: bool, last: bool = False) -> ITensor:
    """Where the extreme element along an axis is, int64, the axis kept; the first (or last) of equal ones."""
    op = ReduceOperation.MAX if greatest else ReduceOperation.MIN
    if x.dtype is DataType.BOOL:
        x = net.cast(x, DataType.INT32)
    best = net.reduce(x, op, [axis], True)
    if x.dtype is DataType.INT8:
        x, best = net.cast(x, DataType.INT32), net.cast(best, DataType.INT32)
    matches = net.binary(x, best, Op.EQUAL)
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


@operator("TopK", from_attributes=("k",))
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
        norm = net.unary(net.reduce(net.binary(x, x, Op.PROD), ReduceOperation.SUM, at, True), UnaryOperation.SQRT)
    else:
        raise Unsupported(f"LpNormalization with p = {p}", ErrorCode.UNSUPPORTED_NODE_ATTR)
    is_zero = net.with_number(norm, 0, Op.EQUAL)
    divisor = net.select(is_zero, net.scalar_like(1, norm), norm)
    return net.binary(x, divisor, Op.DIV)


def _per_channel(net: NetworkWriter, x: ITensor, rank: int) -> ITensor:
    """Numbers of the channels, (C,), with axes of extent 1 around."""
    return net.unsqueeze(x, [axis for axis in range(rank) if axis != 1]) if rank > 1 else x


@operator("BatchNormalization", since=7)
def batch_normalization(
    net: NetworkWriter,
    x: ITensor,
    scale: ITensor,
    b: ITensor,
    input_mean: ITensor,
    input_var: ITensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
) -> tuple[ITensor, ...]:
    """BatchNormalization(X, scale, B, input_mean, input_var; epsilon, momentum, training_mode) -> Y"""
    net.require_float(x)
    if not spatial:
        raise Unsupported("BatchNormalization with spatial = 0", ErrorCode.UNSUPPORTED_NODE_ATTR)
    rank, kind = net.rank(x), x.dtype
    wide = input_var.dtype
    results: tuple[ITensor, ...] = ()
    mean, var = input_mean, input_var
    if training_mode:
        axes = [axis for axis in range(rank) if axis != 1]
        mean, var = _moments(net, net.cast(x, wide), axes)
        mean, var = net.squeeze(mean, axes), net.squeeze(var, axes)
        results = tuple(
            net.binary(net.with_number(old, momentum, Op.PROD), net.with_number(new, 1 - momentum, Op.PROD), Op.SUM)
            for old, new in ((input_mean, mean), (input_var, var))
        )
    deviation = net.unary(net.with_number(var, epsilon, Op.SUM), UnaryOperation.SQRT)
    factor = net.binary(net.cast(scale, wide), deviation, Op.DIV)
    shift = net.binary(net.cast(b, wide), net.binary(mean, factor, Op.PROD), Op.SUB)
    factor, shift = (_per_channel(net, number, rank) for number in (factor, shift))
    return net.cast(net.binary(net.binary(net.cast(x, wide), factor, Op.PROD), shift, Op.SUM), kind), *results


def _moments(net: NetworkWriter, x: ITensor, axes: Sequence[int]) -> tuple[ITensor, ITensor]:
    """Mean and biased variance along axes, which are kept."""
    mean = net.reduce(x, ReduceOperation.AVG, axes, True)
    centered = net.binary(x, mean, Op.SUB)
    return mean, net.reduce(net.binary(centered, centered, Op.PROD), ReduceOperation.AVG, axes, True)


def _normalized(
    net: NetworkWriter, x: ITensor, scale: ITensor, bias: ITensor, axes: Sequence[int], epsilon: float, groups: int = 1
) -> ITensor:
    """The network's own layer; scale and bias have the rank of the input."""
    mask = sum(1 << axis for axis in axes)
    return net.output(net.network.add_normalization_v2(x, scale, bias, mask), epsilon=epsilon, num_groups=groups)


@operator("InstanceNormalization", since=6)
def instance_normalization(
    net: NetworkWriter, x: ITensor, scale: ITensor, b: ITensor, *, epsilon: float = 1e-5
) -> ITensor:
    """InstanceNormalization(input, scale, B; epsilon) -> output"""
    rank = net.rank(x)
    factor, shift = (_per_channel(net, number, rank) for number in (scale, b))
    return _normalized(net, x, factor, shift, range(2, rank), epsilon)


@operator("GroupNormalization", since=18)
def group_normalization_18(
    net: NetworkWriter, x: ITensor, scale: ITensor, bias: ITensor, *, epsilon: float = 1e-5, num_groups: int
) -> ITensor:
    """GroupNormalization(X, scale, bias; epsilon, num_groups) -> Y, with numbers per group"""
    channels = x.shape[1]
    if channels < 0 or num_groups < 1 or channels % num_groups:
        raise Unsupported(f"{channels} channels in {num_groups} groups", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    spread = []
    for number in (scale, bias):
        column = net.unsqueeze(number, [1])
        spread.append(net.reshape(net.expand(column, [num_groups, channels // num_groups]), [channels]))
    return group_normalization(net, x, *spread, epsilon=epsilon, num_groups=num_groups)


@operator("GroupNormalization", since=21)
def group_normalization(
    net: NetworkWriter,
    x: ITensor,
    scale: ITensor,
    bias: ITensor,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
) -> ITensor:
    """GroupNormalization(X, scale, bias; epsilon, num_groups, stash_type) -> Y, with numbers per channel"""
    rank, kind = net.rank(x), x.dtype
    factor, shift = (_per_channel(net, net.cast(n, DataType.FLOAT), rank) for n in (scale, bias))
    wide = net.cast(x, DataType.FLOAT)
    return net.cast(_normalized(net, wide, factor, shift, range(2, rank), epsilon, num_groups), kind)


@operator("LayerNormalization", since=17)
def layer_normalization(
    net: NetworkWriter,
    x: ITensor,
    scale: ITensor,
    b: ITensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[ITensor, ITensor | None, ITensor | None]:
    """LayerNormalization(X, Scale, B; axis, epsilon, stash_type) -> (Y, Mean, InvStdDev)"""
    rank, kind = net.rank(x), x.dtype
    axes = range(net.axis(axis, rank), rank)
    wide = _stash(net, x, stash_type)
    factor = net.broadcast(net.cast(scale, wide.dtype), wide)[0]
    shift = net.constant(np.zeros((1,) * rank), wide.dtype) if b is None else net.cast(b, wide.dtype)
    shift = net.broadcast(shift, wide)[0]
    if tuple(shift.shape) != tuple(factor.shape):
        extents = net.extents(wide)
        whole = [1 if place < axes[0] else extents[place] for place in range(rank)]
        factor, shift = net.expand(factor, whole), net.expand(shift, whole)
    y = net.cast(_normalized(net, wide, factor, shift, axes, epsilon), kind)
    if not any(net.node.wanted[1:]):
        return y, None, None
    mean, var = _moments(net, wide, axes)
    deviation = net.unary(net.with_number(var, epsilon, Op.SUM), UnaryOperation.SQRT)
    return y, mean, net.unary(deviation, UnaryOperation.RECIP)


def _stash(net: NetworkWriter, x: ITensor, stash_type: int) -> ITensor:
    return net.cast(x, DataType.FLOAT if stash_type in (1, DOUBLE) else dtype_of(stash_type, "the statistics"))


@operator("RMSNormalization", since=23)
def rms_normalization(
    net: NetworkWriter, x: ITensor, scale: ITensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> ITensor:
    """RMSNormalization(X, scale; axis, epsilon, stash_type) -> Y"""
    rank = net.rank(x)
    wide = _stash(net, x, stash_type)
    axes = range(net.axis(axis, rank), rank)
    power = net.reduce(net.binary(wide, wide, Op.PROD), ReduceOperation.AVG, axes, True)
    root = net.unary(net.with_number(power, epsilon, Op.SUM), UnaryOperation.SQRT)
    normalized = net.cast(net.binary(wide, root, Op.DIV), x.dtype)
    return net.binary(normalized, net.cast(scale, x.dtype), Op.PROD)


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(net: NetworkWriter, x: ITensor, *, axes: list[int] | None = None) -> ITensor:
    """MeanVarianceNormalization(X; axes) -> Y"""
    chosen = net.axes([0, 2, 3] if axes is None else axes, net.rank(x))
    mean, var = _moments(net, x, chosen)
    deviation = net.with_number(net.unary(var, UnaryOperation.SQRT), 1e-9, Op.SUM)
    return net.binary(net.binary(x, mean, Op.SUB), deviation, Op.DIV)


@operator("LRN")
def lrn(
    net: NetworkWriter, x: ITensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> ITensor:
    """LRN(X; alpha, beta, bias, size) -> Y"""
    return net.output(net.network.add_lrn(x, size, alpha, beta, bias))
