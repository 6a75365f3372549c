"""Layers that only move elements: those that move nothing go, those in a row become one, and few are in between.

Exporters and decompositions leave identities, casts to the type that is there, slices of everything, and reshapes and
transposes one behind the other. Each costs a call in every run, and a reshape between a product and its activation
keeps kernels from taking both. Attention as modules write it turns rows and columns of its tokens around, multiplies,
takes query, key and value apart, and turns them back: a product takes its rows in any order, and a part of a moved
tensor is a moved part, so that these movements meet and cancel.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import Any, Final

from trt_portable.builder.passes.arrangement import Arrangement, Factor, Shuffle, extent_of, flat
from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.dims import MAX_RANK
from trt_portable.enums import DataType, ElementWiseOperation, LayerType, MatrixOperation, SampleMode

_COPIES: Final = frozenset({LayerType.IDENTITY.name, LayerType.CAST.name})
_RESHAPES: Final = frozenset({LayerType.SQUEEZE.name, LayerType.UNSQUEEZE.name})
_POINTWISE: Final = frozenset({LayerType.ACTIVATION.name})
_SHUFFLE: Final = LayerType.SHUFFLE.name
MOVEMENTS: Final = frozenset({*_RESHAPES, _SHUFFLE})
# These know their inputs by more than values: bodies name outer tensors, updates happen in an input's memory, and a
# plugin may ask where memory is.
_CLOSE_READERS: Final = frozenset(
    {
        LayerType.KV_CACHE_UPDATE.name,
        LayerType.PLUGIN_V2.name,
        LayerType.PLUGIN_V3.name,
        "LOOP",
        "CONDITIONAL",
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
        rewrite = _Rewrite(graph)
        for entry in graph.layers:
            rewrite.take(entry)
        graph.layers[:] = rewrite.layers
        return rewrite.changes


class _Rewrite:
    """The layers so far, and what stands for tensors that are made no more."""

    def __init__(self, graph: PlanGraph) -> None:
        self.layers: list[Entry] = []
        self.changes = 0
        self._graph = graph
        self._instead: dict[int, int] = {}
        self._movements: dict[int, tuple[int, Arrangement]] = {}  # tensor to what it is moved from, and how
        self._producers: dict[int, Entry] = {}
        self._readers: dict[int, list[Entry]] = defaultdict(list)
        for entry in graph.layers:
            for tensor in entry["inputs"]:
                if tensor is not None:
                    self._readers[tensor].append(entry)

    @cached_property
    def _numbers_stay(self) -> bool:
        """Whether no refit changes an integer, on which an extent may depend."""
        return not any(
            entry["type"] == LayerType.CONSTANT.name
            and self._graph.dtype(entry["outputs"][0]) in (DataType.INT32, DataType.INT64)
            and not self._graph.is_fixed(entry["weights"]["CONSTANT"], "CONSTANT")
            for entry in self._graph.layers
        )

    def take(self, entry: Entry) -> None:
        """Adds a layer, or what does the same with less."""
        if not self._instead.keys().isdisjoint(entry["inputs"]):
            entry = {**entry, "inputs": [self._instead.get(tensor, tensor) for tensor in entry["inputs"]]}
        moved = self._moved(entry)
        if moved is not None:
            self._move(entry, *moved)
        elif self._copies(entry):
            self._drop(entry)
        else:
            found = self._behind(entry)
            if found is None:
                self._add(entry)
            else:
                self.changes += 1
                self._move(*found)

    def _add(self, entry: Entry) -> None:
        for tensor in entry["outputs"]:
            self._producers[tensor] = entry
        self.layers.append(entry)

    def _drop(self, entry: Entry) -> None:
        self._instead[entry["outputs"][0]] = entry["inputs"][0]
        self.changes += 1

    def _move(self, entry: Entry, source: int, arrangement: Arrangement) -> None:
        """Adds a movement as one layer, or nothing where that is what it moves."""
        if source != entry["inputs"][0] or arrangement.is_identity:
            self.changes += 1
        (output,) = entry["outputs"]
        may_go = output not in self._graph.wanted and self._may_change(source) and self._may_change(output)
        if arrangement.is_identity and may_go and self._graph.dtype(source) is self._graph.dtype(output):
            self._instead[output] = source
            return
        if entry["inputs"] != [source] or entry["type"] != _SHUFFLE:
            shuffle = arrangement.shuffle()
            if shuffle is not None:
                entry = _shuffle(entry, source, shuffle)
        self._add(entry)
        self._movements[output] = (source, arrangement)

    # movements in a row ---------------------------------------------------------------------------------

    def _moved(self, entry: Entry) -> tuple[int, Arrangement] | None:
        """What a layer moves, and how, from as far back as one layer can; None for other layers."""
        if entry["type"] not in _RESHAPES and entry["type"] != _SHUFFLE:
            return None
        x = entry["inputs"][0]
        source, before = self._movements.get(x, (x, None))
        both = None if before is None or not self._may_change(source) else self._applied(entry, before)
        if both is not None and (both.is_identity or both.shuffle() is not None):
            return source, both
        alone = self._applied(entry, Arrangement.of(self._graph.shape(x)))
        return None if alone is None or alone.shuffle() is None else (x, alone)

    def _applied(self, entry: Entry, before: Arrangement) -> Arrangement | None:
        """What a movement makes of an arrangement."""
        result = self._graph.shape(entry["outputs"][0])
        if -1 in result and len(entry["inputs"]) > 1 and entry["type"] == _SHUFFLE and not self._numbers_stay:
            return None
        return moved_by(self._graph, entry, before)

    def _copies(self, entry: Entry) -> bool:
        """Whether a layer's result is its first input, and nobody minds reading that instead."""
        if not entry["inputs"] or entry["inputs"][0] is None or len(entry["outputs"]) != 1:
            return False
        source, output = entry["inputs"][0], entry["outputs"][0]
        if output in self._graph.wanted or not self._may_change(source) or not self._may_change(output):
            return False
        if self._graph.dtype(source) is not self._graph.dtype(output):
            return False
        kind, attributes = entry["type"], entry["attributes"]
        if kind in _COPIES or (kind == LayerType.CONCATENATION.name and len(entry["inputs"]) == 1):
            return True
        if kind != LayerType.SLICE.name:
            return False
        shape = self._graph.shape(source)
        is_same = shape == self._graph.shape(output) and all(extent > 0 for extent in shape)
        is_plain = attributes["mode"] == SampleMode.STRICT_BOUNDS.name and len(entry["inputs"]) == 1
        return is_same and is_plain and not any(attributes["start"]) and set(attributes["stride"]) <= {1}

    # movements behind other layers ------------------------------------------------------------------------

    def _behind(self, entry: Entry) -> tuple[Entry, int, Arrangement] | None:
        """A layer of what was moved as a movement of a layer; that layer is added."""
        if entry["type"] in _POINTWISE and len(entry["inputs"]) == 1:
            return self._behind_activation(entry)
        if entry["type"] == LayerType.MATRIX_MULTIPLY.name:
            return self._behind_product(entry)
        if entry["type"] == LayerType.ELEMENTWISE.name:
            return self._behind_bias(entry)
        if entry["type"] == LayerType.SLICE.name and len(entry["inputs"]) == 1:
            return self._behind_slice(entry)
        return None

    def _movement_for(self, tensor: int, entry: Entry) -> tuple[int, Arrangement] | None:
        """What a tensor is moved from, if a layer alone reads it."""
        found = self._movements.get(tensor)
        if found is None or len(self._readers[tensor]) != 1 or tensor in self._graph.wanted:
            return None
        return found if self._may_change(found[0]) and self._may_change(entry["outputs"][0]) else None

    def _behind_activation(self, entry: Entry) -> tuple[Entry, int, Arrangement] | None:
        """An activation of the tensor as it was before it was reshaped."""
        found = self._movement_for(entry["inputs"][0], entry)
        if found is None or not found[1].keeps_order or found[1].is_identity:
            return None
        source, arrangement = found
        result = self._new_tensor(entry, "flat", self._graph.shape(source))
        self._add({**entry, "inputs": [source], "outputs": [result]})
        return _reordered(entry, result), result, arrangement

    def _behind_product(self, entry: Entry) -> tuple[Entry, int, Arrangement] | None:
        """A product with a constant matrix of rows in the order in which they were before they were moved."""
        attributes, (x, matrix) = entry["attributes"], entry["inputs"]
        found = self._movement_for(x, entry)
        if found is None or attributes["op0"] != MatrixOperation.NONE.name or self._is_for_loop(entry):
            return None
        if attributes["op1"] == MatrixOperation.VECTOR.name:
            return None
        source, arrangement = found
        *rows, last = arrangement.target
        ordered = [tuple(factor for factor in group if factor not in last) for group in arrangement.source]
        ordered = [group for group in ordered if group]
        if not last or not ordered or flat(ordered) == flat(rows):
            return None
        columns = self._graph.shape(entry["outputs"][0])[-1]
        shared = () if columns == 1 else (Factor.new(columns),)
        before = Arrangement(arrangement.source, (*ordered, last))
        behind = Arrangement((*ordered, shared), (*rows, shared))
        shuffle = before.shuffle()
        constant = self._with_rank(matrix, len(ordered) + 1, kept=2)
        if constant is None or behind.shuffle() is None or (shuffle is None and not before.is_identity):
            return None
        if not before.is_identity:
            assert shuffle is not None
            moved = self._new_tensor(entry, "rows", tuple(map(extent_of, before.target)), like=x)
            name = f"{entry['name']} rows"
            self._add({**_shuffle(_without_weights(entry), source, shuffle), "name": name, "outputs": [moved]})
            self._movements[moved] = (source, before)
            source = moved
        result = self._new_tensor(entry, "product", tuple(map(extent_of, behind.source)))
        self._add({**entry, "inputs": [source, constant], "outputs": [result]})
        return _reordered(entry, result), result, behind

    def _behind_bias(self, entry: Entry) -> tuple[Entry, int, Arrangement] | None:
        """The sum of a product and a constant bias as it was before the product was moved."""
        if entry["attributes"]["op"] != ElementWiseOperation.SUM.name:
            return None
        for x, bias in (entry["inputs"], entry["inputs"][::-1]):
            found = self._movement_for(x, entry)
            producer = None if found is None else self._producers.get(found[0])  # inputs have none
            if found is None or producer is None or producer["type"] != LayerType.MATRIX_MULTIPLY.name:
                continue
            source, arrangement = found
            shape = self._graph.shape(bias)
            is_row = set(shape[:-1]) <= {1} and shape[-1:] == self._graph.shape(source)[-1:] != (1,)
            if not is_row or arrangement.target[-1] != arrangement.source[-1]:
                continue
            constant = self._with_rank(bias, len(arrangement.source), kept=1)
            if constant is None:
                continue
            result = self._new_tensor(entry, "sum", self._graph.shape(source))
            self._add({**entry, "inputs": [source, constant], "outputs": [result]})
            return _reordered(entry, result), result, arrangement
        return None

    def _behind_slice(self, entry: Entry) -> tuple[Entry, int, Arrangement] | None:
        """A part of a moved tensor as a moved part: several may be taken of what is moved by nobody then."""
        x = entry["inputs"][0]
        source, arrangement = self._movements.get(x, (x, None))
        part = None if arrangement is None else _part(entry, self._graph.shape(x))
        if arrangement is None or part is None or not (self._may_change(source) and self._may_change(x)):
            return None
        axis, start, size = part
        group = arrangement.target[axis]
        if len(group) != 1 or group[0].size == -1 or entry["outputs"][0] in self._graph.wanted:
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
        result = self._new_tensor(entry, "part", shape)
        attributes = {"start": [start * within], "shape": [shape[at]], "stride": [1], "axes": [at]}
        self._add(
            {**entry, "inputs": [source], "outputs": [result], "attributes": {**entry["attributes"], **attributes}}
        )
        return _reordered(entry, result), result, behind

    # what rewrites need ---------------------------------------------------------------------------------

    def _new_tensor(self, entry: Entry, what: str, shape: Any, *, like: int | None = None) -> int:
        description = self._graph.tensors[entry["outputs"][0] if like is None else like]
        return self._graph.new_tensor(f"{description['name']} {what}", description["dtype"], shape)

    def _with_rank(self, tensor: int, rank: int, *, kept: int) -> int | None:
        """A constant with as many extents, of which all but some at the end are 1; None for other tensors."""
        entry = self._producers.get(tensor)
        shape = self._graph.shape(tensor)
        if entry is None or entry["type"] != LayerType.CONSTANT.name or set(shape[:-kept]) - {1} or rank < kept:
            return None
        if len(shape) == rank:
            return tensor
        if not self._graph.is_fixed(entry["weights"]["CONSTANT"], "CONSTANT"):
            return None  # a refit names the layer, of which there is one
        fresh = [*[1] * (rank - kept), *shape[-kept:]]
        made = self._new_tensor(entry, f"of rank {rank}", fresh)
        self._add({**entry, "outputs": [made], "attributes": {"shape": fresh}})
        return made

    def _is_for_loop(self, entry: Entry) -> bool:
        """Whether a loop reads a product, or the sum with its bias: a kernel may take both."""
        readers = self._readers[entry["outputs"][0]]
        sums = [each for each in readers if each["type"] == LayerType.ELEMENTWISE.name]
        further = [each for addition in sums for each in self._readers[addition["outputs"][0]]]
        return any(each["type"] in _CLOSE_READERS for each in (*readers, *further))

    def _may_change(self, tensor: int) -> bool:
        """Whether all that read a tensor may read another one in its place, or another reader may join them."""
        return all(reader["type"] not in _CLOSE_READERS for reader in self._readers[tensor])


