"""What passes over quantized layers look for: where a tensor was dequantized, and what may join a product."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph
from trt_portable.dtypes import FLOATS, volume
from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, LayerType

_MOVEMENT: Final = frozenset(
    {LayerType.SHUFFLE.name, LayerType.SQUEEZE.name, LayerType.UNSQUEEZE.name, LayerType.IDENTITY.name}
)
_QUANTIZED_RESULTS: Final = frozenset({DataType.INT8, DataType.FP8})


@dataclass(frozen=True)
class Dequantized:
    """A tensor that a dequantization made, moved but not changed since then.

    Attributes:
        entry: The dequantization.
        movement: Layers between it and the tensor, in order, but for casts between float types.
    """

    entry: Entry
    movement: tuple[Entry, ...]

    @property
    def codes(self) -> int:
        """The tensor that was dequantized."""
        tensor: int = self.entry["inputs"][0]
        return tensor

    @property
    def scale(self) -> int:
        """The tensor of its scale."""
        tensor: int = self.entry["inputs"][1]
        return tensor

    @property
    def axis(self) -> int:
        """The axis of scales per channel."""
        axis: int = self.entry["attributes"]["axis"]
        return axis

    @property
    def has_zero_point(self) -> bool:
        """Whether there is a zero point, which can only be zero, but may be anything before a refit."""
        return len(self.entry["inputs"]) > 2


def dequantized(graph: PlanGraph, producers: Mapping[int, Entry], tensor: int) -> Dequantized | None:
    """What a tensor is moved from, if that is a dequantization."""
    movement: list[Entry] = []
    while True:
        entry = producers.get(tensor)
        if entry is None:
            return None
        if entry["type"] == LayerType.DEQUANTIZE.name:
            return Dequantized(entry, tuple(reversed(movement)))
        if entry["type"] in _MOVEMENT:
            movement.append(entry)
        elif not is_float_cast(graph, entry):
            return None
        tensor = entry["inputs"][0]


def is_constant(entry: Entry | None) -> bool:
    """Whether a layer is a constant, which a refit may replace."""
    return entry is not None and entry["type"] == LayerType.CONSTANT.name


def is_float_cast(graph: PlanGraph, entry: Entry) -> bool:
    """Whether a layer changes one float type to another."""
    is_cast = entry["type"] == LayerType.CAST.name
    return is_cast and {graph.dtype(entry["inputs"][0]), graph.dtype(entry["outputs"][0])} <= FLOATS


class Tail:
    """What follows a product and can join it: bias, rectification, quantization, each read by nothing else.

    Args:
        graph: The layers.
        producers: The layer of each tensor.
        product: A product or convolution.
        channels: Number of columns or output channels.
        axis: The axis that these are on, from the end; no axis takes a bias if it is 0.

    Attributes:
        name: Names of all layers.
        result: Float type of the product.
        output: The last tensor.
        dtype: Its type.
        bias: Tensor of the bias, a constant, or None.
        scale: Tensor of the scale of the quantization, or None.
        rectifies: Whether negative numbers become 0.
    """

    def __init__(
        self, graph: PlanGraph, producers: Mapping[int, Entry], product: Entry, channels: int, axis: int = -1
    ) -> None:
        self._graph, self._producers = graph, producers
        self._readers: dict[int, list[Entry]] = defaultdict(list)
        for entry in graph.layers:
            for tensor in entry["inputs"]:
                if tensor is not None:
                    self._readers[tensor].append(entry)
        self._entries = [product]
        self.bias: int | None = None
        self.scale: int | None = None
        self.rectifies = False
        self.result = graph.dtype(self.output)
        if axis:
            self._take_bias(channels, axis)
        following = self._next()
        if following is not None and following["type"] == LayerType.ACTIVATION.name:
            self.rectifies = following["attributes"]["type"] == ActivationType.RELU.name
            self._entries += [following] if self.rectifies else []
        self._take_quantization()

    @property
    def output(self) -> int:
        """The tensor that the last layer makes."""
        tensor: int = self._entries[-1]["outputs"][0]
        return tensor

    @property
    def dtype(self) -> DataType:
        """Type of the output."""
        return self._graph.dtype(self.output)

    @property
    def name(self) -> str:
        """Names of all layers that are replaced."""
        return " + ".join(entry["name"] for entry in self._entries)

    def replace(self, fresh: Sequence[Entry]) -> None:
        """Puts layers where the last one of those that they replace was: all that they read is there by then."""
        layers, gone = self._graph.layers, {id(entry) for entry in self._entries}
        at = next(index for index, entry in enumerate(layers) if entry is self._entries[-1])
        layers[at : at + 1] = fresh
        layers[:] = [entry for entry in layers if id(entry) not in gone]

    def _next(self, tensor: int | None = None) -> Entry | None:
        """The only reader of the output, or of another tensor, that nobody outside wants."""
        tensor = self.output if tensor is None else tensor
        readers = self._readers[tensor]
        return readers[0] if len(readers) == 1 and tensor not in self._graph.wanted else None

    def _take_bias(self, channels: int, axis: int) -> None:
        addition = self._next()
        if addition is None or addition["type"] != LayerType.ELEMENTWISE.name:
            return
        if addition["attributes"]["op"] != ElementWiseOperation.SUM.name:
            return
        other = addition["inputs"][1 - addition["inputs"].index(self.output)]
        shape = self._graph.shape(other)
        if not is_constant(self._producers.get(other)) or volume(shape) != channels:
            return
        if len(shape) >= -axis and shape[axis] == channels:
            self.bias = other
            self._entries.append(addition)

    def _take_quantization(self) -> None:
        taken: list[Entry] = []
        following = self._next()
        if following is not None and is_float_cast(self._graph, following):
            taken.append(following)
            following = self._next(following["outputs"][0])
        if following is None or following["type"] != LayerType.QUANTIZE.name or len(following["inputs"]) > 2:
            return
        scale = following["inputs"][1]
        if not is_constant(self._producers.get(scale)) or volume(self._graph.shape(scale)) != 1:
            return
        if self._graph.dtype(following["outputs"][0]) not in _QUANTIZED_RESULTS:
            return
        self.scale = scale
        self._entries += [*taken, following]


def new_entry(
    kind: str, name: str, inputs: Sequence[int | None], outputs: Sequence[int], attributes: Mapping[str, Any]
) -> Entry:
    """A layer without weights of its own."""
    return {
        "type": kind,
        "name": name,
        "metadata": "",
        "num_ranks": 1,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "attributes": dict(attributes),
        "weights": {},
        "weight_specs": {},
    }
