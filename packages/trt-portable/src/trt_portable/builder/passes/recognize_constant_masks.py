"""Attention masks that are known when an engine is built: causal ones become a setting, full ones go.

Fused kernels of attention skip what a causal mask hides, and read no mask.
"""

from __future__ import annotations

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.enums import AttentionIOForm, CausalMaskKind, LayerType
from trt_portable.layers.attention import MASK


class RecognizeConstantMasks(PlanPass):
    """Replaces a constant boolean mask by what it means, where it hides the future or nothing. Exact."""

    name = "recognize_constant_masks"

    def call(self, graph: PlanGraph) -> int:
        """Rewrites attentions over padded sequences."""
        producers = graph.producers()
        known: dict[int, CausalMaskKind | None] = {}
        changes = 0
        for entry in graph.layers:
            if entry["type"] != LayerType.ATTENTION_OUTPUT.name or not _takes_mask(entry):
                continue
            mask = entry["inputs"][MASK]
            if mask not in known:
                known[mask] = _meaning(graph.constant(producers.get(mask)))
            kind = known[mask]
            if kind is None or (kind is not CausalMaskKind.NONE and not _is_square(graph, entry)):
                continue
            old = list(entry["inputs"])
            for end in graph.layers:  # an attention is two layers over the same inputs
                if end["type"] in _ENDS and end["inputs"] == old:
                    end["inputs"] = _without_mask(old)
            entry["attributes"] = {**entry["attributes"], "causal_kind": kind.name}
            changes += 1
        return changes


_ENDS = (LayerType.ATTENTION_INPUT.name, LayerType.ATTENTION_OUTPUT.name)


def _takes_mask(entry: Entry) -> bool:
    attributes = entry["attributes"]
    padded = AttentionIOForm.PADDED_BHND.name
    return (
        len(entry["inputs"]) > MASK
        and entry["inputs"][MASK] is not None
        and attributes["causal_kind"] == CausalMaskKind.NONE.name
        and attributes["query_form"] == padded
        and attributes["key_value_form"] == padded
    )


def _without_mask(inputs: list[int | None]) -> list[int | None]:
    """The inputs without a mask, and without what is empty at their end."""
    left = [*inputs[:MASK], None, *inputs[MASK + 1 :]]
    while left[-1] is None:
        left.pop()
    return left


def _meaning(mask: torch.Tensor | None) -> CausalMaskKind | None:
    """What a mask says, None where only the mask can say it."""
    if mask is None or mask.dtype is not torch.bool or not mask.numel():
        return None
    if mask.all():
        return CausalMaskKind.NONE
    rows, columns = mask.shape[-2:]
    if rows != columns or rows == 1:
        return None
    causal = torch.ones(rows, columns, dtype=torch.bool).tril()
    return CausalMaskKind.UPPER_LEFT if bool((mask == causal).all()) else None


def _is_square(graph: PlanGraph, entry: Entry) -> bool:
    """Whether the mask has one row and column per position, so that nothing was broadcast."""
    query, key, _, mask = (graph.tensors[tensor]["shape"] for tensor in entry["inputs"][: MASK + 1])
    return bool(query[2] == key[2] == mask[2] == mask[3] != -1)
