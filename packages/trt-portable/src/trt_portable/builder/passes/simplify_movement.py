"""Layers that only move elements: those that move nothing go, those in a row become one, and few are in between.

Exporters and decompositions leave identities, casts to the type that is there, slices of everything, and reshapes and
transposes one behind the other. Each costs a call in every run, and a reshape between a product and its activation
keeps kernels from taking both. Attention as modules write it turns rows and columns of its tokens around, multiplies,
takes query, key and value apart, and turns them back: a product takes its rows in any order, and a part of a moved
tensor is a moved part, so that these movements meet and cancel.

Transposes and reshapes, any number of them, take the extents of a tensor apart into factors, put these in another
order, and join them to new extents. So a row of movements is known by the factors of each axis before and behind it.
Extents may be open.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Final

from trt_core.cached_property import cached_property
from trt_portable.dims import MAX_RANK, Dims, Permutation
from trt_portable.enums import DataType, ElementWiseOperation, LayerType, MatrixOperation, SampleMode
from trt_portable.layer_properties import Attribute
from trt_portable.layers.movement import IConcatenationLayer, IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.layers.sources import ICastLayer, IConstantLayer, IIdentityLayer
from trt_portable.plan.nodes import Node, PlanGraph, PlanPass

Shape = tuple[int, ...]
Order = tuple[int, ...]

_numbers = count()


@dataclass(frozen=True)
class Factor:
    """A factor of an extent.

    Attributes:
        number: Tells factors of the same size apart.
        size: -1 where it is open.
    """

    number: int
    size: int

    @staticmethod
    def new(size: int) -> Factor:
        """Another one."""
        return Factor(next(_numbers), size)


Group = tuple[Factor, ...]
"""The factors of an axis, the outermost first; none where its extent is 1."""


@dataclass(frozen=True)
class Shuffle:
    """A transpose, a reshape and a transpose, as a shuffle layer has them.

    Attributes:
        first: Order of the axes before the reshape.
        reshape: Extents, 0 where one stays, -1 for the rest; None where nothing is reshaped.
        second: Order of the axes behind it.
    """

    first: Order
    reshape: Shape | None
    second: Order


@dataclass(frozen=True)
class Arrangement:
    """A tensor made of another one by moving elements.

    Attributes:
        source: The factors of the axes of the other tensor.
        target: Those of its own axes.
    """

    source: tuple[Group, ...]
    target: tuple[Group, ...]

    @staticmethod
    def of(shape: Sequence[int]) -> Arrangement:
        """A tensor as it is; open extents are -1."""
        groups = tuple(() if extent == 1 else (Factor.new(extent),) for extent in shape)
        return Arrangement(groups, groups)

    @property
    def is_identity(self) -> bool:
        """Whether nothing moves, and extents stay."""
        return self.source == self.target

    @property
    def keeps_order(self) -> bool:
        """Whether elements stay in their order."""
        return flat(self.source) == flat(self.target)

    def transposed(self, order: Sequence[int]) -> Arrangement:
        """With the axes in another order."""
        return Arrangement(self.source, tuple(self.target[axis] for axis in order))

    def reshaped(self, shape: Sequence[int], copied: Collection[int] = ()) -> Arrangement | None:
        """In other extents; None where factors cannot tell how.

        Args:
            shape: Extents; -1 where open.
            copied: Axes that have the extent that was at their place.
        """
        return _Reshape(self, shape, copied).run()

    def without_ones(self, shape: Sequence[int]) -> Arrangement | None:
        """With other axes of extent 1; None where more changes.

        Args:
            shape: Extents; -1 where open.
        """
        groups = [group for group in self.target if group]
        if sum(extent != 1 for extent in shape) != len(groups):
            return None
        left = iter(groups)
        return Arrangement(self.source, tuple(() if extent == 1 else next(left) for extent in shape))

    def shuffle(self) -> Shuffle | None:
        """One layer that moves elements so; None where it takes more."""
        plain = tuple(range(len(self.source)))
        places = {factor: at for at, factor in enumerate(flat(self.target))}
        # extents of 1 stay where they are
        moving = iter(
            sorted((axis for axis in plain if self.source[axis]), key=lambda axis: places[self.source[axis][0]])
        )
        moved = tuple(next(moving) if self.source[axis] else axis for axis in plain)
        return self._behind(plain) or (self._behind(moved) if moved != plain else None)

    def _behind(self, first: Order) -> Shuffle | None:
        """The layer that begins with an order of axes."""
        before = [self.source[axis] for axis in first]
        factors = flat(before)
        at = {factor: place for place, factor in enumerate(factors)}
        for group in self.target:
            if [at[factor] for factor in group] != list(
                range(at[group[0]], at[group[0]] + len(group)) if group else ()
            ):
                return None
        axes = range(len(self.target))
        behind = sorted((axis for axis in axes if self.target[axis]), key=lambda axis: at[self.target[axis][0]])
        moving = iter(behind)
        origin = [next(moving) if self.target[axis] else axis for axis in axes]  # axis behind for each one between
        between = [self.target[axis] for axis in origin]
        second = tuple(origin.index(axis) for axis in axes)
        if between == before:
            return Shuffle(first, None, second)
        extents = tuple(
            _extent(group, before[place] if place < len(before) else None) for place, group in enumerate(between)
        )
        is_clear = -1 not in extents or (extents.count(-1) == 1 and 0 not in extents)  # else 0 elements tell nothing
        return Shuffle(first, extents, second) if is_clear else None


def extent_of(group: Group) -> int:
    """The extent of an axis; -1 where it is open."""
    return -1 if any(factor.size == -1 for factor in group) else math.prod(factor.size for factor in group)


def _extent(group: Group, before: Group | None) -> int:
    """An extent of a reshape: 0 for an open one that stays, -1 for another open one."""
    extent = extent_of(group)
    return 0 if extent == -1 and group == before else extent


def flat(groups: Iterable[Group]) -> list[Factor]:
    """The factors of all axes, the outermost first."""
    return list(chain.from_iterable(groups))


class _Reshape:
    """Takes the factors of an arrangement apart, and joins them to other extents.

    Args:
        arrangement: What is reshaped.
        shape: The extents.
        copied: Axes that have the extent that was at their place.
    """

    def __init__(self, arrangement: Arrangement, shape: Sequence[int], copied: Collection[int]) -> None:
        self._arrangement = arrangement
        self._shape = shape
        self._copied = copied
        self._left = flat(arrangement.target)
        self._parts: dict[Factor, Group] = {}

    def run(self) -> Arrangement | None:
        """The result; None where factors cannot tell."""
        shape, found = self._shape, {}
        first, last = 0, len(shape) - 1
        while first <= last:
            group = self._take(first, from_end=False)
            if group is None:
                break
            found[first] = group
            first += 1
        while last > first:
            group = self._take(last, from_end=True)
            if group is None:
                return None
            found[last] = group
            last -= 1
        if first == last:
            if shape[first] != -1:
                return None
            found[first], self._left = tuple(self._left), []
        if self._left:
            return None
        source = tuple(self._whole(group) for group in self._arrangement.source)
        return Arrangement(source, tuple(self._whole(found[axis]) for axis in range(len(shape))))

    def _take(self, axis: int, *, from_end: bool) -> Group | None:
        """The factors of an axis, off the beginning or the end of those that are left; None where it is open."""
        extent = self._shape[axis]
        if extent == -1:
            return self._copy(axis, from_end=from_end)
        taken: list[Factor] = []
        while extent > 1:
            if not self._left:
                return None
            factor = self._left.pop(-1 if from_end else 0)
            if factor.size != -1 and extent % factor.size == 0:
                whole = factor
            elif factor.size != -1 and factor.size % extent == 0:
                whole = self._split(factor, extent, from_end=from_end)
            else:
                self._left.insert(len(self._left) if from_end else 0, factor)
                self._left[0:0] = [] if from_end else taken
                self._left += taken[::-1] if from_end else []
                return None
            taken.append(whole)
            extent //= whole.size
        return tuple(taken[::-1] if from_end else taken)

    def _copy(self, axis: int, *, from_end: bool) -> Group | None:
        """The factors of an axis that stays."""
        target = self._arrangement.target
        if axis not in self._copied or axis >= len(target):
            return None
        group = self._whole(target[axis])
        length = len(group)
        there = tuple(self._left[len(self._left) - length :] if from_end else self._left[:length])
        if there != group:
            return None
        del self._left[slice(len(self._left) - length, None) if from_end else slice(length)]
        return group

    def _split(self, factor: Factor, size: int, *, from_end: bool) -> Factor:
        """Splits a factor in two, and returns the part of a size; the rest is left."""
        part, rest = Factor.new(size), Factor.new(factor.size // size)
        self._parts[factor] = (rest, part) if from_end else (part, rest)
        self._left.insert(len(self._left) if from_end else 0, rest)
        return part

    def _whole(self, group: Group) -> Group:
        """A group with the parts of what was split."""

        def parts(factor: Factor) -> Iterator[Factor]:
            for part in self._parts.get(factor, ()):
                yield from parts(part)
            if factor not in self._parts:
                yield factor

        return tuple(chain.from_iterable(map(parts, group)))


_COPIES: Final = (IIdentityLayer, ICastLayer)
MOVEMENTS: Final = (IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer)
# These know their inputs by more than values: bodies name outer tensors, updates happen in an input's memory, and a
# plugin may ask where memory is.
_CLOSE_READERS: Final = frozenset(
    {
        LayerType.KV_CACHE_UPDATE,
        LayerType.PLUGIN_V2,
        LayerType.PLUGIN_V3,
        LayerType.LOOP_OUTPUT,
        LayerType.CONDITIONAL_OUTPUT,
    }
)


class SimplifyMovement(PlanPass):
    """Removes layers that move nothing, merges movements in a row, and puts them behind products, biases and slices.

    Values stay the same to the last bit, but for products, whose kernels may add in another order where rows are in
    another one. What somebody besides the layers reads is still made.
    """

    name = "simplify_movement"

    def call(self, graph: PlanGraph) -> int:
        """Looks at each layer once, in order, so that a row of any length becomes one."""
        sweep = _Sweep(graph)
        for node in graph.nodes:
            sweep.take(node)
        graph.nodes = sweep.nodes
        return sweep.changes


class _Sweep:
    """The layers so far, and what stands for tensors that are made no more."""

    def __init__(self, graph: PlanGraph) -> None:
        self.nodes: list[Node] = []
        self.changes = 0
        self._graph = graph
        self._instead: dict[int | None, int | None] = {}
        self._movements: dict[int | None, tuple[int, Arrangement]] = {}  # tensor to what it is moved from, and how
        self._producers: dict[int | None, Node] = {}

    @cached_property
    def _numbers_stay(self) -> bool:
        """Whether no refit changes an integer, on which an extent may depend."""
        return not any(
            node.is_a(IConstantLayer)
            and self._graph.dtype(node.outputs[0]) in (DataType.INT32, DataType.INT64)
            and not self._graph.is_fixed(node)
            for node in self._graph.nodes
        )

    def take(self, node: Node) -> None:
        """Adds a layer, or what does the same with less."""
        if not self._instead.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple(self._instead.get(tensor, tensor) for tensor in node.inputs))
        moved = self._moved(node)
        if moved is not None:
            self._move(node, *moved)
        elif self._copies(node):
            self._instead[node.outputs[0]] = node.inputs[0]
            self.changes += 1
        else:
            found = self._behind(node)
            if found is None:
                self._add(node)
            else:
                self.changes += 1
                self._move(*found)

    def _add(self, node: Node) -> None:
        for tensor in node.outputs:
            self._producers[tensor] = node
        self.nodes.append(node)

    def _move(self, node: Node, source: int, arrangement: Arrangement) -> None:
        """Adds a movement as one layer, or nothing where that is what it moves."""
        if source != node.inputs[0] or arrangement.is_identity:
            self.changes += 1
        (output,) = node.outputs
        may_go = output not in self._graph.visible and self._may_change(source) and self._may_change(output)
        if arrangement.is_identity and may_go and self._graph.dtype(source) is self._graph.dtype(output):
            self._instead[output] = source
            return
        if node.inputs != (source,) or not node.is_a(IShuffleLayer):
            shuffle = arrangement.shuffle()
            if shuffle is not None:
                node = _shuffle(node, source, shuffle)
        self._add(node)
        self._movements[output] = (source, arrangement)

    # movements in a row ---------------------------------------------------------------------------------

    def _moved(self, node: Node) -> tuple[int, Arrangement] | None:
        """What a layer moves, and how, from as far back as one layer can; None for other layers."""
        x = node.inputs[0] if node.is_a(*MOVEMENTS) else None
        if x is None:
            return None
        source, before = self._movements.get(x, (x, None))
        both = None if before is None or not self._may_change(source) else self._applied(node, before)
        if both is not None and (both.is_identity or both.shuffle() is not None):
            return source, both
        alone = self._applied(node, Arrangement.of(self._graph.shape(x)))
        return None if alone is None or alone.shuffle() is None else (x, alone)

    def _applied(self, node: Node, before: Arrangement) -> Arrangement | None:
        """What a movement makes of an arrangement."""
        result = self._graph.shape(node.outputs[0])
        if -1 in result and len(node.inputs) > 1 and node.is_a(IShuffleLayer) and not self._numbers_stay:
            return None
        return moved_by(self._graph, node, before)

    def _copies(self, node: Node) -> bool:
        """Whether a layer's result is its first input, and nobody minds reading that instead."""
        if not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
            return False
        source, output = node.inputs[0], node.outputs[0]
        if output in self._graph.visible or not self._may_change(source) or not self._may_change(output):
            return False
        if self._graph.dtype(source) is not self._graph.dtype(output):
            return False
        if node.is_a(*_COPIES) or (node.is_a(IConcatenationLayer) and len(node.inputs) == 1):
            return True
        if not node.is_a(ISliceLayer) or len(node.inputs) > 1 or node[ISliceLayer.mode] is not SampleMode.STRICT_BOUNDS:
            return False
        shape = self._graph.shape(source)
        is_same = shape == self._graph.shape(output) and all(extent > 0 for extent in shape)
        return is_same and not any(node[ISliceLayer.start]) and set(node[ISliceLayer.stride]) <= {1}

    # movements behind other layers ------------------------------------------------------------------------

    def _behind(self, node: Node) -> tuple[Node, int, Arrangement] | None:
        """A layer of what was moved as a movement of a layer; that layer is added."""
        if node.is_a(IActivationLayer):
            return self._behind_activation(node)
        if node.is_a(IMatrixMultiplyLayer):
            return self._behind_product(node)
        if node.is_a(IElementWiseLayer):
            return self._behind_bias(node)
        return self._behind_slice(node) if node.is_a(ISliceLayer) and len(node.inputs) == 1 else None

    def _movement_for(self, tensor: int | None, node: Node) -> tuple[int, Arrangement] | None:
        """What a tensor is moved from, if a layer alone reads it."""
        found = self._movements.get(tensor)
        if found is None or not self._graph.is_private(tensor):
            return None
        return found if self._may_change(found[0]) and self._may_change(node.outputs[0]) else None

    def _behind_activation(self, node: Node) -> tuple[Node, int, Arrangement] | None:
        """An activation of the tensor as it was before it was reshaped."""
        found = self._movement_for(node.inputs[0], node)
        if found is None or not found[1].keeps_order or found[1].is_identity:
            return None
        source, arrangement = found
        result = self._new_tensor(node, "flat", self._graph.shape(source))
        self._add(replace(node, inputs=(source,), outputs=(result,)))
        return _reordered(node, result), result, arrangement

    def _behind_product(self, node: Node) -> tuple[Node, int, Arrangement] | None:
        """A product with a constant matrix of rows in the order in which they were before they were moved."""
        x, matrix = node.inputs
        found = self._movement_for(x, node)
        if found is None or node[IMatrixMultiplyLayer.op0] is not MatrixOperation.NONE or self._is_for_loop(node):
            return None
        if node[IMatrixMultiplyLayer.op1] is MatrixOperation.VECTOR:
            return None
        source, arrangement = found
        *rows, last = arrangement.target
        ordered = [tuple(factor for factor in group if factor not in last) for group in arrangement.source]
        ordered = [group for group in ordered if group]
        if not last or not ordered or flat(ordered) == flat(rows):
            return None
        columns = self._graph.shape(node.outputs[0])[-1]
        shared = () if columns == 1 else (Factor.new(columns),)
        before = Arrangement(arrangement.source, (*ordered, last))
        behind = Arrangement((*ordered, shared), (*rows, shared))
        shuffle = before.shuffle()
        constant = self._with_rank(matrix, len(ordered) + 1, kept=2)
        if constant is None or behind.shuffle() is None or (shuffle is None and not before.is_identity):
            return None
        if not before.is_identity:
            assert shuffle is not None
            moved = self._new_tensor(node, "rows", tuple(map(extent_of, before.target)), like=x)
            rows_first = _shuffle(node, source, shuffle)
            self._add(replace(rows_first, name=f"{node.name} rows", outputs=(moved,)))
            self._movements[moved] = (source, before)
            source = moved
        result = self._new_tensor(node, "product", tuple(map(extent_of, behind.source)))
        self._add(replace(node, inputs=(source, constant), outputs=(result,)))
        return _reordered(node, result), result, behind

    def _behind_bias(self, node: Node) -> tuple[Node, int, Arrangement] | None:
        """The sum of a product and a constant bias as it was before the product was moved."""
        if node[IElementWiseLayer.op] is not ElementWiseOperation.SUM:
            return None
        for x, bias in (node.inputs, node.inputs[::-1]):
            found = self._movement_for(x, node)
            producer = None if found is None else self._producers.get(found[0])  # inputs have none
            if found is None or producer is None or not producer.is_a(IMatrixMultiplyLayer):
                continue
            source, arrangement = found
            shape = self._graph.shape(bias)
            is_row = set(shape[:-1]) <= {1} and shape[-1:] == self._graph.shape(source)[-1:] != (1,)
            if not is_row or arrangement.target[-1] != arrangement.source[-1]:
                continue
            constant = self._with_rank(bias, len(arrangement.source), kept=1)
            if constant is None:
                continue
            result = self._new_tensor(node, "sum", self._graph.shape(source))
            self._add(replace(node, inputs=(source, constant), outputs=(result,)))
            return _reordered(node, result), result, arrangement
        return None

    def _behind_slice(self, node: Node) -> tuple[Node, int, Arrangement] | None:
        """A part of a moved tensor as a moved part: several may be taken of what is moved by nobody then."""
        x = node.inputs[0]
        found = self._movements.get(x)
        part = None if found is None else _part(node, self._graph.shape(x))
        if found is None or part is None or not (self._may_change(found[0]) and self._may_change(x)):
            return None
        (source, arrangement), (axis, start, size) = found, part
        group = arrangement.target[axis]
        if len(group) != 1 or group[0].size == -1 or node.outputs[0] in self._graph.visible:
            return None
        at = next(at for at, others in enumerate(arrangement.source) if group[0] in others)
        within = extent_of(arrangement.source[at][1:])
        if arrangement.source[at][0] != group[0] or within == -1:
            return None
        fresh = () if size == 1 else (Factor.new(size),)
        behind = Arrangement(
            (*arrangement.source[:at], (*fresh, *arrangement.source[at][1:]), *arrangement.source[at + 1 :]),
            (*arrangement.target[:axis], fresh, *arrangement.target[axis + 1 :]),
        )
        if behind.shuffle() is None and not behind.is_identity:
            return None
        shape = list(self._graph.shape(source))
        shape[at] = size * within
        result = self._new_tensor(node, "part", shape)
        values = {
            ISliceLayer.start: Dims((start * within,)),
            ISliceLayer.shape: Dims((shape[at],)),
            ISliceLayer.stride: Dims((1,)),
            ISliceLayer.axes: Dims((at,)),
        }
        self._add(replace(node, inputs=(source,), outputs=(result,)).having(values))
        return _reordered(node, result), result, behind

    # what rewrites need ---------------------------------------------------------------------------------

    def _new_tensor(self, node: Node, what: str, shape: Sequence[int], *, like: int | None = None) -> int:
        facts = self._graph.tensors[node.outputs[0] if like is None else like]
        return self._graph.new_tensor(f"{facts.name} {what}", facts.dtype, shape)

    def _with_rank(self, tensor: int | None, rank: int, *, kept: int) -> int | None:
        """A constant with as many extents, of which all but some at the end are 1; None for other tensors."""
        node = self._producers.get(tensor)
        shape = self._graph.shape(tensor)
        if node is None or not node.is_a(IConstantLayer) or set(shape[:-kept]) - {1} or rank < kept:
            return None
        if len(shape) == rank:
            return tensor
        if not self._graph.is_fixed(node):
            return None  # a refit names the layer, of which there is one
        fresh = [*[1] * (rank - kept), *shape[-kept:]]
        made = self._new_tensor(node, f"of rank {rank}", fresh)
        self._add(replace(node, outputs=(made,)).having({IConstantLayer.shape: Dims(fresh)}))
        return made

    def _is_for_loop(self, node: Node) -> bool:
        """Whether a loop reads a product, or the sum with its bias: a kernel may take both."""
        readers = self._graph.uses(node.outputs[0])
        sums = [each for each in readers if each.is_a(IElementWiseLayer)]
        further = [each for addition in sums for each in self._graph.uses(addition.outputs[0])]
        return any(each.kind in _CLOSE_READERS for each in (*readers, *further))

    def _may_change(self, tensor: int | None) -> bool:
        """Whether all that read a tensor may read another one in its place, or another reader may join them."""
        return all(reader.kind not in _CLOSE_READERS for reader in self._graph.uses(tensor))


