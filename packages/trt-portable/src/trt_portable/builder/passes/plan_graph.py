"""The layers of a plan while the builder rewrites them, and the contract of what rewrites them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trt_portable.dtypes import PACKED, pack, unpack, volume
from trt_portable.enums import DataType, LayerType
from trt_portable.errors import PortableError
from trt_portable.network.layer import ILayer
from trt_portable.network.serialization import layers_from_json
from trt_portable.plan.tables import REGION
from trt_portable.plan.weight_table import WeightTable
from trt_portable.shape_tensors import Value, as_tensor

Entry = dict[str, Any]
"""A layer as `trt_portable.network.serialization` writes it: type, name, inputs, outputs, attributes, weights."""


class PassError(PortableError):
    """A pass broke its promise; the message says which, and on which layer."""


@dataclass
class PlanGraph:
    """Layers in executable order, with their tensors and weights.

    Attributes:
        layers: An input of a layer is a network input or an output of an earlier layer. What loops and conditionals
            read is among their inputs.
        tensors: Description by id.
        weights: Host weights by key, flat.
        inputs: Ids of the network inputs.
        wanted: Ids of tensors that must be computed: outputs, and tensors marked for debugging.
        is_fixed: Whether the weights of a key in a role can never change.
    """

    layers: list[Entry]
    tensors: dict[int, dict[str, Any]]
    weights: WeightTable
    inputs: tuple[int, ...]
    wanted: frozenset[int]
    is_fixed: Callable[[str, str], bool]

    def producers(self) -> dict[int, Entry]:
        """The layer that makes each tensor; network inputs have none."""
        return {tensor: entry for entry in self.layers for tensor in entry["outputs"]}

    def uses(self) -> Counter[int]:
        """How often layers read each tensor."""
        return Counter(tensor for entry in self.layers for tensor in entry["inputs"] if tensor is not None)

    def constant(self, entry: Entry | None) -> torch.Tensor | None:
        """The value of a constant layer whose weights never change, None for any other layer."""
        if entry is None or entry["type"] != LayerType.CONSTANT.name:
            return None
        key = entry["weights"]["CONSTANT"]
        shape = entry["attributes"]["shape"]
        if not self.is_fixed(key, "CONSTANT") or key not in self.weights or -1 in shape:
            return None
        flat = self.weights[key]
        count = 1
        for extent in shape:
            count *= extent
        return flat.reshape(shape) if flat.numel() == count else None  # packed types have fewer bytes than elements

    def elements(self, entry: Entry | None) -> torch.Tensor | None:
        """As `constant`, with 4-bit elements unpacked to their carrier."""
        value = self.constant(entry)
        if value is not None or entry is None or entry["type"] != LayerType.CONSTANT.name:
            return value
        key, shape = entry["weights"]["CONSTANT"], entry["attributes"]["shape"]
        dtype = DataType[entry["weight_specs"]["CONSTANT"][0]]
        if dtype not in PACKED or not self.is_fixed(key, "CONSTANT") or key not in self.weights or -1 in shape:
            return None
        return unpack(self.weights[key], dtype, volume(shape)).reshape(shape)

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Extents of a tensor, -1 where they are open."""
        return tuple(self.tensors[tensor]["shape"])

    def dtype(self, tensor: int) -> DataType:
        """Element type of a tensor."""
        return DataType[self.tensors[tensor]["dtype"]]

    def compute(self, entry: Entry, value: torch.Tensor, producers: Mapping[int, Entry]) -> torch.Tensor | None:
        """What a layer makes of a value of its first input, if its other inputs are constants.

        They are taken as they are: extents and axes that a plan relies on are not refitted.
        """
        operands: list[Value | None] = [value]
        for tensor in entry["inputs"][1:]:
            constant = None if tensor is None else producers.get(tensor)
            if tensor is not None and (constant is None or constant["type"] != LayerType.CONSTANT.name):
                return None
            operands.append(None if constant is None else self.restored(constant)._compute(())[0])
        (made,) = self.restored(entry)._compute(operands)
        return as_tensor(made)

    def restored(self, entry: Entry) -> ILayer:
        """The layer of an entry, with its weights."""
        named = {tensor for each in nested_entries(entry) for tensor in (*each["inputs"], *each["outputs"])}
        tensors = [description for tensor, description in self.tensors.items() if tensor in named]
        nothing: dict[str, Any] = {"name": "", "flags": 0, "weight_names": {}}
        nothing.update({key: [] for key in ("inputs", "outputs", "shape_outputs", "refittable")})
        image = layers_from_json({**nothing, "tensors": tensors, "layers": [entry]})
        image.bind(self.weights, [entry], "cpu")
        return image.layers[0]

    def new_tensor(self, name: str, dtype: str, shape: Sequence[int]) -> int:
        """Adds a tensor, and returns its id."""
        identity = max(self.tensors, default=-1) + 1
        like = next(iter(self.tensors.values()))
        self.tensors[identity] = {
            **like,
            "id": identity,
            "name": name,
            "dtype": dtype,
            "shape": list(shape),
            "dimension_names": {},
            "debug": False,
        }
        return identity

    def new_constant(self, name: str, dtype: DataType, value: torch.Tensor) -> Entry:
        """A constant layer with weights of its own; the caller puts it into `layers`.

        Args:
            name: Of the layer and its output.
            dtype: The element type.
            value: In the carrier of the type.
        """
        key = f"{name}:{len(self.weights)}"
        self.weights[key] = pack(value.reshape(-1), dtype) if dtype in PACKED else value.reshape(-1)
        return self._constant_of(key, name, dtype, list(value.shape))

    def new_joined_constant(self, name: str, dtype: DataType, parts: Sequence[torch.Tensor], axis: int) -> Entry:
        """A constant layer with the elements of several constants along an axis, joined where they are written to.

        Args:
            name: Of the layer and its output.
            dtype: The element type, which takes whole bytes.
            parts: Values, of the same extents on other axes.
            axis: Along which they follow each other.
        """
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        sizes = [part.shape[axis] for part in parts]

        def write(target: torch.Tensor) -> None:
            for place, part in zip(target.view(shape).split(sizes, axis), parts, strict=True):
                place.copy_(part)

        key = f"{name}:{len(self.weights)}"
        self.weights.defer(key, parts[0].dtype, math.prod(shape), write)
        return self._constant_of(key, name, dtype, shape)

    def _constant_of(self, key: str, name: str, dtype: DataType, shape: list[int]) -> Entry:
        return {
            "type": LayerType.CONSTANT.name,
            "name": name,
            "metadata": "",
            "num_ranks": 1,
            "inputs": [],
            "outputs": [self.new_tensor(name, dtype.name, shape)],
            "attributes": {"shape": shape},
            "weights": {"CONSTANT": key},
            "weight_specs": {"CONSTANT": [dtype.name, math.prod(shape)]},
        }


