"""Neighbours that any device computes at once, as layers that only engines have; in loops and conditionals too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
