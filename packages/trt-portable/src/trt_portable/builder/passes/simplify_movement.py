"""Layers that only move elements: those that move nothing go, and those in a row become one.

Exporters and decompositions leave identities, casts to the type that is there, slices of everything, and reshapes and
transposes one behind the other. Each costs a call in every run, and a reshape between a product and its activation
keeps kernels from taking both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.dims import MAX_RANK
from trt_portable.enums import LayerType, SampleMode

Order = tuple[int, ...]
Shape = tuple[int, ...]

_COPIES: Final = frozenset({LayerType.IDENTITY.name, LayerType.CAST.name})
_RESHAPES: Final = frozenset({LayerType.SQUEEZE.name, LayerType.UNSQUEEZE.name})
_POINTWISE: Final = frozenset({LayerType.ACTIVATION.name})
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
    """Removes layers that move nothing, merges movements in a row, and puts reshapes behind activations.

    Values stay the same to the last bit. What somebody besides the layers reads is still made.
    """

    name = "simplify_movement"

    def call(self, graph: PlanGraph) -> int:
        """Looks at each layer once, in order, so that a row of any length becomes one."""
        rewrite = _Rewrite(graph)
        for entry in graph.layers:
            rewrite.take(entry)
        graph.layers[:] = rewrite.layers
        return rewrite.changes


@dataclass(frozen=True)
class _Movement:
    """Transpose, reshape, transpose.

    Attributes:
        first: Order of the axes before the reshape.
        reshape: Extents, all known; None where nothing is reshaped.
        second: Order of the axes after it.
    """

    first: Order
    reshape: Shape | None
    second: Order

    def then(self, other: _Movement) -> _Movement | None:
        """Both in one; None where it takes two."""
        between = _chained(self.second, other.first)
        if other.reshape is None:
            return _Movement(self.first, self.reshape, _chained(between, other.second))
        if self.reshape is None:
            first = _chained(self.first, between)
            return _Movement(first, other.reshape, other.second)
        return _Movement(self.first, other.reshape, other.second) if _is_identity(between) else None


class _Rewrite:
    """The layers so far, and what stands for tensors that are made no more."""

    def __init__(self, graph: PlanGraph) -> None:
        self.layers: list[Entry] = []
        self.changes = 0
        self._graph = graph
        self._instead: dict[int, int] = {}
        self._movements: dict[int, tuple[int, _Movement]] = {}  # tensor to what it is moved from, and how
        self._producers: dict[int, int] = {}  # tensor to index in `layers`
        self._readers: dict[int, list[str]] = defaultdict(list)
        for entry in graph.layers:
            for tensor in entry["inputs"]:
                if tensor is not None:
                    self._readers[tensor].append(entry["type"])

    def take(self, entry: Entry) -> None:
        """Adds a layer, or what does the same with less."""
        if not self._instead.keys().isdisjoint(entry["inputs"]):
            entry = {**entry, "inputs": [self._instead.get(tensor, tensor) for tensor in entry["inputs"]]}
        entry = self._merged(entry)
        if self._moves_nothing(entry):
            self._instead[entry["outputs"][0]] = entry["inputs"][0]
            self.changes += 1
            return
        self._add(self._before_reshape(entry))

    def _add(self, entry: Entry) -> None:
        for tensor in entry["outputs"]:
            self._producers[tensor] = len(self.layers)
        self.layers.append(entry)
        movement = self._movement(entry)
        if movement is not None:
            self._movements[entry["outputs"][0]] = (entry["inputs"][0], movement)

    def _merged(self, entry: Entry) -> Entry:
        """A movement of what was moved already as one movement of where that came from."""
        movement = self._movement(entry)
        before = self._movements.get(entry["inputs"][0]) if movement is not None else None
        both = None if movement is None or before is None else before[1].then(movement)
        if before is None or both is None or not self._may_change(before[0]):
            return entry
        self.changes += 1
        return _shuffle(entry, before[0], both)

    def _before_reshape(self, entry: Entry) -> Entry:
        """An activation of what was reshaped for it alone as one of the tensor as it was; the reshape comes behind."""
        if entry["type"] not in _POINTWISE or len(entry["inputs"]) != 1:
            return entry
        (moved,), (output,) = entry["inputs"], entry["outputs"]
        found = self._movements.get(moved)
        if found is None or len(self._readers[moved]) != 1 or moved in self._graph.wanted:
            return entry
        source, movement = found
        if movement.reshape is None or not (_is_identity(movement.first) and _is_identity(movement.second)):
            return entry
        description = self._graph.tensors[output]
        result = self._graph.new_tensor(f"{description['name']} flat", description["dtype"], self._graph.shape(source))
        self._add({**entry, "inputs": [source], "outputs": [result]})
        self.changes += 1
        at = self._producers[moved]
        return {**_shuffle(self.layers[at], result, movement), "outputs": [output], "name": f"{entry['name']} reshape"}

    def _movement(self, entry: Entry) -> _Movement | None:
        """How a layer moves elements, where its extents, or those of its input, do not matter or are known."""
        kind = entry["type"]
        if kind not in _RESHAPES and kind != LayerType.SHUFFLE.name:
            return None
        source, result = self._graph.shape(entry["inputs"][0]), self._graph.shape(entry["outputs"][0])
        is_known = all(extent > 0 for extent in (*source, *result))
        plain, behind = tuple(range(len(source))), tuple(range(len(result)))
        if kind in _RESHAPES:
            return _Movement(plain, result, behind) if is_known else None
        attributes = entry["attributes"]
        first = tuple(attributes["first_transpose"])[: len(source)]
        second = tuple(attributes["second_transpose"])[: len(result)]
        if attributes["reshape_dims"] is None and len(entry["inputs"]) == 1:
            return _Movement(first, None, second)
        if not is_known:
            return None
        reshape = [0] * len(result)
        for axis, origin in enumerate(second):
            reshape[origin] = result[axis]
        return _Movement(first, tuple(reshape), second)

    def _moves_nothing(self, entry: Entry) -> bool:
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
        shape = self._graph.shape(source)
        is_same = shape == self._graph.shape(output) and all(extent > 0 for extent in shape)
        if kind == LayerType.SLICE.name:
            is_plain = attributes["mode"] == SampleMode.STRICT_BOUNDS.name and len(entry["inputs"]) == 1
            return is_same and is_plain and not any(attributes["start"]) and set(attributes["stride"]) <= {1}
        movement = self._movement(entry)
        if movement is None or not (_is_identity(movement.first) and _is_identity(movement.second)):
            return False
        return movement.reshape is None or is_same

    def _may_change(self, tensor: int) -> bool:
        """Whether all that read a tensor may read another one in its place, or another reader may join them."""
        return _CLOSE_READERS.isdisjoint(self._readers[tensor])


def _shuffle(entry: Entry, source: int, movement: _Movement) -> Entry:
    """A layer that makes what an entry makes by a movement of another tensor."""
    attributes = {
        "first_transpose": [*movement.first, *range(len(movement.first), MAX_RANK)],
        "reshape_dims": None if movement.reshape is None else list(movement.reshape),
        "second_transpose": [*movement.second, *range(len(movement.second), MAX_RANK)],
        "zero_is_placeholder": True,
    }
    return {**entry, "type": LayerType.SHUFFLE.name, "inputs": [source], "attributes": attributes}


def _chained(first: Sequence[int], second: Sequence[int]) -> Order:
    """The order that two transposes make, one after the other."""
    return tuple(first[axis] for axis in second)


def _is_identity(order: Sequence[int]) -> bool:
    return tuple(order) == tuple(range(len(order)))
