"""Networks as JSON plus raw weights, and layers rebuilt from them without inferring anything again.

The structure holds ids in place of tensors, and keys in place of weights; `tables.NETWORK`, `tables.LAYER` and
`TensorEntry` name its fields. Layers are in executable order. Loops, conditionals
and attentions are one entry each; what runs inside a loop or a conditional is nested in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import torch

from trt_core.files import records, typed
from trt_core.files.records import Form
from trt_core.graph_search import reachable
from trt_portable.enums import DataType
from trt_portable.errors import Refusal
from trt_portable.network.layer import LAYER_CLASSES, OPEN, ILayer, ITensor
from trt_portable.network.region import Scope
from trt_portable.plan import tables
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from trt_portable.network.network import INetworkDefinition


def schedule(layers: Sequence[ILayer], scopes: Sequence[Scope] = ()) -> list[ILayer]:
    """Puts layers in an order in which every tensor is made before it is read.

    Args:
        layers: All layers of a network.
        scopes: Its loops and conditionals; those without outputs are left out with what is inside.

    Raises:
        Refusal: Layers depend on each other in a circle, or scopes overlap without nesting.
    """
    nodes = _Nodes(layers)
    used = [scope for scope in scopes if scope._boundary]
    for scope in sorted(used, key=lambda scope: len(nodes.inside(scope))):  # those inside of others have fewer layers
        nodes.contract(scope)
    return in_order(list(nodes._layers.values()))


class _Nodes:
    """The layers of a network while its scopes become one layer each; no step takes longer than its scope is large."""

    def __init__(self, layers: Sequence[ILayer]) -> None:
        self._layers: dict[int, ILayer] = {}
        self._place: dict[int, int] = {}
        self._readers: dict[int, list[ILayer]] = {}
        for layer in layers:
            self._add(layer)

    def _add(self, layer: ILayer) -> None:
        self._layers[id(layer)] = layer
        self._place[id(layer)] = len(self._place)
        for tensor in layer._inputs:
            if tensor is not None:
                self._readers.setdefault(id(tensor), []).append(layer)

    def inside(self, scope: Scope) -> list[ILayer]:
        """The layers that depend on the entries of a scope, boundary left out."""
        boundary = {id(layer) for layer in scope._boundary}

        def readers(layer: ILayer) -> list[ILayer]:
            found = [reader for tensor in layer._outputs for reader in self._readers.get(id(tensor), ())]
            return [reader for reader in found if id(reader) in self._layers and id(reader) not in boundary]

        inside = reachable((reader for entry in scope._entries() for reader in readers(entry)), readers)
        return sorted(inside, key=lambda layer: self._place[id(layer)])

    def contract(self, scope: Scope) -> None:
        """Puts one layer in the place of a scope, or nothing where the scope gives nothing out."""
        inside = self.inside(scope)
        for layer in (*inside, *scope._boundary):
            self._layers.pop(id(layer), None)
        if scope._exits():
            self._add(scope._region(in_order(inside)))


def in_order(layers: Sequence[ILayer]) -> list[ILayer]:
    """Layers sorted by their dependencies, otherwise in the order given.

    Raises:
        Refusal: Layers depend on each other in a circle.
    """
    maker = {id(tensor): index for index, layer in enumerate(layers) for tensor in layer._outputs}
    needs = [sorted({maker[id(t)] for t in layer._inputs if t is not None and id(t) in maker}) for layer in layers]
    ordered: list[ILayer] = []
    done, open_ = [False] * len(layers), [False] * len(layers)
    for start in range(len(layers)):
        stack = [start]
        while stack:
            index = stack[-1]
            if done[index]:
                stack.pop()
                continue
            missing = [needed for needed in needs[index] if not done[needed]]
            if not missing:
                stack.pop()
                done[index] = True
                ordered.append(layers[index])
                continue
            if open_[index]:
                raise Refusal(f"layer {layers[index].name!r} depends on its own output")
            open_[index] = True
            stack.extend(reversed(missing))
    return ordered


HOMES: Final[dict[str, tuple[str, ...]]] = {
    "trt_portable.layers.collective": ("DIST_COLLECTIVE",),
    "trt_portable.layers.convolution": ("CONVOLUTION", "DECONVOLUTION", "POOLING", "PADDING"),
    "trt_portable.layers.indexing": ("GATHER", "SCATTER", "ONE_HOT", "NON_ZERO", "REVERSE_SEQUENCE", "NMS"),
    "trt_portable.layers.low_precision": (
        *("PREPARED_MATRIX", "LOW_PRECISION_PRODUCT"),
        *("PREPARED_KERNEL", "LOW_PRECISION_CONVOLUTION"),
        *("CHOSEN_PRODUCT", "CHOSEN_CODES_PRODUCT"),
    ),
    "trt_portable.layers.movement": ("SHUFFLE", "CONCATENATION", "SQUEEZE", "UNSQUEEZE"),
    "trt_portable.layers.normalization": ("NORMALIZATION", "LRN", "SCALE"),
    "trt_portable.layers.plugin_layers": ("PLUGIN_V3",),
    "trt_portable.plugin.version_2": ("PLUGIN_V2",),
    "trt_portable.layers.pointwise": ("ACTIVATION", "UNARY", "ELEMENTWISE", "SELECT", "PARAMETRIC_RELU"),
    "trt_portable.layers.products": ("MATRIX_MULTIPLY", "EINSUM"),
    "trt_portable.layers.quantization": ("QUANTIZE", "DEQUANTIZE", "DYNAMIC_QUANTIZE"),
    "trt_portable.layers.reduction": ("REDUCE", "SOFTMAX", "RAGGED_SOFTMAX", "TOPK", "CUMULATIVE"),
    "trt_portable.layers.resampling": ("RESIZE", "GRID_SAMPLE"),
    "trt_portable.layers.slicing": ("SLICE",),
    "trt_portable.layers.sources": ("CONSTANT", "IDENTITY", "CAST", "SHAPE", "FILL"),
    "trt_portable.layers.transformer": (
        *("ATTENTION_INPUT", "ATTENTION_OUTPUT", "SCALED_ATTENTION"),
        *("ROTARY_EMBEDDING", "KV_CACHE_UPDATE", "MOE"),
    ),
    "trt_portable.network.control_flow": (
        *("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT", "CONDITIONAL", "ASSERTION"),
        *("RECURRENCE", "TRIP_LIMIT", "ITERATOR", "LOOP_OUTPUT", "LOOP"),
    ),
}
"""Kinds of layers by module; what no network has, but plans, is in `FUSED`."""

FUSED: Final = "trt_portable.layers.fused"
_HOME_OF: Final = {kind: module for module, kinds in HOMES.items() for kind in kinds}


def layer_class(kind: str) -> type[ILayer] | None:
    """The class of a kind of layer, None where there is none of that name."""
    if kind not in LAYER_CLASSES:
        import_module(_HOME_OF.get(kind, FUSED))
    return LAYER_CLASSES.get(kind)


@dataclass(frozen=True)
class TensorEntry:
    """What a plan says of a tensor.

    Attributes:
        id: Its number.
        name: Its name.
        dtype: Element type.
        shape: Extents, -1 where they are open.
        dimension_names: Names of extents, by the number of the axis.
        formats: The formats that its memory may have, one bit for each.
        debug: Whether debug listeners see it.
    """

    id: int
    name: str
    dtype: DataType
    shape: Annotated[tuple[int, ...], Form(tables.extents, list)]
    dimension_names: Mapping[str, str]
    formats: int
    debug: bool


@dataclass(frozen=True)
class RestoredNetwork:
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
        weights, attributes = layer._weights(), layer._attributes()
        for name, value in attributes.items():
            numbers = value if isinstance(value, (list, tuple)) else (value,)
            if not all(math.isfinite(number) for number in numbers if isinstance(number, float)):
                raise Refusal(f"{name} of layer {layer.name!r} is {value}, which no plan can hold")
        entry: dict[str, Any] = {
            "type": layer._PLAN_TYPE,
            "name": layer.name,
            "metadata": layer.metadata,
            "num_ranks": layer.num_ranks,
            "inputs": [None if t is None else self.id_of(t) for t in layer._inputs],
            "outputs": [self.id_of(tensor) for tensor in layer._outputs],
            "attributes": attributes,
            "weights": {role: self.key_of(used) for role, used in weights.items()},
            "weight_specs": {role: [used.dtype.name, len(used)] for role, used in weights.items()},
            "implementation": layer._implementation,
        }
        entry.update(layer._nested(self.layer, self.id_of))
        return entry


def network_to_json(network: INetworkDefinition) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
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
    names = network._names_of_weights
    structure = {
        "name": network.name,
        "flags": network.flags,
        "inputs": inputs,
        "outputs": outputs,
        "shape_outputs": shape_outputs,
        "tensors": [records.write(_tensor_entry(tensor, index)) for index, tensor in enumerate(writer.tensors)],
        "weight_names": {key: names[identity] for identity, key in writer.keys.items() if identity in names},
        "refittable": sorted(network._refittable),
        "layers": layers,
    }
    return structure, writer.weights


def _tensor_entry(tensor: ITensor, index: int) -> TensorEntry:
    shape = tensor.shape
    if not shape._is_valid:
        raise Refusal(f"the shape of tensor {tensor.name!r} is invalid")
    network = tensor._network
    names = {str(axis): name for axis, name in tensor._dimension_names.items()}
    debug = network is not None and network.is_debug_tensor(tensor)
    return TensorEntry(index, tensor.name, tensor.dtype, tuple(shape), names, tensor._formats, debug)


def layers_from_json(structure: Mapping[str, Any]) -> RestoredNetwork:
    """Rebuilds the layers of a structure; they lack only their weights and device.

    Raises:
        Refusal: The structure names an unknown layer type, or a tensor that does not exist.
    """
    structure = typed.fields(structure, "the network", tables.NETWORK)
    entries = [
        records.read(TensorEntry, entry, "a tensor") for entry in typed.items(structure["tensors"], "the tensors")
    ]
    tensors = {entry.id: _restore_tensor(entry) for entry in entries}
    layers = tuple(restore_layer(entry, tensors) for entry in typed.items(structure["layers"], "the layers"))
    return RestoredNetwork(
        name=typed.text(structure["name"], "the name of the network"),
        layers=layers,
        tensors=tensors,
        inputs=typed.integers(structure["inputs"], "the inputs"),
        outputs=(
            *typed.integers(structure["outputs"], "the outputs"),
            *typed.integers(structure["shape_outputs"], "the outputs"),
        ),
    )


def _restore_tensor(entry: TensorEntry) -> ITensor:
    tensor = ITensor(None, None, 0, entry.name, entry.dtype)
    tensor._extents = tuple([OPEN if extent < 0 else extent for extent in entry.shape])
    tensor._formats = entry.formats
    axes = {text: typed.digits(text) for text in entry.dimension_names}
    tensor._dimension_names = {
        typed.integer(axes[text], "an axis with a name", 0, len(entry.shape) - 1): name
        for text, name in entry.dimension_names.items()
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
    layer._implementation = typed.text(entry["implementation"], f"the kernel of layer {name!r}")
    layer._ranks = typed.integer(entry["num_ranks"], f"the ranks of layer {name!r}")
    try:
        layer._inputs = [None if at is None else tensors[at] for at in typed.items(entry["inputs"], "inputs")]
        layer._outputs = [tensors[at] for at in typed.integers(entry["outputs"], "outputs")]
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"layer {name!r} names the unknown tensor {error}") from None
    if not kind._MAX_INPUTS and None in layer._inputs:
        raise Refusal(f"layer {name!r} lacks an input")
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


def leaf_entries(entries: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The entries of the same layers, in the same order."""
    for entry in entries:
        yield entry
        for part in tables.REGION:
            yield from leaf_entries(entry.get(part, ()))
