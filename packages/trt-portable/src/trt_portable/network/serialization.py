"""Networks as JSON plus raw weights, and layers rebuilt from them without inferring anything again.

The structure holds ids in place of tensors::

    {"name", "flags", "inputs": [id], "outputs": [id], "shape_outputs": [id],
     "tensors": [{"id", "name", "dtype", "shape", "dimension_names", "formats", "debug"}],
     "weight_names": {weights key: name}, "refittable": [name],
     "layers": [{"type", "name", "metadata", "num_ranks", "inputs": [id | null], "outputs": [id],
                 "attributes": {}, "weights": {role: weights key},
                 "weight_specs": {role: [dtype, count]}, ...}]}

Layers are in executable order. Loops, conditionals and attentions are one entry each; what runs inside
a loop or a conditional is nested in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trt_portable.enums import DataType
from trt_portable.errors import Refusal
from trt_portable.network.layer import ILayer
from trt_portable.network.layer_kinds import layer_class
from trt_portable.network.regions import schedule
from trt_portable.network.tensor import ITensor
from trt_portable.plan import tables, typed
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from trt_portable.network.network import INetworkDefinition


@dataclass(frozen=True)
class NetworkImage:
    """Layers ready to run, apart from their weights.

    Attributes:
        name: The network's name.
        layers: In executable order.
        tensors: By id.
        inputs: Ids of the network inputs.
        outputs: Ids of the network outputs, those for shapes last.
    """

    name: str
    layers: tuple[ILayer, ...]
    tensors: Mapping[int, ITensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def bind(self, weights: Mapping[str, torch.Tensor], entries: list[Any], device: Any) -> None:
        """Binds weights and a device to all layers.

        Args:
            weights: Flat tensors by weights key, on the device.
            entries: The ``layers`` of the structure that the layers were made from.
            device: Where the layers run.
        """
        for layer, entry in zip(self.layers, entries, strict=True):
            layer._device = torch.device(device)
            layer._bound = {role: weights[key] for role, key in entry["weights"].items() if key in weights}


class _Writer:
    """Numbers tensors and weights while it writes layers."""

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self.tensors: list[ITensor] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.keys: dict[tuple[int, DataType, int], str] = {}

    def id_of(self, tensor: ITensor) -> int:
        found = self.ids.get(id(tensor))
        if found is None:
            found = self.ids[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return found

    def key_of(self, weights: Weights) -> str:
        key = self.keys.get(weights._key)
        if key is None:
            key = self.keys[weights._key] = f"w{len(self.keys)}"
            self.weights[key] = weights._tensor()
        return key

    def layer(self, layer: ILayer) -> dict[str, Any]:
        weights = layer._weights()
        entry: dict[str, Any] = {
            "type": layer._plan_type(),
            "name": layer.name,
            "metadata": layer.metadata,
            "num_ranks": layer.num_ranks,
            "inputs": [None if t is None else self.id_of(t) for t in layer._inputs],
            "outputs": [self.id_of(tensor) for tensor in layer._outputs],
            "attributes": layer._attributes(),
            "weights": {role: self.key_of(used) for role, used in weights.items()},
            "weight_specs": {role: [used.dtype.name, len(used)] for role, used in weights.items()},
        }
        entry.update(layer._nested(self.layer, self.id_of))
        return entry


def network_to_json(
    network: INetworkDefinition,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Writes a network.

    Returns:
        The structure, and flat zero-copy views of the host weights by key; the same weights appear
        once. Packed 4-bit weights are uint8.

    Raises:
        Refusal: The layers cannot be put into an executable order.
    """
    writer = _Writer()
    inputs = [writer.id_of(tensor) for tensor in network._inputs]
    scheduled = schedule(network._layers, network._scopes)
    made = {id(tensor) for layer in scheduled for tensor in layer._outputs}
    for tensor in network._outputs:
        if id(tensor) not in made:
            raise Refusal(f"{tensor.name!r} is inside a loop or conditional and cannot be an output")
    layers = [writer.layer(layer) for layer in scheduled]
    outputs = [writer.id_of(tensor) for tensor in network._marked]
    shape_outputs = [writer.id_of(tensor) for tensor in network._marked_for_shapes]
    names = {key: name for name, key in network._weight_names.items()}
    structure = {
        "name": network.name,
        "flags": network.flags,
        "inputs": inputs,
        "outputs": outputs,
        "shape_outputs": shape_outputs,
        "tensors": [_tensor_entry(tensor, index) for index, tensor in enumerate(writer.tensors)],
        "weight_names": {key: names[identity] for identity, key in writer.keys.items() if identity in names},
        "refittable": sorted(network._refittable),
        "layers": layers,
    }
    return structure, writer.weights


