"""Elements at computed places: gathering, scattering, searching, and boxes that do not overlap."""

from __future__ import annotations

import numpy as np

from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import (
    BoundingBoxFormat,
    DataType,
    ErrorCode,
    GatherMode,
    ReduceOperation,
    SampleMode,
    ScatterMode,
)
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import Initializer
from trt_portable.onnx_parser.operators.sources import ramp, ramp_along
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import Extent, NetworkWriter, Operand


def _from_front(net: NetworkWriter, indices: Operand, *extents: Extent) -> ITensor:
    """Indices that count from the front; known ones that do so stay, others are compared with 0.

    Args:
        net: The writer.
        indices: Integers of any shape.
        extents: Of the axis that they point into; of several axes, one for each place along the last axis of indices.
    """
    if isinstance(indices, Initializer) and (indices.array.size == 0 or indices.array.min() >= 0):
        return net.tensor(indices)
    x = net.index_dtype(net.tensor(indices))
    sizes = net.cast(net.vector(extents), x.dtype)
    if len(extents) == 1:
        sizes = net.reshape(sizes, (1,) * net.rank(x))
    negative = net.with_number(x, 0, Op.LESS)
    return net.select(negative, net.binary(x, sizes, Op.SUM), x)


@operator("Gather")
def gather(net: NetworkWriter, data: ITensor, indices: Operand, *, axis: int = 0) -> ITensor:
    """Gather(data, indices; axis) -> output"""
    place = net.axis(axis, net.rank(data))
    return net.gather(data, _from_front(net, indices, net.extents(data)[place]), place)


@operator("GatherElements", since=11)
def gather_elements(net: NetworkWriter, data: ITensor, indices: Operand, *, axis: int = 0) -> ITensor:
    """GatherElements(data, indices; axis) -> output"""
    place = net.axis(axis, net.rank(data))
    at = _from_front(net, indices, net.extents(data)[place])
    return net.output(net.network.add_gather_v2(data, at, GatherMode.ELEMENT), axis=place)


@operator("GatherND", since=11)
def gather_nd(net: NetworkWriter, data: ITensor, indices: Operand, *, batch_dims: int = 0) -> ITensor:
    """GatherND(data, indices; batch_dims) -> output"""
    if batch_dims < 0 or net.rank(indices) <= batch_dims:
        raise Unsupported(f"indices of rank {net.rank(indices)} with {batch_dims} shared axes", ErrorCode.INVALID_NODE)
    at = _from_front(net, indices, *net.extents(data)[batch_dims : batch_dims + indices.shape[-1]])
    return net.output(net.network.add_gather_v2(data, at, GatherMode.ND), num_elementwise_dims=batch_dims)


def _scattered(
    net: NetworkWriter, data: ITensor, indices: ITensor, updates: ITensor, mode: ScatterMode, axis: int
) -> ITensor:
    kind = data.dtype
    if kind is DataType.BOOL:  # which layers do not scatter
        data, updates = net.cast(data, DataType.INT32), net.cast(updates, DataType.INT32)
    place = {"axis": axis} if mode is ScatterMode.ELEMENT else {}
    return net.cast(net.output(net.network.add_scatter(data, indices, updates, mode), **place), kind)


@operator("Scatter", since=9)
@operator("ScatterElements", since=11)
def scatter_elements(
    net: NetworkWriter, data: ITensor, indices: Operand, updates: ITensor, *, axis: int = 0, reduction: str = "none"
) -> ITensor:
    """ScatterElements(data, indices, updates; axis, reduction) -> output"""
    place = net.axis(axis, net.rank(data))
    at = _from_front(net, indices, net.extents(data)[place])
    if reduction == "none":
        return _scattered(net, data, at, updates, ScatterMode.ELEMENT, place)
    return _combined_elements(net, data, at, updates, place, reduction)


