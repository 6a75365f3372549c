"""Normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trt_portable.enums import DataType, ElementWiseOperation, ErrorCode, ReduceOperation, UnaryOperation
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import DOUBLE, dtype_of
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter

_SUM: Final = ElementWiseOperation.SUM
_SUB: Final = ElementWiseOperation.SUB
_PROD: Final = ElementWiseOperation.PROD
_DIV: Final = ElementWiseOperation.DIV


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
            net.binary(net.with_number(old, momentum, _PROD), net.with_number(new, 1 - momentum, _PROD), _SUM)
            for old, new in ((input_mean, mean), (input_var, var))
        )
    deviation = net.unary(net.with_number(var, epsilon, _SUM), UnaryOperation.SQRT)
    factor = net.binary(net.cast(scale, wide), deviation, _DIV)
    shift = net.binary(net.cast(b, wide), net.binary(mean, factor, _PROD), _SUB)
    factor, shift = (_per_channel(net, number, rank) for number in (factor, shift))
    return net.cast(net.binary(net.binary(net.cast(x, wide), factor, _PROD), shift, _SUM), kind), *results


def _moments(net: NetworkWriter, x: ITensor, axes: Sequence[int]) -> tuple[ITensor, ITensor]:
    """Mean and biased variance along axes, which are kept."""
    mean = net.reduce(x, ReduceOperation.AVG, axes, True)
    centered = net.binary(x, mean, _SUB)
    return mean, net.reduce(net.binary(centered, centered, _PROD), ReduceOperation.AVG, axes, True)


def _normalized(
    net: NetworkWriter, x: ITensor, scale: ITensor, bias: ITensor, axes: Sequence[int], epsilon: float, groups: int = 1
) -> ITensor:
    """The network's own layer; scale and bias have the rank of the input."""
    mask = sum(1 << axis for axis in axes)
    layer = net.layer(net.network.add_normalization_v2(x, scale, bias, mask))
    layer.epsilon = epsilon
    layer.num_groups = groups
    return net.output_of(layer)


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
    deviation = net.unary(net.with_number(var, epsilon, _SUM), UnaryOperation.SQRT)
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
    power = net.reduce(net.binary(wide, wide, _PROD), ReduceOperation.AVG, axes, True)
    root = net.unary(net.with_number(power, epsilon, _SUM), UnaryOperation.SQRT)
    normalized = net.cast(net.binary(wide, root, _DIV), x.dtype)
    return net.binary(normalized, net.cast(scale, x.dtype), _PROD)


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(net: NetworkWriter, x: ITensor, *, axes: list[int] | None = None) -> ITensor:
    """MeanVarianceNormalization(X; axes) -> Y"""
    chosen = net.axes([0, 2, 3] if axes is None else axes, net.rank(x))
    mean, var = _moments(net, x, chosen)
    deviation = net.with_number(net.unary(var, UnaryOperation.SQRT), 1e-9, _SUM)
    return net.binary(net.binary(x, mean, _SUB), deviation, _DIV)


@operator("LRN")
def lrn(
    net: NetworkWriter, x: ITensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> ITensor:
    """LRN(X; alpha, beta, bias, size) -> Y"""
    return net.output(net.network.add_lrn(x, size, alpha, beta, bias))
