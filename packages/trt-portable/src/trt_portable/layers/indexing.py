"""Layers that read or write elements at computed places, or compute places."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import BoundingBoxFormat, DataType, GatherMode, LayerType, ScatterMode
from trt_portable.errors import present
from trt_portable.layer_properties import integer, member
from trt_portable.layers import contracts
from trt_portable.layers.contracts import Bound
from trt_portable.layers.reduction import indices_type
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.inference import are_symbolic, gathered, gathered_by_places
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import (
    require,
    require_axis,
    require_documented,
    require_equal_ranks,
    require_equal_types,
    require_minimum_rank,
    require_rank,
    require_tensor,
    require_type,
)
from trt_portable.shape_tensors import HOST_LIMIT, HostValues, Value, as_tensor, host_numbers
from trt_portable.size_arithmetic import is_unknown

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols


_NUMBERS: Final = FLOATS | INDICES | {DataType.INT8}


class IScatterLayer(ILayer):
    """A copy of a tensor with elements replaced at computed places.

    Inputs: 0 data, 1 indices, 2 updates. Two updates of one place have no defined result.
    """

    _KIND = LayerType.SCATTER
    _LIKE_FIRST_INPUT = True
    _DEFERRED = True

    axis = integer(0, "The axis that indices refer to (mode ELEMENT).")
    mode = member(ScatterMode, ScatterMode.ELEMENT, "How indices are read.")

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        data, indices, updates = inputs
        require_tensor(data, "the data", _NUMBERS, least_rank=1)
        require_equal_types((data, updates), "data and updates")
        require_type(indices, INDICES, "the indices")
        if self.mode is ScatterMode.ELEMENT:
            require_equal_ranks((data, indices, updates), "data, indices and updates")
            return
        require_minimum_rank(indices, 1, "the indices")
        length = (indices._extents or (0,))[-1]
        require(type(length) is int, "the last extent of the indices must be constant")
        require(length <= data._rank, f"indices of length {length} into rank {data._rank}")
        expected = indices._rank - 1 + data._rank - length
        require(updates._rank == expected, f"updates have rank {updates._rank}, not {expected}")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        data, indices, updates = inputs
        if self.mode is ScatterMode.ELEMENT:
            require_axis(self.axis, data._rank)
            wanted = indices._extents or ()
        else:
            length = (indices._extents or (0,))[-1]
            wanted = (*(indices._extents or ())[:-1], *(data._extents or ())[length:])
        for axis, (have, want) in enumerate(zip(updates._extents or (), wanted, strict=True)):
            require(
                type(have) is not int or type(want) is not int or have == want,
                f"updates have extent {have} on axis {axis}, not {want}",
            )

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        data, indices, updates = map(as_tensor, inputs)
        at = indices.to(torch.int64)
        if self.mode is ScatterMode.ELEMENT:
            extent = data.shape[self.axis]
            return (data.scatter(self.axis, torch.where(at < 0, at + extent, at), updates),)
        length = at.shape[-1]
        if not length:
            return (updates.expand(data.shape).clone(),)
        places = tuple(at[..., offset] for offset in range(length))
        return (torch.index_put(data, places, updates),)


class IOneHotLayer(ILayer):
    """A new axis along which one place holds the on value and the others the off value.

    Inputs: 0 indices (int32), 1 values (2,) as off and on, 2 depth (0-D constant).
    """

    _KIND = LayerType.ONE_HOT
    _HOST_INPUTS = frozenset({2})

    axis = integer(-1, "Where the new axis is; negative counts from the end of the output.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        indices, values, depth = inputs
        require_type(indices, {DataType.INT32}, "the indices")
        require_type(values, _NUMBERS, "the values")
        require(values._extents == (2,), "the values are two: off and on")
        require_tensor(depth, "the depth", INDICES, ranks={0})
        rank = indices._rank
        require(-rank - 1 <= self.axis <= rank, f"axis {self.axis} is outside rank {rank + 1}")
        host = depth._host
        if host is not None:
            require(isinstance(host[0], int), "the depth must be a constant of the network")
            require(host[0] > 0, f"the depth is {host[0]}; it must be positive")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        indices, values, depth = inputs
        at, pair = as_tensor(indices), as_tensor(values)
        places = host_numbers(depth)[0]
        axis = self.axis if self.axis >= 0 else self.axis + at.ndim + 1
        shape = [1] * (at.ndim + 1)
        shape[axis] = -1
        steps = torch.arange(places, device=at.device).reshape(shape)
        return (torch.where(at.unsqueeze(axis) == steps, pair[1], pair[0]),)


class INonZeroLayer(ILayer):
    """Coordinates of the elements that are not zero, one column each, in row-major order.

    Output: (rank, n); n depends on the data.
    """

    _KIND = LayerType.NON_ZERO
    _DATA_DEPENDENT = True

    indices_type = indices_type()

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        allowed = FLOATS | {DataType.INT8, DataType.INT32, DataType.BOOL}
        require_type(x, allowed | {DataType.INT64}, "the input")
        require_documented(x._dtype in allowed, "the input has type INT64; compare it with 0 first")
        require_minimum_rank(x, 1, "the input")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        (x,) = inputs
        found = torch.nonzero(as_tensor(x)).mT
        return (found.to(self._carrier(self.indices_type)),)


class IReverseSequenceLayer(ILayer):
    """Reverses the first elements of each sequence.

    Inputs: 0 x, 1 lengths (1-D, one per batch element).
    """

    _KIND = LayerType.REVERSE_SEQUENCE
    _LIKE_FIRST_INPUT = True
    _DEFERRED = True

    batch_axis = integer(1, "The axis of the batch.")
    sequence_axis = integer(0, "The axis that is reversed.")

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        x, lengths = inputs
        require_tensor(x, "the input", _NUMBERS | {DataType.BOOL}, least_rank=2)
        require_tensor(lengths, "the lengths", INDICES, ranks={1})

    def _check(self, inputs: Sequence[ITensor]) -> None:
        x, lengths = inputs
        require_axis(self.batch_axis, x._rank, "batch_axis")
        require_axis(self.sequence_axis, x._rank, "sequence_axis")
        require(self.batch_axis != self.sequence_axis, "batch_axis and sequence_axis are equal")
        have, want = (lengths._extents or (0,))[0], (x._extents or ())[self.batch_axis]
        require(type(have) is not int or type(want) is not int or have == want, f"{have} lengths for a batch of {want}")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x, lengths = map(as_tensor, inputs)
        batch, sequence = self.batch_axis, self.sequence_axis
        column = [1] * x.ndim
        column[sequence] = -1
        steps = torch.arange(x.shape[sequence], device=x.device).reshape(column)
        row = [1] * x.ndim
        row[batch] = -1
        ends = lengths.to(torch.int64).reshape(row)
        places = torch.where(steps < ends, ends - 1 - steps, steps)
        return (torch.gather(x, sequence, places.expand(x.shape)),)


class IndexingLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_scatter(self, data: ITensor, indices: ITensor, updates: ITensor, mode: ScatterMode) -> IScatterLayer | None:
        """Adds a copy with replaced elements; set ``axis`` on the layer.

        Args:
            data: Rank 1 or more, not bool.
            indices: int32 or int64.
            updates: Same type as `data`.
            mode: How indices are read.
        """
        return self._add(IScatterLayer._create(mode=mode), data=data, indices=indices, updates=updates)

    def add_one_hot(self, indices: ITensor, values: ITensor, depth: ITensor, axis: int) -> IOneHotLayer | None:
        """Adds a one-hot encoding.

        Args:
            indices: int32.
            values: (2,), off and on.
            depth: 0-D constant.
            axis: Where the new axis is.
        """
        return self._add(IOneHotLayer._create(axis=axis), indices=indices, values=values, depth=depth)

    def add_non_zero(self, input: ITensor, indices_type: DataType = DataType.INT32) -> INonZeroLayer | None:
        """Adds the coordinates of the elements that are not zero.

        Args:
            input: Rank 1 or more; not int64 in strict mode.
            indices_type: INT32 or INT64.
        """
        return self._add(INonZeroLayer._create(indices_type=indices_type), input=input)

    def add_reverse_sequence(self, input: ITensor, sequence_lens: ITensor) -> IReverseSequenceLayer | None:
        """Adds a reversal of sequences of several lengths.

        Args:
            input: Rank 2 or more.
            sequence_lens: (batch,), int32 or int64.
        """
        return self._add(IReverseSequenceLayer._create(), input=input, sequence_lens=sequence_lens)


_BOX_LIMIT: Final = 5000
"""Most boxes that a suppression looks at, and how many it does by default."""


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
    topk_box_limit = integer(_BOX_LIMIT, "Boxes that are looked at per batch element, at most 5000.")
    indices_type = indices_type()

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        boxes, scores, most = map(present, inputs[:3])
        require_equal_types((boxes, scores), "boxes and scores")
        require_tensor(boxes, "the boxes", {DataType.FLOAT, DataType.HALF}, ranks={3, 4})
        require((boxes._extents or (0,))[-1] == 4, "the last extent of the boxes must be 4")
        require_rank(scores, {3}, "the scores")
        require_tensor(most, "the most boxes per class", {DataType.INT32}, ranks={0})

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        require(0 < self.topk_box_limit <= _BOX_LIMIT, f"topk_box_limit {self.topk_box_limit}")
        for tensor in inputs[3:]:
            require_tensor(tensor, "a threshold", {DataType.FLOAT}, ranks={0})

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        boxes, scores = map(as_tensor, inputs[:2])
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
        indices = torch.tensor(rows, dtype=carrier, device="cpu").reshape(-1, 3).to(boxes.device)
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
        order = order[scores.reshape(-1)[order] > floor]
        if len(order) > self.topk_box_limit == _BOX_LIMIT:
            warnings.warn(
                f"{len(order)} boxes have a score above {floor:.3g}; the suppression looks at the {_BOX_LIMIT} best of "
                "them: raise the score threshold, or take the best before",
                RuntimeWarning,
                stacklevel=2,
            )
        order = order[: self.topk_box_limit]
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
            boxes=boxes,
            scores=scores,
            max_output_boxes_per_class=max_output_boxes_per_class,
        )


_GATHERABLE: Final = _NUMBERS | {DataType.BOOL, DataType.INT4, DataType.FP4}


def _in_bounds(indices: torch.Tensor, extent: Any, wraps: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Indices safe to read, and the mask of those inside; None where all are, for certain.

    Negative indices count from the end where the extent is a constant of the network.
    """
    if wraps:
        indices = torch.where(indices < 0, indices + extent, indices)
    inside = (indices >= 0) & (indices < extent)
    if inside.device.type == "cpu" and type(inside) is torch.Tensor and bool(inside.all()):
        return indices, None
    return torch.where(inside, indices, torch.zeros_like(indices)), inside