def nested_entries(entry: Entry) -> Iterator[Entry]:
    """An entry, and those of the layers inside it."""
    yield entry
    for part in REGION:
        for inner in entry.get(part, ()):
            yield from nested_entries(inner)


class PlanPass(ABC):
    """A rewrite of a plan's layers in place.

    A pass keeps what the wanted tensors are, up to the rounding that its docstring names, and leaves the order of
    layers executable. It touches no weights that a refit may replace.
    """

    name: str

    @abstractmethod
    def call(self, graph: PlanGraph) -> int:
        """Rewrites the graph, and returns the number of changes."""

    def __call__(self, graph: PlanGraph) -> int:
        """Rewrites, and checks what every pass promises where something changed.

        Raises:
            PassError: A layer reads what no earlier layer makes, or a wanted tensor is gone.
        """
        changes = self.call(graph)
        if changes:
            self._ensure(graph)
        return changes

    def _ensure(self, graph: PlanGraph) -> None:
        known = set(graph.inputs)
        for entry in graph.layers:
            missing = {tensor for tensor in entry["inputs"] if tensor is not None} - known
            if missing:
                raise PassError(f"pass {self.name}: layer {entry['name']!r} reads tensors {sorted(missing)} too early")
            known.update(entry["outputs"])
        if not graph.wanted <= known:
            raise PassError(f"pass {self.name}: tensors {sorted(graph.wanted - known)} are computed no more")


class EliminateDeadLayers(PlanPass):
    """Removes layers that contribute to no wanted tensor; layers without outputs stay. Exact."""

    name = "eliminate_dead_layers"

    def call(self, graph: PlanGraph) -> int:
        """Walks the layers from the last to the first."""
        needed = set(graph.wanted)
        live = []
        for entry in reversed(graph.layers):
            if not entry["outputs"] or not needed.isdisjoint(entry["outputs"]):
                live.append(entry)
                needed.update(tensor for tensor in entry["inputs"] if tensor is not None)
        removed = len(graph.layers) - len(live)
        graph.layers[:] = live[::-1]
        return removed