def moved_by(graph: PlanGraph, node: Node, before: Arrangement) -> Arrangement | None:
    """What one of `MOVEMENTS` makes of an arrangement; None where that cannot be told.

    Args:
        graph: The layers.
        node: The movement.
        before: How its input lies.
    """
    result = graph.shape(node.outputs[0])
    if not node.is_a(IShuffleLayer):
        return before.without_ones(result)
    permutations = node[IShuffleLayer.first_transpose], node[IShuffleLayer.second_transpose]
    first, second = tuple(permutations[0])[: len(before.target)], tuple(permutations[1])[: len(result)]
    found: Arrangement | None = before.transposed(first)
    dims = node[IShuffleLayer.reshape_dims]
    if dims is not None or len(node.inputs) > 1:
        reshape, copied = [0] * len(result), []
        for axis, origin in enumerate(second):
            reshape[origin] = result[axis]
        if node[IShuffleLayer.zero_is_placeholder] and len(node.inputs) == 1:
            copied = [axis for axis, extent in enumerate(dims) if extent == 0]
        assert found is not None
        found = None if 0 in reshape else found.reshaped(reshape, copied)
    return None if found is None else found.transposed(second)


def _part(node: Node, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The one axis that a slice cuts, where it begins and how much it takes; None for other slices."""
    starts, sizes, strides = node[ISliceLayer.start], node[ISliceLayer.shape], node[ISliceLayer.stride]
    if node[ISliceLayer.mode] is not SampleMode.STRICT_BOUNDS or starts is None or sizes is None:
        return None
    axes = range(len(shape)) if node[ISliceLayer.axes] is None else node[ISliceLayer.axes]
    places = list(zip(axes, starts, sizes, strides, strict=True))
    cut = [place for place in places if place[1] != 0 or place[2] != shape[place[0]]]
    if len(cut) != 1 or any(stride != 1 for _, _, _, stride in places):
        return None
    ((axis, start, size, _),) = cut
    return (axis, start, size) if axis >= 0 and size > 0 and shape[axis] >= start + size else None


def _shuffle(node: Node, source: int, shuffle: Shuffle) -> Node:
    """A layer that makes what a node makes by a movement of another tensor."""
    values: dict[Attribute[Any], Any] = {
        IShuffleLayer.first_transpose: Permutation([*shuffle.first, *range(len(shuffle.first), MAX_RANK)]),
        IShuffleLayer.reshape_dims: None if shuffle.reshape is None else Dims(shuffle.reshape),
        IShuffleLayer.second_transpose: Permutation([*shuffle.second, *range(len(shuffle.second), MAX_RANK)]),
    }
    return replace(node, layer=IShuffleLayer, inputs=(source,), values=values, weights={})


def _reordered(node: Node, source: int) -> Node:
    """What becomes the movement behind a layer."""
    return replace(node, name=f"{node.name} reshape", inputs=(source,), weights={})
