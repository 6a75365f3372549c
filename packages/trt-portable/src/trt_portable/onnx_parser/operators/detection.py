"""Detection: suppression of overlapping boxes."""

from __future__ import annotations

from trt_portable.enums import BoundingBoxFormat, DataType, ElementWiseOperation, ReduceOperation
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand


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
    from trt_portable.enums import ScatterMode
    from trt_portable.onnx_parser.operators.sources import ramp

    count = net.extents(found)[0]
    batch, kind = (net.narrow(found, 1, place, 1) for place in (0, 1))
    size = net.as_tensor(net.extents(scores)[1])
    key = net.binary(net.binary(batch, size, ElementWiseOperation.PROD), kind, ElementWiseOperation.SUM)  # (n, 1)
    steps = ramp(net, count)
    key = net.binary(key, net.constant(1 << 32, DataType.INT64), ElementWiseOperation.PROD)
    key = net.binary(key, net.unsqueeze(steps, [1]), ElementWiseOperation.SUM)
    smaller = net.binary(net.reshape(key, (1, -1)), key, ElementWiseOperation.LESS)
    place = net.reduce(net.cast(smaller, DataType.INT64), ReduceOperation.SUM, [1], True)
    places = net.expand(place, [count, 3])
    moved = net.layer(net.network.add_scatter(found, places, found, ScatterMode.ELEMENT))
    moved.axis = 0
    return net.output_of(moved)