def _combined_elements(
    net: NetworkWriter, data: ITensor, indices: ITensor, updates: ITensor, axis: int, reduction: str
) -> ITensor:
    """Each element with all updates of its place: compared with every index along the axis.

    Axes other than `axis` of the updates may be shorter than those of the data.
    """
    rank = net.rank(data)
    if rank > 6:
        raise Unsupported(f"a reduction into rank {rank}", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    op, fold, neutral = _reduction_of(data.dtype, reduction)
    places = net.unsqueeze(ramp_along(net, data, axis), [rank])  # of the data, then one axis for the updates
    last = [*(place for place in range(rank) if place != axis), axis]
    order = [last.index(place) for place in range(rank)]
    spread = [
        net.transpose(net.unsqueeze(net.transpose(x, last), [rank - 1]), [*order, rank])
        for x in (net.cast(indices, DataType.INT64), updates)
    ]
    hits = net.binary(spread[0], places, Op.EQUAL)
    chosen = net.select(hits, spread[1], net.constant(np.full((1,) * (rank + 1), neutral), data.dtype))
    total = net.reduce(chosen, fold, [rank], False)
    if any(
        have != want for place, (have, want) in enumerate(zip(updates.shape, data.shape, strict=True)) if place != axis
    ):
        sizes = net.extents(data)
        kind = data.dtype
        fill = net.constant(neutral, kind)
        total = net.slice(total, [0] * rank, sizes, mode=SampleMode.FILL, fill=fill)
    return net.binary(data, total, op)


def _reduction_of(kind: DataType, reduction: str) -> tuple[Op, ReduceOperation, float]:
    """How two elements and how many are combined, and what changes none."""
    if kind in FLOATS:
        most = 3.4e38 if kind is not DataType.HALF else 65504.0
    elif kind in INDICES:
        most = (1 << 31) - 1 if kind is DataType.INT32 else (1 << 62)
    else:
        raise Unsupported(f"a reduction of type {kind.name}", ErrorCode.UNSUPPORTED_NODE_DATATYPE)
    table = {
        "add": (Op.SUM, ReduceOperation.SUM, 0),
        "mul": (Op.PROD, ReduceOperation.PROD, 1),
        "max": (Op.MAX, ReduceOperation.MAX, -most),
        "min": (Op.MIN, ReduceOperation.MIN, most),
    }
    if reduction not in table:
        raise Unsupported(f"reduction {reduction!r}", ErrorCode.UNSUPPORTED_NODE_ATTR)
    return table[reduction]


@operator("ScatterND", since=11)
def scatter_nd(
    net: NetworkWriter, data: ITensor, indices: Operand, updates: ITensor, *, reduction: str = "none"
) -> ITensor:
    """ScatterND(data, indices, updates; reduction) -> output"""
    if net.rank(indices) < 1:
        raise Unsupported("indices of rank 0", ErrorCode.INVALID_NODE)
    at = _from_front(net, indices, *net.extents(data)[: indices.shape[-1]])
    if reduction == "none":
        return _scattered(net, data, at, updates, ScatterMode.ND, 0)
    rank, depth = net.rank(data), at.shape[-1]
    extents = net.extents(data)
    kept = extents[depth:]
    flat = net.reshape(data, [net.product(extents[:depth]), *kept])
    strides: list[Extent] = [net.product(extents[place + 1 : depth]) for place in range(depth)]
    scale = net.vector(strides)
    places = net.reduce(
        net.binary(net.cast(at, DataType.INT64), scale, Op.PROD), ReduceOperation.SUM, [net.rank(at) - 1], False
    )
    places = net.reshape(places, [-1] + [1] * (rank - depth))
    values = net.reshape(updates, [-1, *kept])
    places = net.expand(places, net.extents(values))
    return net.reshape(_combined_elements(net, flat, places, values, 0, reduction), extents)


@operator("OneHot", since=9)
def one_hot(net: NetworkWriter, indices: ITensor, depth: Operand, values: ITensor, *, axis: int = -1) -> ITensor:
    """OneHot(indices, depth, values; axis) -> output; indices may be negative, others give no 1"""
    rank = net.rank(indices)
    place = net.axis(axis, rank + 1)
    count = net.numbers(depth)
    extent: Extent = int(count[0]) if count else net.index_vector(depth)
    at = net.unsqueeze(_from_front(net, net.cast(indices, DataType.INT64), extent), [place])
    steps = net.unsqueeze(ramp(net, extent), [other for other in range(rank + 1) if other != place])
    hits = net.binary(at, steps, Op.EQUAL)
    off, on = (net.reshape(net.narrow(values, 0, which, 1), (1,) * (rank + 1)) for which in (0, 1))
    return net.select(hits, on, off)


@operator("NonZero", since=9)
def non_zero(net: NetworkWriter, x: ITensor) -> ITensor:
    """NonZero(X) -> Y, (rank, n)"""
    if net.rank(x) == 0:
        raise Unsupported("NonZero of a scalar", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    return net.output(net.network.add_non_zero(x, DataType.INT64))


@operator("Compress", since=9)
def compress(net: NetworkWriter, x: ITensor, condition: ITensor, *, axis: int | None = None) -> ITensor:
    """Compress(input, condition; axis) -> output"""
    if axis is None:
        x, place = net.reshape(x, (-1,)), 0
    else:
        place = net.axis(axis, net.rank(x))
    found = net.output(net.network.add_non_zero(condition, DataType.INT64))
    return net.gather(x, net.reshape(found, (-1,)), place)


@operator("ReverseSequence", since=10)
def reverse_sequence(
    net: NetworkWriter, x: ITensor, sequence_lens: ITensor, *, batch_axis: int = 1, time_axis: int = 0
) -> ITensor:
    """ReverseSequence(input, sequence_lens; batch_axis, time_axis) -> Y"""
    layer = net.network.add_reverse_sequence(x, sequence_lens)
    return net.output(layer, batch_axis=batch_axis, sequence_axis=time_axis)


@operator("NonMaxSuppression", since=10)
def non_max_suppression(
    net: NetworkWriter,
    boxes: ITensor,
    scores: ITensor,
    max_output_boxes_per_class: Operand | None = None,
    iou_threshold: Operand | None = None,
    score_threshold: Operand | None = None,
    *,
    center_point_box: int = 0,
) -> ITensor:
    """NonMaxSuppression(boxes, scores, max_output_boxes_per_class, iou_threshold, score_threshold) -> selected_indices

    Boxes of a batch are sorted by class, as ONNX has them; the layer sorts them by score across classes.
    """
    most = _scalar(net, max_output_boxes_per_class, 0, DataType.INT32)
    flipped = net.transpose(scores, (0, 2, 1))
    layer = net.layer(net.network.add_nms(boxes, flipped, most, DataType.INT64))
    layer.bounding_box_format = BoundingBoxFormat.CENTER_SIZES if center_point_box else BoundingBoxFormat.CORNER_PAIRS
    layer.set_input(3, _scalar(net, iou_threshold, 0.0, DataType.FLOAT))
    layer.set_input(4, _scalar(net, score_threshold, -3.4e38, DataType.FLOAT))
    return _by_class(net, net.output_of(layer), scores)


def _scalar(net: NetworkWriter, operand: Operand | None, default: float, dtype: DataType) -> ITensor:
    if operand is None:
        return net.constant(default, dtype)
    known = net.numbers(operand)
    if known is not None and dtype is DataType.INT32:
        return net.constant(min(int(known[0]), 5000), dtype)
    return net.scalar(net.cast(net.tensor(operand), dtype))


def _by_class(net: NetworkWriter, found: ITensor, scores: ITensor) -> ITensor:
    """Rows (batch, class, box) in the order of batch, then class; those of a class stay as they are.

    The rank of a row is the number of rows before it, so that no sort of unknown length is needed.
    """
    classes = scores.shape[1]
    if classes == 1:
        return found
    count = net.extents(found)[0]
    batch, kind = (net.narrow(found, 1, place, 1) for place in (0, 1))
    size = net.as_tensor(net.extents(scores)[1])
    key = net.binary(net.binary(batch, size, Op.PROD), kind, Op.SUM)  # (n, 1)
    steps = ramp(net, count)
    key = net.binary(key, net.constant(1 << 32, DataType.INT64), Op.PROD)
    key = net.binary(key, net.unsqueeze(steps, [1]), Op.SUM)
    smaller = net.binary(net.reshape(key, (1, -1)), key, Op.LESS)
    place = net.reduce(net.cast(smaller, DataType.INT64), ReduceOperation.SUM, [1], True)
    places = net.expand(place, [count, 3])
    return net.output(net.network.add_scatter(found, places, found, ScatterMode.ELEMENT), axis=0)
