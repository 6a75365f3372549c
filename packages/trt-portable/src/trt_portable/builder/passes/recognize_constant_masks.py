"""Attention masks that are known when an engine is built: causal ones become a setting, full ones go.

Fused kernels of attention skip what a causal mask hides, and read no mask. Where lengths are open, a mask is no
constant, and may be full all the same: exporters write ``arange(length) >= 0``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.enums import (
    AttentionIOForm,
    CausalMaskKind,
    DataType,
    ElementWiseOperation,
    FillOperation,
    LayerType,
    SampleMode,
    UnaryOperation,
)
from trt_portable.layers.attention import MASK


class RecognizeConstantMasks(PlanPass):
    """Replaces a boolean mask by what it means, where it hides the future or nothing. Exact."""

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
                if known[mask] is None and _Values(graph, producers).are_all(mask, True):
                    known[mask] = CausalMaskKind.NONE
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


_INTEGERS: Final = frozenset({DataType.INT32, DataType.INT64})
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


_MOVEMENTS: Final = frozenset({LayerType.IDENTITY.name, LayerType.SHUFFLE.name, "SQUEEZE", "UNSQUEEZE"})
_MOST_STEPS: Final = 32


class _Values:
    """What is known of the elements of tensors whose extents may be open.

    Args:
        graph: The layers.
        producers: The layer that makes each tensor.
    """

    def __init__(self, graph: PlanGraph, producers: Mapping[int, Entry]) -> None:
        self._graph = graph
        self._producers = producers

    def are_all(self, tensor: int, value: bool, steps: int = 0) -> bool:
        """Whether all elements of a boolean tensor have a value."""
        entry = self._producers.get(tensor)
        if entry is None or steps > _MOST_STEPS:
            return False
        constant = self._graph.constant(entry)
        if constant is not None:
            return constant.dtype is torch.bool and bool((constant == value).all())
        if _moves(entry):
            return self.are_all(entry["inputs"][0], value, steps + 1)
        operation = entry["attributes"].get("op")
        if entry["type"] == LayerType.UNARY.name and operation == UnaryOperation.NOT.name:
            return self.are_all(entry["inputs"][0], not value, steps + 1)
        if entry["type"] != LayerType.ELEMENTWISE.name:
            return False
        first, second = entry["inputs"]
        if operation == ElementWiseOperation.GREATER.name:
            first, second = second, first
        elif operation in (ElementWiseOperation.AND.name, ElementWiseOperation.OR.name):
            needs_both = value is (operation == ElementWiseOperation.AND.name)
            return (all if needs_both else any)(self.are_all(each, value, steps + 1) for each in (first, second))
        elif operation != ElementWiseOperation.LESS.name:
            return False
        low, high = (first, second) if value else (second, first)  # not less: the second is at most the first
        most, least = self._bounds(low, steps)[1], self._bounds(high, steps)[0]
        return most < least if value else most <= least

    def _bounds(self, tensor: int, steps: int) -> tuple[float, float]:
        """The least and the greatest element that there may be."""
        nothing = (-math.inf, math.inf)
        entry = self._producers.get(tensor)
        if entry is None or steps > _MOST_STEPS or self._graph.dtype(tensor) not in _INTEGERS:
            return nothing
        constant = self._graph.constant(entry)
        if constant is not None:
            return (float(constant.min()), float(constant.max())) if constant.numel() else nothing
        if _moves(entry):
            return self._bounds(entry["inputs"][0], steps + 1)
        operation = entry["attributes"].get("op")
        if entry["type"] == LayerType.ELEMENTWISE.name and operation == ElementWiseOperation.SUM.name:
            (low, high), (least, most) = (self._bounds(each, steps + 1) for each in entry["inputs"])
            return low + least, high + most
        is_range = entry["attributes"].get("operation") == FillOperation.LINSPACE.name
        if entry["type"] == LayerType.FILL.name and is_range and len(entry["inputs"]) == 3:
            start, step = (self._graph.constant(self._producers.get(each)) for each in entry["inputs"][1:])
            if start is not None and step is not None and bool((step >= 0).all()):
                return float(start.min()), math.inf
        return nothing


def _moves(entry: Entry) -> bool:
    """Whether a layer's elements are all among those of its first input."""
    if entry["type"] == LayerType.SLICE.name:
        return bool(entry["attributes"]["mode"] == SampleMode.STRICT_BOUNDS.name)
    return entry["type"] in _MOVEMENTS
