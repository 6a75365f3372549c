"""What passes over quantized layers look for: where a tensor was dequantized, and what may join a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trt_portable.dtypes import FLOATS, volume
from trt_portable.enums import ActivationType, DataType, ElementWiseOperation
from trt_portable.layers.movement import IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer
from trt_portable.layers.quantization import IDequantizeLayer, IQuantizeLayer
from trt_portable.layers.sources import ICastLayer, IIdentityLayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph

_MOVEMENT: Final = (IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer, IIdentityLayer)
_QUANTIZED_RESULTS: Final = frozenset({DataType.INT8, DataType.FP8})


@dataclass(frozen=True)
class Dequantized:
    """A tensor that a dequantization made, moved but not changed since then.

    Attributes:
        node: The dequantization.
        movement: Layers between it and the tensor, in order, but for casts between float types.
    """

    node: Node
    movement: tuple[Node, ...]

    @property
    def codes(self) -> int:
        """The tensor that was dequantized."""
        return _there(self.node.inputs[0])

    @property
    def scale(self) -> int:
        """The tensor of its scale."""
        return _there(self.node.inputs[1])

    @property
    def axis(self) -> int:
        """The axis of scales per channel."""
        return self.node[IDequantizeLayer.axis]

    @property
    def has_zero_point(self) -> bool:
        """Whether there is a zero point, which can only be zero, but may be anything before a refit."""
        return len(self.node.inputs) > 2


def _there(tensor: int | None) -> int:
    assert tensor is not None
    return tensor


def dequantized(graph: PlanGraph, tensor: int | None) -> Dequantized | None:
    """What a tensor is moved from, if that is a dequantization."""
    movement: list[Node] = []
    while (node := graph.maker(tensor)) is not None:
        if node.is_a(IDequantizeLayer):
            return Dequantized(node, tuple(reversed(movement)))
        if node.is_a(*_MOVEMENT):
            movement.append(node)
        elif not is_float_cast(graph, node):
            return None
        tensor = node.inputs[0]
    return None


def is_float_cast(graph: PlanGraph, node: Node) -> bool:
    """Whether a layer changes one float type to another."""
    return node.is_a(ICastLayer) and {graph.dtype(node.inputs[0]), graph.dtype(node.outputs[0])} <= FLOATS


class Tail:
    """What follows a product and can join it: bias, rectification, quantization, each read by nothing else.

    Args:
        graph: The layers.
        product: A product or convolution.
        channels: Number of columns or output channels.
        axis: The axis that these are on, from the end; no axis takes a bias if it is 0.

    Attributes:
        result: Float type of the product.
        bias: Tensor of the bias, a constant, or None.
        scale: Tensor of the scale of the quantization, or None.
        rectifies: Whether negative numbers become 0.
    """

    def __init__(self, graph: PlanGraph, product: Node, channels: int, axis: int = -1) -> None:
        self._graph = graph
        self._nodes = [product]
        self.bias: int | None = None
        self.scale: int | None = None
        self.rectifies = False
        self.result = graph.dtype(self.output)
        if axis:
            self._take_bias(channels, axis)
        following = self._next(self.output)
        if following is not None and following.is_a(IActivationLayer):
            self.rectifies = following[IActivationLayer.type] is ActivationType.RELU
            self._nodes += [following] if self.rectifies else []
        self._take_quantization()

    @property
    def output(self) -> int:
        """The tensor that the last layer makes."""
        return self._nodes[-1].outputs[0]

    @property
    def dtype(self) -> DataType:
        """Type of the output."""
        return self._graph.dtype(self.output)

    @property
    def name(self) -> str:
        """Names of all layers that are replaced."""
        return " + ".join(node.name for node in self._nodes)

    def replaced_by(self, fresh: Sequence[Node]) -> NodeFusion:
        """Layers where the last one of those that they replace was: all that they read is there by then."""
        return NodeFusion(fresh, self._nodes, self._nodes[-1])

    def _next(self, tensor: int) -> Node | None:
        """The only reader of a tensor that nobody outside wants."""
        return self._graph.all_readers(tensor)[0] if self._graph.is_private(tensor) else None

    def _take_bias(self, channels: int, axis: int) -> None:
        addition = self._next(self.output)
        if addition is None or not addition.is_a(IElementWiseLayer):
            return
        if addition[IElementWiseLayer.op] is not ElementWiseOperation.SUM:
            return
        other = addition.inputs[1 - addition.inputs.index(self.output)]
        shape = self._graph.shape(other)
        if not self._graph.is_constant(other) or volume(shape) != channels:
            return
        if len(shape) >= -axis and shape[axis] == channels:
            self.bias = other
            self._nodes.append(addition)

    def _take_quantization(self) -> None:
        taken: list[Node] = []
        following = self._next(self.output)
        if following is not None and is_float_cast(self._graph, following):
            taken.append(following)
            following = self._next(following.outputs[0])
        if following is None or not following.is_a(IQuantizeLayer) or len(following.inputs) > 2:
            return
        scale = following.inputs[1]
        if not self._graph.is_constant(scale) or volume(self._graph.shape(scale)) != 1:
            return
        if self._graph.dtype(following.outputs[0]) not in _QUANTIZED_RESULTS:
            return
        self.scale = scale
        self._nodes += [*taken, following]