def _tensor_entry(tensor: ITensor, index: int) -> dict[str, Any]:
    shape = tensor.shape
    if not shape._is_valid:
        raise Refusal(f"the shape of tensor {tensor.name!r} is invalid")
    network = tensor._network
    return {
        "id": index,
        "name": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": list(shape),
        "dimension_names": {str(axis): name for axis, name in tensor._dimension_names.items()},
        "formats": tensor._formats,
        "debug": network is not None and network.is_debug_tensor(tensor),
    }


def layers_from_json(structure: Mapping[str, Any]) -> NetworkImage:
    """Rebuilds the layers of a structure; they lack only their weights and device.

    Raises:
        Refusal: The structure names an unknown layer type, or a tensor that does not exist.
    """
    structure = typed.fields(structure, "the network", tables.NETWORK)
    tensors: dict[int, ITensor] = {}
    for entry in typed.items(structure["tensors"], "the tensors"):
        tensor = _restore_tensor(entry)
        tensors[typed.integer(entry["id"], f"the number of {tensor._name!r}")] = tensor
    layers = tuple(restore_layer(entry, tensors) for entry in typed.items(structure["layers"], "the layers"))
    return NetworkImage(
        name=typed.text(structure["name"], "the name of the network"),
        layers=layers,
        tensors=tensors,
        inputs=typed.integers(structure["inputs"], "the inputs"),
        outputs=(
            *typed.integers(structure["outputs"], "the outputs"),
            *typed.integers(structure["shape_outputs"], "the outputs"),
        ),
    )


def _restore_tensor(entry: Any) -> ITensor:
    entry = typed.fields(entry, "a tensor", tables.TENSOR)
    name = typed.text(entry["name"], "the name of a tensor")
    tensor = ITensor(None, None, 0, name, typed.member(DataType, entry["dtype"], f"the type of {name!r}"))
    tensor._extents = typed.extents(entry["shape"], f"the shape of {name!r}")
    tensor._formats = typed.integer(entry["formats"], f"the formats of {name!r}")
    dimensions = typed.mapping(entry["dimension_names"], f"the dimensions of {name!r}")
    tensor._dimension_names = {
        int(axis): typed.text(dimension, f"a dimension of {name!r}") for axis, dimension in dimensions.items()
    }
    return tensor


def restore_layer(entry: Mapping[str, Any], tensors: Mapping[int, ITensor]) -> ILayer:
    """One layer of a structure.

    Raises:
        Refusal: An unknown layer type or tensor.
        TypeError, ValueError: A field is missing, unknown, or makes no sense.
    """
    kind = layer_class(typed.text(typed.mapping(entry, "a layer").get("type"), "the type of a layer"))
    if kind is None:
        raise Refusal(f"there is a layer of the unknown type {entry['type']!r:.60}")
    entry = typed.fields(entry, f"a layer of type {entry['type']}", (*tables.LAYER, *kind._NESTED))
    layer = kind._create()
    layer._name = name = typed.text(entry["name"], "the name of a layer")
    layer._metadata = typed.text(entry["metadata"], f"the metadata of layer {name!r}")
    layer._ranks = typed.integer(entry["num_ranks"], f"the ranks of layer {name!r}")
    try:
        layer._inputs = [None if at is None else tensors[at] for at in typed.items(entry["inputs"], "inputs")]
        layer._outputs = [tensors[at] for at in typed.integers(entry["outputs"], "outputs")]
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"layer {name!r} names the unknown tensor {error}") from None
    for index, output in enumerate(layer._outputs):
        output._producer, output._index = layer, index
    what = f"the weights of layer {name!r}"
    specs = {
        role: (typed.member(DataType, dtype, what), typed.integer(count, what))
        for role, (dtype, count) in typed.mapping(entry["weight_specs"], what).items()
    }
    layer._weight_keys = {role: typed.text(key, what) for role, key in typed.mapping(entry["weights"], what).items()}
    layer._restore(entry["attributes"], specs)
    layer._restore_nested(entry, lambda inner: restore_layer(inner, tensors), tensors)
    return layer


def leaf_layers(layers: tuple[ILayer, ...]) -> Iterator[ILayer]:
    """All layers, those nested in loops and conditionals included."""
    for layer in layers:
        yield layer
        yield from leaf_layers(layer._children())
