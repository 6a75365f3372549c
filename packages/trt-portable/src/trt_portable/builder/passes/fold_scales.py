"""Folding of per-channel scales into the convolution before them, as batch norms leave them.

A convolution followed by ``x * scale + shift`` is one convolution with other weights. Products of
weights are rounded once more than the two layers would round, as in TensorRT.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.enums import LayerType, ScaleMode
from trt_portable.plan.weight_table import WeightTable

_FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_ELEMENTS_AT_ONCE: Final = 1 << 16


class FoldScales(PlanPass):
    """Merges scale layers into convolutions whose results nothing else reads."""

    name = "fold_scales"

    def call(self, graph: PlanGraph) -> int:
        """Merges chains of scales one by one."""
        uses = graph.uses()
        convolutions: dict[int, int] = {}  # where convolutions that a scale may join are in `result`
        result: list[Entry | None] = []
        merges = 0
        for entry in graph.layers:
            at = convolutions.get(entry["inputs"][0]) if _is_scale(entry) else None
            if at is not None and _fixed(entry, graph.is_fixed):
                convolution = result[at]
                assert convolution is not None
                merged = _merged(convolution, entry, graph.weights)
                merges += 1
                result[at] = None
                result.append(merged)
                output = merged["outputs"][0]
            elif (
                entry["type"] == LayerType.CONVOLUTION.name
                and _is_plain(entry, graph.weights)
                and _fixed(entry, graph.is_fixed)
            ):
                result.append(entry)
                output = entry["outputs"][0]
            else:
                result.append(entry)
                continue
            if uses[output] == 1 and output not in graph.wanted:
                convolutions[output] = len(result) - 1
        graph.layers[:] = [entry for entry in result if entry is not None]
        return merges


def _is_scale(entry: Entry) -> bool:
    """Whether an entry is ``x * scale + shift`` with one coefficient per channel, or one for all."""
    if entry["type"] != LayerType.SCALE.name or "POWER" in entry["weights"]:
        return False
    attributes = entry["attributes"]
    return bool(attributes["channel_axis"] == 1 and attributes["mode"] != ScaleMode.ELEMENTWISE.name)


def _is_plain(entry: Entry, weights: WeightTable) -> bool:
    """Whether kernel and bias of a convolution are its own weights."""
    key = entry["weights"].get("KERNEL")
    return len(entry["inputs"]) == 1 and key in weights and weights.spec(key)[0] in _FLOATS


def _fixed(entry: Entry, is_fixed: Callable[[str, str], bool]) -> bool:
    return all(is_fixed(key, role) for role, key in entry["weights"].items())


def _merged(convolution: Entry, scale: Entry, weights: WeightTable) -> Entry:
    """A convolution that does what a convolution and the scale after it do; its kernel is computed in the plan."""
    kernel = convolution["weights"]["KERNEL"]
    kind, shape = weights.spec(kernel)
    maps = convolution["attributes"]["num_output_maps"]

    def coefficients(entry: Entry, role: str, default: float) -> torch.Tensor:
        key = entry["weights"].get(role)
        given = torch.tensor([default]) if key is None else weights[key]
        return given.double().expand(maps)

    factor = coefficients(scale, "SCALE", 1.0)
    bias = coefficients(convolution, "BIAS", 0.0) * factor + coefficients(scale, "SHIFT", 0.0)
    name = f"{convolution['name']} + {scale['name']}"
    keys = {"KERNEL": f"{name}:kernel:{len(weights)}", "BIAS": f"{name}:bias:{len(weights)}"}
    weights.defer(keys["KERNEL"], kind, math.prod(shape), lambda target: _scale(weights[kernel], factor, target))
    weights[keys["BIAS"]] = bias.to(kind)
    dtype, count = convolution["weight_specs"]["KERNEL"]
    return {
        **convolution,
        "name": name,
        "metadata": " ".join(text for text in (convolution["metadata"], scale["metadata"]) if text),
        "outputs": scale["outputs"],
        "weights": keys,
        "weight_specs": {"KERNEL": [dtype, count], "BIAS": [dtype, maps]},
    }


def _scale(kernel: torch.Tensor, factor: torch.Tensor, target: torch.Tensor) -> None:
    """Writes a kernel times a factor for each of its output maps, rounded once; a few maps at a time."""
    maps = factor.shape[0]
    source, result = kernel.reshape(maps, -1), target.view(maps, -1)
    step = max(1, _ELEMENTS_AT_ONCE // max(1, source.shape[1]))
    for start in range(0, maps, step):
        part = slice(start, start + step)
        result[part] = source[part].double() * factor[part].unsqueeze(1)
