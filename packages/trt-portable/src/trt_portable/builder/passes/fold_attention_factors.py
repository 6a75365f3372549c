"""Factors of queries and keys, which attention has as one factor of its scores."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.enums import AttentionNormalizationOp, ElementWiseOperation, LayerType
from trt_portable.layers.attention import ScaledAttentionLayer

_INPUT, _OUTPUT = LayerType.ATTENTION_INPUT.name, LayerType.ATTENTION_OUTPUT.name
_QUERY_AND_KEY = 2


class FoldAttentionFactors(PlanPass):
    """Lets attention scale its scores in place of products of query or key with a constant number.

    Exact for powers of two, which most factors are; others are rounded once less. Products die if nothing else
    reads them, and stay where something does. Factors of 0 and below stay too: kernels multiply what a causal mask
    has made -inf.
    """

    name = "fold_attention_factors"

    def call(self, graph: PlanGraph) -> int:
        """Rewrites attentions with softmax."""
        producers, uses = graph.producers(), graph.uses()
        changes = 0
        for index, entry in enumerate(graph.layers):
            if entry["type"] != _OUTPUT or entry["attributes"]["norm_op"] != AttentionNormalizationOp.SOFTMAX.name:
                continue
            old = list(entry["inputs"])
            ends = [end for end in graph.layers if end["type"] in (_INPUT, _OUTPUT) and end["inputs"] == old]
            fresh, factor = list(old), 1.0
            for slot in range(_QUERY_AND_KEY):
                if old.count(old[slot]) == 1 and uses[old[slot]] == len(ends) == 2 and old[slot] not in graph.wanted:
                    fresh[slot], found = _unscaled(graph, producers, old[slot])
                    factor *= found
            if fresh == old:
                continue
            for end in ends:
                end["inputs"] = list(fresh)
            graph.layers[index] = {
                **entry,
                "type": ScaledAttentionLayer._plan_type(),
                "attributes": {**entry["attributes"], "factor": factor},
            }
            changes += 1
        return changes


def _unscaled(graph: PlanGraph, producers: Mapping[int, Entry], tensor: int) -> tuple[int, float]:
    """What a tensor is a multiple of, and the factor; itself, and 1, where it is none."""
    entry = producers.get(tensor)
    if entry is None or entry["type"] != LayerType.ELEMENTWISE.name:
        return tensor, 1.0
    if entry["attributes"]["op"] != ElementWiseOperation.PROD.name:
        return tensor, 1.0
    for x, other in (entry["inputs"], entry["inputs"][::-1]):
        number = graph.constant(producers.get(other))
        if number is None or number.numel() != 1 or graph.shape(x) != graph.shape(tensor):
            continue
        factor = float(number.reshape(()))
        if 0.0 < factor < math.inf:
            return x, factor
    return tensor, 1.0