def _selected(x: torch.Tensor, axis: int, indices: torch.Tensor) -> torch.Tensor | None:
    """What stands at indices; None where one of them is out of bounds, or no kernel looks: on CUDA, and in a trace."""
    if indices.device.type != "cpu" or type(indices) is not torch.Tensor or type(x) is not torch.Tensor:
        return None
    try:
        return x.index_select(axis, indices.reshape(-1))
    except (IndexError, RuntimeError):  # which of them depends on the axis
        return None


def _outside_is_zero(values: torch.Tensor, inside: torch.Tensor | None) -> torch.Tensor:
    if inside is None:
        return values
    return torch.where(inside, values, torch.zeros((), dtype=values.dtype, device=values.device))


class IGatherLayer(ILayer):
    """Elements of a tensor at computed indices; what is out of bounds reads 0.

    Inputs: 0 data, 1 indices (int32 or int64). In mode ELEMENT, indices may be shorter than the data on
    other axes than the one they refer to, unless strict mode is on.
    """

    _KIND = LayerType.GATHER
    _SHAPE_ALGEBRA = True
    _DEFERRED = True

    axis = integer(0, "The axis that indices refer to (modes DEFAULT and ELEMENT).")
    num_elementwise_dims = integer(0, "Leading axes that data and indices share.")
    mode = member(GatherMode, GatherMode.DEFAULT, "How indices are read.")

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        data, indices = inputs
        require_tensor(data, "the data", _GATHERABLE, least_rank=1)
        require_type(indices, INDICES, "the indices")
        if self.mode is GatherMode.ELEMENT:
            require_equal_ranks((data, indices), "data and indices")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        data, indices = inputs
        shared = self.num_elementwise_dims
        if self.mode is GatherMode.ND:
            require_minimum_rank(indices, 1, "the indices")
            require(0 <= shared < max(data._rank, 1), f"{shared} shared dims of rank {data._rank}")
            require(shared < indices._rank, f"{shared} shared dims of indices of rank {indices._rank}")
            length = (indices._extents or (0,))[-1]
            require(type(length) is int, "the last extent of the indices must be constant")
            require(
                length <= data._rank - shared,
                f"indices of length {length} into rank {data._rank} with {shared} shared dims",
            )
            return
        require_axis(self.axis, data._rank)
        if self.mode is GatherMode.ELEMENT:
            require(shared == 0, "mode ELEMENT has no shared dims")
            for axis, (have, want) in enumerate(zip(data._extents or (), indices._extents or (), strict=True)):
                if axis == self.axis or type(have) is not int or type(want) is not int:
                    continue
                require(want <= have, f"the indices have {want} elements on axis {axis}, where the data have {have}")
                require_documented(want == have, f"data and indices have extents {have} and {want} on axis {axis}")
            return
        require(shared in (0, 1), f"mode DEFAULT shares 0 or 1 dims, not {shared}")
        if shared:
            require_minimum_rank(indices, 1, "the indices")
            require(self.axis >= 1, "axis 0 is shared and cannot be gathered from")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        data, indices = map(present, self._inputs)
        shared = self.num_elementwise_dims
        if self.mode is GatherMode.ND:
            return gathered_by_places(data, indices, shared)
        if self.mode is GatherMode.ELEMENT:
            return (Facts(indices._extents or (), data._dtype, None),) if are_symbolic([data, indices]) else None
        return None if shared else gathered(data, indices, self.axis)

    def _contract(self, inputs: Sequence[Value]) -> Bound | None:
        data, indices = inputs
        if self.mode is not GatherMode.DEFAULT or self.num_elementwise_dims:
            return None
        return contracts.selected(data.shape, self.axis, indices.shape)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        data, indices = inputs
        if self.mode is GatherMode.DEFAULT and not self.num_elementwise_dims:
            if isinstance(data, HostValues) and isinstance(indices, HostValues):
                taken = _take_host(data, indices, self.axis)
                if taken is not None:
                    return (taken,)
            return (self._take(as_tensor(data), as_tensor(indices)),)
        x, at = as_tensor(data), as_tensor(indices).to(torch.int64)
        if self.mode is GatherMode.ELEMENT:
            at, inside = _in_bounds(at, x.shape[self.axis], self._wraps(self.axis))
            return (_outside_is_zero(torch.gather(x, self.axis, at), inside),)
        if self.mode is GatherMode.ND:
            return (self._take_nd(x, at),)
        return (self._take_batched(x, at),)

    def _wraps(self, axis: int) -> bool:
        source = self._inputs[0]
        extents = () if source is None else source._extents or ()
        return axis < len(extents) and type(extents[axis]) is int and extents[axis] >= 0

    def _take(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        axis = self.axis
        taken, inside = _selected(x, axis, at), None
        if taken is None:
            at, inside = _in_bounds(at, x.shape[axis], self._wraps(axis))
            taken = x.index_select(axis, at.reshape(-1))
        shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
        if at.ndim != 1:
            taken = taken.reshape(shape)
        if inside is None:
            return taken
        return _outside_is_zero(taken, inside.reshape([*at.shape] + [1] * (x.ndim - 1 - axis)))

    def _take_batched(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        axis = self.axis
        at, inside = _in_bounds(at, x.shape[axis], self._wraps(axis))
        if is_unknown(x.shape[0]) or is_unknown(at.shape[0]) or x.shape[0] == at.shape[0]:
            batch = at.shape[0]
        else:
            batch = x.shape[0] if at.shape[0] == 1 else at.shape[0]
        moved = x.movedim(axis, 1)
        moved = moved.expand([batch, *moved.shape[1:]])
        at = at.expand([batch, *at.shape[1:]])
        rows = torch.arange(batch, device=x.device).reshape([-1] + [1] * (at.ndim - 1))
        taken = moved[rows, at]
        if inside is not None:
            mask = inside.expand(at.shape).reshape([*at.shape] + [1] * (x.ndim - 2))
            taken = _outside_is_zero(taken, mask)
        before = list(range(at.ndim, at.ndim + axis - 1))
        after = list(range(at.ndim + axis - 1, taken.ndim))
        return taken.permute([0, *before, *range(1, at.ndim), *after])

    def _take_nd(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        shared, length = self.num_elementwise_dims, at.shape[-1]
        index: list[Any] = []
        for axis in range(shared):
            extents = [1] * (at.ndim - 1)
            extents[axis] = -1
            index.append(torch.arange(x.shape[axis], device=x.device).reshape(extents))
        every: torch.Tensor | None = None
        for offset in range(length):
            axis = shared + offset
            part, inside = _in_bounds(at[..., offset], x.shape[axis], self._wraps(axis))
            index.append(part)
            if inside is not None:
                every = inside if every is None else every & inside
        if not index:
            return x.expand([*at.shape[:-1], *x.shape])
        taken = x[tuple(index)]
        if every is not None:
            every = every.reshape([*every.shape] + [1] * (taken.ndim - every.ndim))
        return _outside_is_zero(taken, every)


def _take_host(data: HostValues, indices: HostValues, axis: int) -> HostValues | None:
    """A gather of known numbers at known places; None where a place is unknown or out of bounds, or for too many."""
    extent = data.shape[axis]
    if indices.numel() * (data.numel() // max(extent, 1)) > HOST_LIMIT:
        return None
    places = []
    for index in indices.numbers():
        if isinstance(index, torch.SymInt) or not -extent <= index < extent:
            return None
        places.append(index + extent if index < 0 else index)
    at = np.array(places, dtype=np.int64).reshape(indices.shape)
    return data._with(np.take(data.array, at, axis=axis))


class GatherLayers(LayerFactory):
    """The methods that add gathers."""

    def add_gather(self, input: ITensor, indices: ITensor, axis: int) -> IGatherLayer | None:
        """Adds a gather along one axis.

        Args:
            input: Rank 1 or more.
            indices: Any rank, int32 or int64.
            axis: Not negative.
        """
        layer = IGatherLayer._create(axis=axis)
        data = expect_tensor(input, "input")
        data._refresh()
        if not 0 <= layer.axis < max(len(data._extents or ()), 1):
            rule = f"axis {layer.axis} is outside [0, {len(data._extents or ())})"
            self._reporter.error("add_gather", rule)
            return None
        return self._add(layer, data, indices=indices)

    def add_gather_v2(self, input: ITensor, indices: ITensor, mode: GatherMode) -> IGatherLayer | None:
        """Adds a gather; set ``axis`` and ``num_elementwise_dims`` on the layer.

        Args:
            input: Rank 1 or more.
            indices: int32 or int64; in mode ELEMENT of the rank of `input`.
            mode: How indices are read.
        """
        return self._add(IGatherLayer._create(mode=mode), input=input, indices=indices)
