"""What becomes settings of attention: factors of queries and keys, and masks that are known when an engine is built.

Causal masks are a setting, full ones go. Fused kernels of attention skip what a causal mask hides, and read no mask.
Where lengths are open, a mask is no constant, and means one of these all the same: exporters compare ranges of
positions, and ask of them whether sequences begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from trt_portable.builder.passes.simplify_movement import Arrangement, moved_by
from trt_portable.enums import (
    AttentionIOForm,
    AttentionNormalizationOp,
    CausalMaskKind,
    DataType,
    ElementWiseOperation,
    FillOperation,
    LayerType,
    SampleMode,
    UnaryOperation,
)
from trt_portable.errors import present
from trt_portable.layers.indexing import IGatherLayer
from trt_portable.layers.movement import IConcatenationLayer, IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer
from trt_portable.layers.pointwise import IElementWiseLayer, IUnaryLayer
from trt_portable.layers.reduction import ICumulativeLayer
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.layers.sources import ICastLayer, IConstantLayer, IFillLayer, IIdentityLayer, IShapeLayer
from trt_portable.layers.transformer import MASK, IAttentionBoundaryLayer, IAttentionOutputLayer, ScaledAttentionLayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPattern, pattern

_QUERY_AND_KEY = 2


@pattern(LayerType.ATTENTION_OUTPUT)
def fold_attention_factors(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Lets attention with softmax scale its scores in place of products of query or key with a constant number.

    Exact for powers of two, which most factors are; others are rounded once less. Products die if nothing else
    reads them, and stay where something does. Factors of 0 and below stay too: kernels multiply what a causal mask
    has made -inf.
    """
    if operation.is_a(ScaledAttentionLayer):
        return None
    if operation[IAttentionOutputLayer.norm_op] is not AttentionNormalizationOp.SOFTMAX:
        return None
    ends, old = ends_of_attention(operation, graph), operation.inputs
    fresh, factor = list(old), 1.0
    for slot in range(_QUERY_AND_KEY):
        tensor = old[slot]
        readers = graph.all_readers(tensor)
        is_alone = old.count(tensor) == 1 and len(readers) == len(ends) == 2 and set(readers) == set(ends)
        if is_alone and tensor not in graph.visible:
            fresh[slot], found = _unscaled(graph, tensor)
            factor *= found
    if fresh == list(old):
        return None
    scaled = replace(operation, layer=ScaledAttentionLayer).having({ScaledAttentionLayer.factor: factor})
    moved = [replace(scaled if end is operation else end, inputs=tuple(fresh)) for end in ends]
    return NodeFusion(moved, ends, ends[0])


def ends_of_attention(node: Node, graph: PlanGraph) -> list[Node]:
    """Both layers that an attention is, over the same inputs."""
    readers = graph.all_readers(node.inputs[0])
    return [each for each in readers if each.is_a(IAttentionBoundaryLayer) and each.inputs == node.inputs]


def _unscaled(graph: PlanGraph, tensor: int | None) -> tuple[int | None, float]:
    """What a tensor is a multiple of, and the factor; itself, and 1, where it is none.

    A tensor of 16 bits may be multiplied in float32, by a factor that its own type does not hold.
    """
    node = graph.maker(tensor)
    is_widened = node is not None and node.is_a(ICastLayer)
    if node is not None and is_widened:
        node = graph.maker(node.inputs[0])
    if node is None or not node.has(IElementWiseLayer.op, ElementWiseOperation.PROD):
        return tensor, 1.0
    for scaled, other in (node.inputs, node.inputs[::-1]):
        number = graph.constant(other)
        x = _narrow(graph, scaled) if is_widened else scaled
        if number is None or number.numel() != 1 or x is None:
            continue
        if graph.shape(x) != graph.shape(tensor) or graph.dtype(x) is not graph.dtype(tensor):
            continue
        factor = float(number.reshape(()))
        if 0.0 < factor < math.inf:
            return x, factor
    return tensor, 1.0


def _narrow(graph: PlanGraph, tensor: int | None) -> int | None:
    """What a tensor in float32 was cast from; None where it was not."""
    node = graph.maker(tensor)
    is_cast = node is not None and node.is_a(ICastLayer) and graph.dtype(tensor) is DataType.FLOAT
    return node.inputs[0] if node is not None and is_cast else None


