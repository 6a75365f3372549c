"""From the structure of a plan to layers in executable order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from trt_portable.enums import LayerType
from trt_portable.errors import PortableError, Refusal, strict
from trt_portable.execution.program import LayerCall
from trt_portable.network.layer import ILayer
from trt_portable.network.serialization import layers_from_json, leaf_layers
from trt_portable.plan.engine_info import EngineInfo, IOTensor, Shape, WeightSlot

_PLAIN: Final = "plain"
_CHANNELS_LAST: Final = "channels_last"
_TAPS_FIRST: Final = "taps_first"
_ORDERS: Final = (_PLAIN, _CHANNELS_LAST, _TAPS_FIRST)


@dataclass(frozen=True)
class WeightLayout:
    """Extents and memory order of weights.

    Attributes:
        shape: Extents; None for the flat tensor.
        order: ``plain``, ``channels_last``, where the second of four axes varies fastest, or ``taps_first``, where the
            last two axes vary slowest.

    Raises:
        ValueError: There is no such order, or no shape for it.
    """

    shape: Shape | None = None
    order: str = _PLAIN

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ValueError(f"weights cannot lie in order {self.order!r}")
        if self.order != _PLAIN and (self.shape is None or len(self.shape) != 4):
            raise ValueError(f"weights of shape {self.shape} cannot lie in order {self.order!r}")

    @classmethod
    def channels_last(cls, shape: Shape) -> WeightLayout:
        """The layout of convolutions' kernels that tensor cores read."""
        return cls(shape, _CHANNELS_LAST)

    @classmethod
    def taps_first(cls, shape: Shape) -> WeightLayout:
        """The layout of depthwise convolutions' kernels where channels vary fastest."""
        return cls(shape, _TAPS_FIRST)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> WeightLayout:
        """The layout that a plan describes by ``shape`` and ``order``.

        Raises:
            ValueError: It makes no sense.
        """
        shape = fields["shape"]
        return cls(None if shape is None else tuple(shape), fields["order"])

    def to_json(self) -> dict[str, Any]:
        """What `read` takes."""
        return {"shape": None if self.shape is None else list(self.shape), "order": self.order}

    def of(self, weights: torch.Tensor) -> torch.Tensor:
        """Weights in this layout, from the flat tensor or from any tensor of this shape; no copy if they have it."""
        if self.order == _CHANNELS_LAST:
            assert self.shape is not None
            return weights.reshape(self.shape).contiguous(memory_format=torch.channels_last)
        if self.order == _TAPS_FIRST:
            assert self.shape is not None
            return weights.reshape(self.shape).permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
        return weights.contiguous().reshape(-1 if self.shape is None else self.shape)


FLAT: Final = WeightLayout()


def plain_layout(layer: ILayer, slot: WeightSlot) -> WeightLayout:
    """How kernels of a GPU read weights fastest: those of 2-D convolutions with channels last.

    Otherwise every run would copy them to that layout.
    """
    if slot.role != "KERNEL" or layer._KIND not in (LayerType.CONVOLUTION, LayerType.DECONVOLUTION):
        return FLAT
    convolution: Any = layer
    extents = tuple(convolution.kernel_size_nd)
    if len(extents) != 2:
        return FLAT
    is_transposed = layer._KIND is LayerType.DECONVOLUTION
    maps = convolution.num_output_maps // (convolution.num_groups if is_transposed else 1)
    others = slot.count // (maps * extents[0] * extents[1])
    return WeightLayout.channels_last((others, maps, *extents) if is_transposed else (maps, others, *extents))


_FROZEN: Final[dict[type[ILayer], type[ILayer]]] = {}


def freeze(layers: Iterable[ILayer]) -> None:
    """Fixes the attributes of layers that were rebuilt from a plan."""
    for layer in layers:
        kind = type(layer)
        if kind._ATTRIBUTES and not kind._IS_FROZEN:
            values = {attribute.name: getattr(layer, attribute.name) for attribute in kind._ATTRIBUTES}
            layer.__class__ = _FROZEN.get(kind) or _frozen(kind)
            layer.__dict__.update(values)


def _frozen(kind: type[ILayer]) -> type[ILayer]:
    plain = dict.fromkeys(attribute.name for attribute in kind._ATTRIBUTES)
    made = type(kind.__name__, (kind,), {**plain, "_IS_FROZEN": True, "__doc__": kind.__doc__})
    return _FROZEN.setdefault(kind, made)


