"""Non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trt_portable.attributes import integer, member
from trt_portable.enums import BoundingBoxFormat, DataType, LayerType
from trt_portable.layers.reduction import indices_type
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require, require_equal_types, require_rank, require_type
from trt_portable.shape_tensors import Value, as_tensor, host_numbers


class INMSLayer(ILayer):
    """Boxes with high scores, without those that overlap a better box of their class.

    Inputs: 0 boxes (B, N, 4) or (B, N, C, 4), 1 scores (B, N, C), 2 most boxes per class (0-D int32),
    optional 3 IoU threshold and 4 score threshold (0-D float32, 0 if absent). Outputs: 0 indices
    (n, 3) of batch, class and box, by batch and then by falling score; 1 their number, 0-D int32.
    """

    _KIND = LayerType.NMS
    _MAX_INPUTS = 5
    _NUM_OUTPUTS = 2
    _DATA_DEPENDENT = True
    _DEFERRED = True

    bounding_box_format = member(BoundingBoxFormat, BoundingBoxFormat.CORNER_PAIRS, "How four numbers describe a box.")
    topk_box_limit = integer(5000, "Boxes that are looked at per batch element, at most 5000.")
    indices_type = indices_type()

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        boxes, scores, most = inputs[:3]
        assert boxes is not None and scores is not None and most is not None
        require_equal_types((boxes, scores), "boxes and scores")
        require_type(boxes, {DataType.FLOAT, DataType.HALF}, "the boxes")
        require_rank(boxes, {3, 4}, "the boxes")
        require((boxes._extents or (0,))[-1] == 4, "the last extent of the boxes must be 4")
        require_rank(scores, {3}, "the scores")
        require_type(most, {DataType.INT32}, "the most boxes per class")
        require_rank(most, {0}, "the most boxes per class")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        require(0 < self.topk_box_limit <= 5000, f"topk_box_limit {self.topk_box_limit}")
        for tensor in inputs[3:]:
            if tensor is not None:
                require_type(tensor, {DataType.FLOAT}, "a threshold")
                require_rank(tensor, {0}, "a threshold")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        given = [None if value is None else as_tensor(value) for value in (*inputs, None, None)[:5]]
        boxes, scores = given[0], given[1]
        assert boxes is not None and scores is not None
        carrier = self._carrier(self.indices_type)
        if boxes.device.type == "meta":
            found = torch.nonzero(scores).to(carrier)
            return found, torch.empty((), dtype=torch.int32, device=boxes.device)
        most, overlap, floor = (
            default if value is None else host_numbers(value)[0]
            for value, default in zip((*inputs, None, None)[2:5], (0, 0.0, 0.0), strict=False)
        )
        rows = [
            (batch, label, box)
            for batch in range(boxes.shape[0])
            for label, box in self._select(
                boxes[batch].float().cpu(), scores[batch].float().cpu(), int(most), overlap, floor
            )
        ]
        indices = torch.tensor(rows, dtype=carrier).reshape(-1, 3).to(boxes.device)
        return indices, torch.tensor(len(rows), dtype=torch.int32, device=boxes.device)

    def _select(
        self, boxes: torch.Tensor, scores: torch.Tensor, most: int, overlap: float, floor: float
    ) -> list[tuple[int, int]]:
        """Class and box of the boxes kept in one batch element, by falling score.

        Args:
            boxes: (N, 4) or (N, C, 4).
            scores: (N, C).
            most: Most boxes per class.
            overlap: A box is dropped when its IoU with a kept one is above this.
            floor: A box is looked at when its score is above this.
        """
        classes = scores.shape[1]
        order = torch.argsort(scores.reshape(-1), descending=True, stable=True)
        order = order[scores.reshape(-1)[order] > floor][: self.topk_box_limit]
        corners = _corners(boxes, self.bounding_box_format)
        kept: dict[int, list[torch.Tensor]] = {}
        chosen = []
        for flat in order.tolist():
            box, label = divmod(flat, classes)
            mine = corners[box] if corners.ndim == 2 else corners[box, label]
            others = kept.setdefault(label, [])
            if len(others) >= most:
                continue
            if others and bool((_iou(mine, torch.stack(others)) > overlap).any()):
                continue
            others.append(mine)
            chosen.append((label, box))
        return chosen


def _corners(boxes: torch.Tensor, form: BoundingBoxFormat) -> torch.Tensor:
    """Boxes as smallest and largest corner, whatever the order of the corners was."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if form is BoundingBoxFormat.CENTER_SIZES:
        first, second = first - second / 2, first + second / 2
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), -1)


def _iou(box: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Intersection over union of one box (4,) with others (n, 4)."""
    low = torch.maximum(box[:2], others[:, :2])
    high = torch.minimum(box[2:], others[:, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = (box[2:] - box[:2]).prod()
    union = area + (others[:, 2:] - others[:, :2]).prod(-1) - common
    return torch.where(union > 0, common / union, torch.zeros_like(union))


class DetectionLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_nms(
        self,
        boxes: ITensor,
        scores: ITensor,
        max_output_boxes_per_class: ITensor,
        indices_type: DataType = DataType.INT32,
    ) -> INMSLayer | None:
        """Adds a non-maximum suppression; thresholds are inputs 3 and 4.

        Args:
            boxes: (B, N, 4) or (B, N, C, 4), float32 or float16.
            scores: (B, N, C), same type.
            max_output_boxes_per_class: 0-D int32.
            indices_type: INT32 or INT64.
        """
        return self._add(
            INMSLayer._create(indices_type=indices_type),
            expect_tensor(boxes, "boxes"),
            expect_tensor(scores, "scores"),
            expect_tensor(max_output_boxes_per_class, "max_output_boxes_per_class"),
        )