class RecognizeConstantMasks(PlanPattern):
    """Replaces the boolean mask of attention over padded sequences by what it means: the future is hidden, or nothing.

    Exact. A window that is no shorter than any sequence of the profiles hides nothing.

    Args:
        most: The greatest extents of network inputs in any profile, by tensor.
    """

    name = "recognize_constant_masks"
    kinds = frozenset({LayerType.ATTENTION_OUTPUT})

    def __init__(self, most: Mapping[int, Sequence[int]]) -> None:
        self._most_extents = most
        self._known: dict[int | None, CausalMaskKind | None] = {}

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """Both ends of the attention, without the mask."""
        if not _takes_mask(operation):
            return None
        mask = operation.inputs[MASK]
        if mask not in self._known:
            kind = _meaning(graph.constant(mask))
            self._known[mask] = self._meaning_of_elements(graph, mask) if kind is None else kind
        kind = self._known[mask]
        if kind is None or (kind is not CausalMaskKind.NONE and not _is_square(graph, operation)):
            return None
        ends, inputs = ends_of_attention(operation, graph), _without_mask(operation.inputs)
        told = operation.having({IAttentionOutputLayer.causal_kind: kind})
        return NodeFusion([replace(told if end is operation else end, inputs=inputs) for end in ends], ends, ends[0])

    def _meaning_of_elements(self, graph: PlanGraph, mask: int | None) -> CausalMaskKind | None:
        """What a mask of open extents says, None where only the mask can say it."""
        line = _Elements(graph, self._most_extents).of(mask)
        if line is None:
            return None
        if line.truth:
            return CausalMaskKind.NONE
        return CausalMaskKind.UPPER_LEFT if _is_causal(line, len(graph.shape(mask))) else None


_INTEGERS: Final = frozenset({DataType.INT32, DataType.INT64, DataType.BOOL})


def _takes_mask(node: Node) -> bool:
    padded = AttentionIOForm.PADDED_BHND
    return (
        len(node.inputs) > MASK
        and node.inputs[MASK] is not None
        and node[IAttentionOutputLayer.causal_kind] is CausalMaskKind.NONE
        and node[IAttentionOutputLayer.query_form] is padded
        and node[IAttentionOutputLayer.key_value_form] is padded
    )