@dataclass(frozen=True)
class LoadedNetwork:
    """A network in executable order, before a tactic was chosen.

    Attributes:
        calls: Layers bound to tensor ids.
        inputs: Ids of the network inputs.
        outputs: Ids of the network outputs.
        visible: Ids of tensors that something besides the layers reads.
        updates: Outputs that lie in the memory of an input, of which a layer changes a part: id of each by the other's.
    """

    calls: tuple[LayerCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    visible: frozenset[int]
    updates: Mapping[int, int]


def load_network(
    structure: Mapping[str, Any], info: EngineInfo, device: torch.device, *, in_place: bool = True
) -> tuple[LoadedNetwork, Sequence[ILayer]]:
    """Rebuilds layers for a device; their weights are bound by whoever holds them.

    Args:
        structure: The network part of a plan, its layers in executable order.
        info: The engine part of the same plan.
        device: Where the layers will run; ``meta`` for shapes alone.
        in_place: Whether inputs that are updated in place are written to; else `updates` are made as other outputs are.

    Returns:
        The program, and all layers, nested ones included, in the order that weight slots refer to.
    """
    layers = layers_from_json(structure).layers
    names = {tensor["id"]: tensor["name"] for tensor in structure["tensors"]}
    calls = []
    everything = tuple(leaf_layers(layers))
    freeze(everything)
    with strict(False):  # what only strict mode refuses was decided when the engine was built
        for layer in everything:
            _check_rules(layer)
    for layer in everything:
        layer._device = device
    for layer, entry in zip(layers, structure["layers"], strict=True):
        outputs = tuple(entry["outputs"])
        calls.append(
            LayerCall(
                layer=layer,
                inputs=tuple(entry["inputs"]),
                outputs=outputs,
                compute=layer._engine_compute(),
                output_names=tuple(names[tensor] for tensor in outputs),
                name=layer.name,
            )
        )
    _check_order(calls, info)
    _check_bindings(structure, info)
    updates = _updates(calls, info)
    if in_place:
        calls = [
            replace(call, compute=call.layer._compute_in_place)
            if call.layer._ALIASES and call.outputs[0] in updates
            else call
            for call in calls
        ]
    loaded = LoadedNetwork(
        calls=tuple(calls),
        inputs=tuple(tensor.id for tensor in info.io if tensor.is_input),
        outputs=tuple(tensor.id for tensor in info.io if not tensor.is_input),
        visible=frozenset(info.debug_tensors).union(t.id for t in info.io),
        updates=updates,
    )
    return loaded, everything


def _updates(calls: Sequence[LayerCall], info: EngineInfo) -> dict[int, int]:
    """Inputs that can be updated in place, by their outputs: the layer that does it is all that reads their values."""
    ids = {tensor.name: tensor.id for tensor in info.io}
    aliases = {tensor.id: ids[tensor.aliased_input] for tensor in info.io if tensor.aliased_input is not None}
    if not aliases:
        return {}
    readers = Counter(tensor for call in calls if call.layer._KIND is not LayerType.SHAPE for tensor in call.inputs)
    readers.update(tensor.id for tensor in info.io if not tensor.is_input)
    updated = {call.outputs[made]: call.inputs[given] for call in calls for made, given in call.layer._ALIASES.items()}
    return {made: given for made, given in aliases.items() if updated.get(made) == given and readers[given] == 1}


def _check_rules(layer: ILayer) -> None:
    """Holds a layer of a plan to the rules that it was held to when it was added to its network.

    Raises:
        PortableError: It breaks one: types, ranks, extents, attributes or numbers of weights do not fit.
    """
    sources = layer._facts_source()
    try:
        layer._check_operands(sources)
        layer._check(sources)
    except Refusal:
        raise
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError) as error:  # an operand is missing
        raise PortableError(f"layer {layer.name!r} has operands that it cannot have: {error!r}") from error


def _check_bindings(structure: Mapping[str, Any], info: EngineInfo) -> None:
    """Memory of bindings has the type of their tensors, and that of inputs has the extents.

    Outputs may turn out to have others, which is found before they are written.

    Raises:
        PortableError: The plan says otherwise.
    """
    tensors = {tensor["id"]: tensor for tensor in structure["tensors"]}
    for binding in info.io:
        tensor = tensors.get(binding.id)
        if tensor is None or tensor["dtype"] != binding.dtype.name:
            raise PortableError(f"binding {binding.name!r} is {binding.dtype.name}, which is not its tensor's type")
        if binding.is_input and tuple(tensor["shape"]) != binding.shape:
            raise PortableError(f"input {binding.name!r} has extents {binding.shape}, its tensor {tensor['shape']}")


def _check_order(calls: Sequence[LayerCall], info: EngineInfo) -> None:
    """Every tensor is made once, before it is read, and every output is made.

    Raises:
        PortableError: The plan says otherwise.
    """
    made = {tensor.id for tensor in info.io if tensor.is_input}
    for call in calls:
        unmade = {tensor for tensor in call.inputs if tensor is not None} - made
        again = made.intersection(call.outputs)
        if unmade or again or len(set(call.outputs)) != len(call.outputs):
            raise PortableError(f"layer {call.name!r} reads tensors before they are made, or makes some twice")
        made.update(call.outputs)
    missing = [tensor.name for tensor in info.io if tensor.id not in made]
    if missing:
        raise PortableError(f"no layer makes {', '.join(map(repr, missing))}")


def shape_only_inputs(loaded: LoadedNetwork, inputs: Sequence[IOTensor]) -> frozenset[str]:
    """Names of inputs of which no layer reads more than the extents."""
    read = {tensor for call in loaded.calls if call.layer.type is not LayerType.SHAPE for tensor in call.inputs}
    return frozenset(tensor.name for tensor in inputs if tensor.id not in read | set(loaded.outputs))
