"""Neighbours that any device computes at once, as layers that only engines have; in loops and conditionals too."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from trt_portable.attributes import Attribute
from trt_portable.dtypes import CARRIERS
from trt_portable.enums import ActivationType, ElementWiseOperation, LayerType, MatrixOperation, UnaryOperation
from trt_portable.layers.fused import ClampLayer, GateLayer, LinearLayer
from trt_portable.layers.pointwise import (
    IActivationLayer,
    IElementWiseLayer,
    IUnaryLayer,
    is_usual_hard_sigmoid,
    representable,
)
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.network.layer import ILayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPass, PlanPattern


class FuseNeighbours(PlanPass):
    """Makes linear maps, gates and clamps of the layers that write them out.

    Weights may be refitted: only their extents matter. Comes last, since no other pass knows these layers. Gates round
    once less.
    """

    name = "fuse_neighbours"

    def call(self, graph: PlanGraph) -> int:
        """Rewrites the layers, and then those inside of each."""
        changes = sum(pattern.call(graph) for pattern in (_LinearProduct(), _LinearBias(), _ClampWithNan(), _Gate()))
        nodes = graph.nodes
        for at, node in enumerate(nodes):
            if "body" in node.nested:
                body = graph.body_of(node)
                inside = self.call(body)
                if inside:
                    nodes[at] = replace(node, nested={**node.nested, "body": tuple(body.nodes)})
                    changes += inside
        graph.nodes = nodes
        return changes


def _fused(
    nodes: Sequence[Node], layer: type[ILayer], inputs: tuple[int | None, ...], values: Mapping[Attribute[Any], Any]
) -> NodeFusion:
    """One layer where the last of several stood."""
    last = nodes[-1]
    metadata = " ".join(node.metadata for node in nodes if node.metadata)
    name = " + ".join(node.name for node in nodes)
    fused = replace(last, layer=layer, name=name, metadata=metadata, inputs=inputs, values=values)
    return NodeFusion([fused], nodes, last)


def _has_only_ones(extents: Collection[int]) -> bool:
    return all(extent == 1 for extent in extents)


class _LinearProduct(PlanPattern):
    """A product with a constant matrix on the right is a linear map."""

    name = "linear_product"
    kinds = frozenset({LayerType.MATRIX_MULTIPLY})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """The linear map."""
        if not operation.is_a(IMatrixMultiplyLayer) or not graph.is_constant(operation.inputs[1]):
            return None
        how, shape = operation[IMatrixMultiplyLayer.op1], graph.shape(operation.inputs[1])
        if operation[IMatrixMultiplyLayer.op0] is not MatrixOperation.NONE or how is MatrixOperation.VECTOR:
            return None
        if len(shape) < 2 or not _has_only_ones(shape[:-2]):
            return None
        values = {LinearLayer.is_transposed: how is MatrixOperation.TRANSPOSE}
        return _fused([operation], LinearLayer, operation.inputs, values)


class _LinearBias(PlanPattern):
    """A linear map takes the constant along that is added to it, if that is one number per column."""

    name = "linear_bias"
    kinds = frozenset({LayerType.ELEMENTWISE})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """The linear map with its bias."""
        if operation[IElementWiseLayer.op] is not ElementWiseOperation.SUM:
            return None
        for output, bias in (operation.inputs, operation.inputs[::-1]):
            linear = graph.private_maker(output)
            if linear is None or not linear.is_a(LinearLayer) or len(linear.inputs) > 2 or not graph.is_constant(bias):
                continue
            columns = graph.shape(linear.inputs[1])[-2 if linear[LinearLayer.is_transposed] else -1]
            added = graph.shape(bias)
            if added[-1:] == (columns,) and _has_only_ones(added[:-1]):
                return _fused([linear, operation], LinearLayer, (*linear.inputs, bias), linear.values)
        return None


class _ClampWithNan(PlanPattern):
    """``x if isnan(x) else clip(x)``, as a clamp that keeps NaN is written in layers, is one kernel."""

    name = "clamp_with_nan"
    kinds = frozenset({LayerType.SELECT})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """The clamp; no limits where all results of the clip are the lower one."""
        condition, x, clipped = operation.inputs
        test, clip = graph.private_maker(condition), graph.private_maker(clipped)
        if test is None or clip is None or not test.inputs == clip.inputs == (x,):
            return None
        if not test.is_a(IUnaryLayer) or test[IUnaryLayer.op] is not UnaryOperation.ISNAN:
            return None
        if not clip.is_a(IActivationLayer) or clip[IActivationLayer.type] is not ActivationType.CLIP:
            return None
        low, high = clip[IActivationLayer.alpha], clip[IActivationLayer.beta]
        if low > high:
            return None
        dtype = CARRIERS[graph.dtype(clip.outputs[0])]
        values = {ClampLayer.low: representable(low, dtype), ClampLayer.high: representable(high, dtype)}
        return _fused([test, clip, operation], ClampLayer, (x,), values)


class _Gate(PlanPattern):
    """``x * sigmoid(x)`` and ``x * hard_sigmoid(x)`` are one kernel each."""

    name = "gate"
    kinds = frozenset({LayerType.ELEMENTWISE})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """The gated tensor."""
        if operation[IElementWiseLayer.op] is not ElementWiseOperation.PROD:
            return None
        for x, gate in (operation.inputs, operation.inputs[::-1]):
            node = graph.private_maker(gate)
            if node is None or not node.is_a(IActivationLayer) or node.inputs != (x,) or not _is_gate(node):
                continue
            return _fused([node, operation], GateLayer, (x,), {GateLayer.activation: node[IActivationLayer.type]})
        return None


def _is_gate(activation: Node) -> bool:
    kind = activation[IActivationLayer.type]
    if kind is ActivationType.HARD_SIGMOID:
        return is_usual_hard_sigmoid(activation[IActivationLayer.alpha], activation[IActivationLayer.beta])
    return kind is ActivationType.SIGMOID


_TOLERANCE: Final = 1e-6  # of coefficients as they are written down; their type rounds them once more


class FuseGelu(PlanPattern):
    """Turns ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` into one layer, which rounds once.

    It stands in place of the last product of the chain; the rest dies where nothing else reads it.
    """

    name = "fuse_gelu"
    kinds = frozenset({LayerType.ELEMENTWISE})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """The activation."""
        x = _Chain(graph).gelu(operation)
        if x is None:
            return None
        values = {IActivationLayer.type: ActivationType.GELU_TANH}
        gelu = replace(operation, layer=IActivationLayer, inputs=(x,), values=values)
        return NodeFusion([gelu], [operation], operation)


class _Chain:
    """Reads chains of elementwise layers upwards."""

    def __init__(self, graph: PlanGraph) -> None:
        self._graph = graph

    def gelu(self, node: Node) -> int | None:
        """The tensor of which a product is the GELU, if it is one."""
        for half, rest in _operands(node, ElementWiseOperation.PROD):
            for x in self._scaled(half, 0.5):
                for tanh in self._shifted(rest, 1.0):
                    if self._is_gate(tanh, x):
                        return x
        return None

    def _is_gate(self, tanh: int, x: int) -> bool:
        node = self._graph.maker(tanh)
        if node is None or not node.is_a(IActivationLayer) or node[IActivationLayer.type] is not ActivationType.TANH:
            return False
        for inner in self._scaled(node.inputs[0], math.sqrt(2 / math.pi)):
            for first, second in self._made_by(inner, ElementWiseOperation.SUM):
                if first == x and any(self._is_cube(cube, x) for cube in self._scaled(second, 0.044715)):
                    return True
        return False

    def _is_cube(self, tensor: int, x: int) -> bool:
        for first, second in self._made_by(tensor, ElementWiseOperation.PROD):
            if first == x and (x, x) in list(self._made_by(second, ElementWiseOperation.PROD)):
                return True
        powers = list(self._made_by(tensor, ElementWiseOperation.POW))
        return bool(powers) and powers[0][0] == x and self._is_number(powers[0][1], 3.0)

    def _made_by(self, tensor: int | None, operation: ElementWiseOperation) -> Iterator[tuple[int, int]]:
        return _operands(self._graph.maker(tensor), operation)

    def _scaled(self, tensor: int | None, factor: float) -> Iterator[int]:
        """What a tensor is a multiple of."""
        for first, second in self._made_by(tensor, ElementWiseOperation.PROD):
            if self._is_number(second, factor):
                yield first

    def _shifted(self, tensor: int, shift: float) -> Iterator[int]:
        for first, second in self._made_by(tensor, ElementWiseOperation.SUM):
            if self._is_number(second, shift):
                yield first

    def _is_number(self, tensor: int, value: float) -> bool:
        constant = self._graph.constant(tensor)
        if constant is None or constant.numel() != 1 or not constant.dtype.is_floating_point:
            return False
        tolerance = _TOLERANCE + torch.finfo(constant.dtype).eps / 2
        return math.isclose(float(constant.reshape(())), value, rel_tol=tolerance)


def _operands(node: Node | None, operation: ElementWiseOperation) -> Iterator[tuple[int, int]]:
    """The operands of an elementwise operation, both ways round where the order does not matter."""
    if node is None or not node.is_a(IElementWiseLayer) or node[IElementWiseLayer.op] is not operation:
        return
    first, second = node.inputs
    assert first is not None and second is not None
    yield first, second
    if operation is not ElementWiseOperation.POW:
        yield second, first
