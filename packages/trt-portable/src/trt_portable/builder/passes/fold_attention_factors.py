"""Factors of queries and keys, which attention has as one factor of its scores."""

from __future__ import annotations

import math
from dataclasses import replace

from trt_portable.enums import AttentionNormalizationOp, ElementWiseOperation, LayerType
from trt_portable.layers.attention import IAttentionBoundaryLayer, IAttentionOutputLayer, ScaledAttentionLayer
from trt_portable.layers.pointwise import IElementWiseLayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPattern

_QUERY_AND_KEY = 2


class FoldAttentionFactors(PlanPattern):
    """Lets attention with softmax scale its scores in place of products of query or key with a constant number.

    Exact for powers of two, which most factors are; others are rounded once less. Products die if nothing else
    reads them, and stay where something does. Factors of 0 and below stay too: kernels multiply what a causal mask
    has made -inf.
    """

    name = "fold_attention_factors"
    kinds = frozenset({LayerType.ATTENTION_OUTPUT})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """Both ends of the attention, which read other tensors then."""
        if operation.is_a(ScaledAttentionLayer):
            return None
        if operation[IAttentionOutputLayer.norm_op] is not AttentionNormalizationOp.SOFTMAX:
            return None
        ends, old = ends_of_attention(operation, graph), operation.inputs
        fresh, factor = list(old), 1.0
        for slot in range(_QUERY_AND_KEY):
            tensor = old[slot]
            readers = graph.all_readers(tensor)
            is_alone = old.count(tensor) == 1 and len(readers) == len(ends) == 2 and set(readers) == set(ends)
            if is_alone and tensor not in graph.visible:
                fresh[slot], found = _unscaled(graph, tensor)
                factor *= found
        if fresh == list(old):
            return None
        scaled = replace(operation, layer=ScaledAttentionLayer).having({ScaledAttentionLayer.factor: factor})
        moved = [replace(scaled if end is operation else end, inputs=tuple(fresh)) for end in ends]
        return NodeFusion(moved, ends, ends[0])


def ends_of_attention(node: Node, graph: PlanGraph) -> list[Node]:
    """Both layers that an attention is, over the same inputs."""
    readers = graph.all_readers(node.inputs[0])
    return [each for each in readers if each.is_a(IAttentionBoundaryLayer) and each.inputs == node.inputs]


def _unscaled(graph: PlanGraph, tensor: int | None) -> tuple[int | None, float]:
    """What a tensor is a multiple of, and the factor; itself, and 1, where it is none."""
    node = graph.maker(tensor)
    if node is None or not node.is_a(IElementWiseLayer) or node[IElementWiseLayer.op] is not ElementWiseOperation.PROD:
        return tensor, 1.0
    for x, other in (node.inputs, node.inputs[::-1]):
        number = graph.constant(other)
        if number is None or number.numel() != 1 or graph.shape(x) != graph.shape(tensor):
            continue
        factor = float(number.reshape(()))
        if 0.0 < factor < math.inf:
            return x, factor
    return tensor, 1.0