def _without_mask(inputs: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The inputs without a mask, and without what is empty at their end."""
    left = [*inputs[:MASK], None, *inputs[MASK + 1 :]]
    while left[-1] is None:
        left.pop()
    return tuple(left)


def _meaning(mask: torch.Tensor | None) -> CausalMaskKind | None:
    """What a mask says, None where only the mask can say it."""
    if mask is None or mask.dtype is not torch.bool or not mask.numel():
        return None
    if mask.all():
        return CausalMaskKind.NONE
    rows, columns = mask.shape[-2:]
    if rows != columns or rows == 1:
        return None
    causal = torch.ones(rows, columns, dtype=torch.bool, device="cpu").tril()
    return CausalMaskKind.UPPER_LEFT if bool((mask == causal).all()) else None


def _is_square(graph: PlanGraph, node: Node) -> bool:
    """Whether the mask has one row and column per position, so that nothing was broadcast."""
    query, key, _, mask = (graph.shape(tensor) for tensor in node.inputs[: MASK + 1])
    return query[2] == key[2] == mask[2] == mask[3]


@dataclass(frozen=True)
class _Extent:
    """What tells an open extent, and what it is at most."""

    source: Hashable
    most: float = field(default=math.inf, compare=False)


@dataclass(frozen=True)
class _Line:
    """The elements of a tensor as numbers that grow evenly along its axes, whatever its extents.

    Attributes:
        start: The first element.
        steps: By axis, how much the next one along it is more, and its extent. Extents of 1 have no step.
        is_test: Whether an element says that such a number is positive.
    """

    start: int
    steps: Mapping[int, tuple[int, _Extent]] = field(default_factory=dict)
    is_test: bool = False

    def plus(self, other: _Line, sign: int = 1) -> _Line | None:
        """The sum or the difference; None where extents may differ."""
        steps = dict(self.steps)
        for axis, (step, extent) in other.steps.items():
            known, same = steps.get(axis, (0, extent))
            if same != extent:
                return None
            steps[axis] = (known + sign * step, extent)
        return _Line(self.start + sign * other.start, {axis: step for axis, step in steps.items() if step[0]})

    @property
    def truth(self) -> bool | None:
        """What all elements are, as booleans; None where they may differ."""
        if not self.is_test:
            return bool(self.start) if not self.steps else None
        ways = [step * (extent.most - 1) for step, extent in self.steps.values()]
        if self.start + sum(way for way in ways if way < 0) > 0:
            return True
        return False if self.start + sum(way for way in ways if way > 0) <= 0 else None


_NO_STEP: Final = (0, _Extent(None))


class _Elements:
    """What the elements of integer and boolean tensors are, where extents do not matter.

    Args:
        graph: The layers.
        most: The greatest extents of network inputs, by tensor.
    """

    def __init__(self, graph: PlanGraph, most: Mapping[int, Sequence[int]]) -> None:
        self._graph = graph
        self._most_extents = most
        self._known: dict[int, _Line | None] = {}
        self._rules = {
            IConstantLayer: self._constant,
            IFillLayer: self._range,
            IElementWiseLayer: self._elementwise,
            IConcatenationLayer: self._joined,
        }
        self._rules_of_lines = {
            IUnaryLayer: _opposite,
            ICastLayer: _same,
            IIdentityLayer: _same,
            ISliceLayer: self._slice,
            IGatherLayer: _uniform,
            ICumulativeLayer: _uniform_zero,
            IShuffleLayer: self._moved,
            ISqueezeLayer: self._moved,
            IUnsqueezeLayer: self._moved,
        }

    def of(self, tensor: int | None) -> _Line | None:
        """The elements of a tensor; None where they are something else."""
        if tensor is None:
            return None
        if tensor not in self._known:
            self._known[tensor] = None  # nothing depends on itself
            node = self._graph.maker(tensor)
            is_whole = self._graph.dtype(tensor) in _INTEGERS
            self._known[tensor] = self._made_by(node) if node is not None and is_whole else None
        return self._known[tensor]

    def _made_by(self, node: Node) -> _Line | None:
        rule, rule_of_line = self._rules.get(node.layer), self._rules_of_lines.get(node.layer)
        if rule is not None:
            return rule(node)
        line = None if rule_of_line is None else self.of(node.inputs[0])
        return None if rule_of_line is None or line is None else rule_of_line(node, line)

    def _constant(self, node: Node) -> _Line | None:
        value = self._graph.constant(node.outputs[0])
        is_one = value is not None and value.numel() > 0 and bool((value == value.reshape(-1)[0]).all())
        return _Line(int(value.reshape(-1)[0])) if value is not None and is_one else None

    def _range(self, node: Node) -> _Line | None:
        if node[IFillLayer.operation] is not FillOperation.LINSPACE or len(node.inputs) != 3:
            return None
        length, start, step = node.inputs
        first, more = self.of(start), self.of(step)
        if first is None or more is None or len(self._graph.shape(node.outputs[0])) != 1:
            return None
        extent = _Extent(length, self._most(length))
        return _Line(first.start, {0: (more.start, extent)} if more.start else {})

    def _most(self, length: int | None) -> float:
        """What a number of one element is at most, where it is the extent of a network input."""
        node = self._said_first(length)
        shape = None if node is None else self._said_first(node.inputs[0])
        if node is None or shape is None or not shape.is_a(IShapeLayer):
            return math.inf
        extents, axis = self._most_extents.get(present(shape.inputs[0])), self._axis(node)
        return math.inf if extents is None or axis is None else extents[axis]

    def _said_first(self, tensor: int | None) -> Node | None:
        """What made a tensor, or the tensor that it repeats in another type or shape."""
        node = self._graph.maker(tensor)
        while node is not None and node.is_a(ICastLayer, IIdentityLayer, IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer):
            node = self._graph.maker(node.inputs[0])
        return node

    def _axis(self, node: Node) -> int | None:
        """Which element of a vector a layer takes."""
        if node.is_a(ISliceLayer):
            start = node[ISliceLayer.start]
            return None if start is None or len(node.inputs) > 1 else int(start[0])
        place = self._graph.constant(node.inputs[1]) if node.is_a(IGatherLayer) else None
        return None if place is None or place.numel() != 1 else int(place)

    def _elementwise(self, node: Node) -> _Line | None:
        operation = node[IElementWiseLayer.op]
        first, second = (self.of(tensor) for tensor in node.inputs)
        if operation in (ElementWiseOperation.AND, ElementWiseOperation.OR):
            absorbing = operation is ElementWiseOperation.OR
            for one, other in ((first, second), (second, first)):
                truth = None if one is None else one.truth
                if truth is not None:
                    return _Line(int(absorbing)) if truth is absorbing else other
            return None
        if first is None or second is None or first.is_test or second.is_test:
            return None
        if operation is ElementWiseOperation.SUM:
            return first.plus(second)
        difference = first.plus(second, -1)
        if difference is None or operation is ElementWiseOperation.SUB:
            return difference
        if operation is ElementWiseOperation.EQUAL:
            return _Line(int(difference.start == 0)) if not difference.steps else None
        if operation is ElementWiseOperation.LESS:
            difference = second.plus(first, -1)
        elif operation is not ElementWiseOperation.GREATER:
            return None
        return None if difference is None else replace(difference, is_test=True)

    def _joined(self, node: Node) -> _Line | None:
        """Tensors one behind the other, of which each goes on where the last one ended."""
        axis = node[IConcatenationLayer.axis]
        lines = [self.of(tensor) for tensor in node.inputs]
        last = lines[-1]
        if last is None or last.is_test:
            return None
        step, at = last.steps.get(axis, _NO_STEP)[0], last.start
        for tensor, line in zip(reversed(node.inputs[:-1]), reversed(lines[:-1]), strict=True):
            extent = self._graph.shape(tensor)[axis]
            at -= step * extent
            if extent == -1 or line is None or line.is_test or line.start != at:
                return None
            if {**line.steps, axis: _NO_STEP} != {**last.steps, axis: _NO_STEP} or (
                extent > 1 and line.steps.get(axis, _NO_STEP)[0] != step
            ):
                return None
        return _Line(at, {**last.steps, axis: (step, _Extent(("joined", node.name)))} if step else last.steps)

    def _slice(self, node: Node, line: _Line) -> _Line | None:
        if node[ISliceLayer.mode] is not SampleMode.STRICT_BOUNDS:
            return None
        if not line.steps:
            return line
        starts, strides, axes = node[ISliceLayer.start], node[ISliceLayer.stride], node[ISliceLayer.axes]
        if starts is None or strides is None or len(node.inputs) > 3:
            return None
        inputs = [*node.inputs, None, None][:3]
        source = ("slice", inputs[2], str(node[ISliceLayer.shape]))
        steps, start = dict(line.steps), line.start
        result = self._graph.shape(node.outputs[0])
        for axis, first, stride in zip(range(len(starts)) if axes is None else axes, starts, strides, strict=True):
            if axis < 0 or first < 0:
                return None
            if axis in steps:
                step, extent = steps.pop(axis)
                start += step * first
                if step * stride and result[axis] != 1:
                    steps[axis] = (step * stride, _Extent((source, axis), extent.most))
        return replace(line, start=start, steps=steps)

    def _moved(self, node: Node, line: _Line) -> _Line | None:
        """Elements in other places: axes stay whole, and come elsewhere."""
        if not line.steps:
            return line
        before = Arrangement.of(self._graph.shape(node.inputs[0]))
        behind = moved_by(self._graph, node, before)
        if behind is None:
            return None
        places = {group: axis for axis, group in enumerate(behind.target) if group}
        axes = {axis: places.get(behind.source[axis]) for axis in line.steps}
        if None in axes.values():
            return None
        return replace(line, steps={axes[axis]: step for axis, step in line.steps.items()})  # type: ignore[misc]


def _same(node: Node, line: _Line) -> _Line | None:
    return line


def _uniform(node: Node, line: _Line) -> _Line | None:
    """What is gathered of elements that are the same everywhere."""
    return None if line.steps else line


def _uniform_zero(node: Node, line: _Line) -> _Line | None:
    """What is summed up of zeros."""
    return line if line == _Line(0) else None


def _opposite(node: Node, line: _Line) -> _Line | None:
    """What a boolean is not."""
    if node[IUnaryLayer.op] is not UnaryOperation.NOT:
        return None
    if not line.is_test:
        return _Line(1 - line.start) if not line.steps and line.start in (0, 1) else None
    turned = {axis: (-step, extent) for axis, (step, extent) in line.steps.items()}
    return _Line(1 - line.start, turned, is_test=True)


def _is_causal(line: _Line, rank: int) -> bool:
    """Whether elements say that a column is not behind its row, in as many rows as columns."""
    rows, columns = (line.steps.get(axis, _NO_STEP) for axis in (rank - 2, rank - 1))
    is_told = line.is_test and line.start == 1 and len(line.steps) == 2
    return is_told and (rows[0], columns[0]) == (1, -1) and rows[1] == columns[1]