def moved_by(graph: PlanGraph, entry: Entry, before: Arrangement) -> Arrangement | None:
    """What one of `MOVEMENTS` makes of an arrangement; None where that cannot be told.

    Args:
        graph: The layers.
        entry: The movement.
        before: How its input lies.
    """
    result = graph.shape(entry["outputs"][0])
    if entry["type"] in _RESHAPES:
        return before.without_ones(result)
    attributes = entry["attributes"]
    first = tuple(attributes["first_transpose"])[: len(before.target)]
    second = tuple(attributes["second_transpose"])[: len(result)]
    found: Arrangement | None = before.transposed(first)
    if attributes["reshape_dims"] is not None or len(entry["inputs"]) > 1:
        reshape, copied = [0] * len(result), []
        for axis, origin in enumerate(second):
            reshape[origin] = result[axis]
        if attributes["zero_is_placeholder"] and len(entry["inputs"]) == 1:
            copied = [axis for axis, extent in enumerate(attributes["reshape_dims"]) if extent == 0]
        assert found is not None
        found = None if 0 in reshape else found.reshaped(reshape, copied)
    return None if found is None else found.transposed(second)


def _part(entry: Entry, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The one axis that a slice cuts, where it begins and how much it takes; None for other slices."""
    attributes = entry["attributes"]
    if attributes["mode"] != SampleMode.STRICT_BOUNDS.name or None in (attributes["start"], attributes["shape"]):
        return None
    axes = range(len(shape)) if attributes["axes"] is None else attributes["axes"]
    places = list(zip(axes, attributes["start"], attributes["shape"], attributes["stride"], strict=True))
    cut = [place for place in places if place[1] != 0 or place[2] != shape[place[0]]]
    if len(cut) != 1 or any(stride != 1 for _, _, _, stride in places):
        return None
    ((axis, start, size, _),) = cut
    return (axis, start, size) if axis >= 0 and size > 0 and shape[axis] >= start + size else None


def _shuffle(entry: Entry, source: int, shuffle: Shuffle) -> Entry:
    """A layer that makes what an entry makes by a movement of another tensor."""
    attributes = {
        "first_transpose": [*shuffle.first, *range(len(shuffle.first), MAX_RANK)],
        "reshape_dims": None if shuffle.reshape is None else list(shuffle.reshape),
        "second_transpose": [*shuffle.second, *range(len(shuffle.second), MAX_RANK)],
        "zero_is_placeholder": True,
    }
    return {**entry, "type": _SHUFFLE, "inputs": [source], "attributes": attributes}


def _reordered(entry: Entry, source: int) -> Entry:
    """What becomes the movement behind a layer."""
    return {**_without_weights(entry), "name": f"{entry['name']} reshape", "inputs": [source]}


def _without_weights(entry: Entry) -> Entry:
    return {**entry, "weights": {}, "weight_specs": {}}
