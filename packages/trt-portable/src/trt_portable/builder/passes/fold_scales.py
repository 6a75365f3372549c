"""Folding of per-channel scales into the convolution before them, as batch norms and layer scales leave them.

A convolution followed by ``x * scale + shift`` is one convolution with other weights, be that a scale layer, or a
product or sum with a constant. Products of weights are rounded once more than the layers would round, as in TensorRT.
Factors stay that make weights too large or too small for their type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.enums import ElementWiseOperation, LayerType, ScaleMode
from trt_portable.plan.weight_table import WeightTable

_FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_ARITHMETIC: Final = (ElementWiseOperation.PROD.name, ElementWiseOperation.SUM.name)
_ELEMENTS_AT_ONCE: Final = 1 << 16


class FoldScales(PlanPass):
    """Merges scales into convolutions whose results nothing else reads."""

    name = "fold_scales"

    def call(self, graph: PlanGraph) -> int:
        """Merges chains of scales one by one."""
        uses, producers = graph.uses(), graph.producers()
        convolutions: dict[int, tuple[int, Entry]] = {}  # those that a scale may join, and where they are in `result`
        result: list[Entry | None] = []
        merges = 0
        for entry in graph.layers:
            merged = None
            scale = _scale_layer(graph, entry) or _arithmetic(graph, entry, producers)
            if scale is not None and scale.of in convolutions:
                at, convolution = convolutions[scale.of]
                merged = _merged(convolution, entry, scale, graph.weights)
                if merged is not None:
                    result[at] = None
                    merges += 1
            made = merged or entry
            result.append(made)
            if merged is not None or _is_plain(graph, entry):
                (output,) = made["outputs"]
                if uses[output] == 1 and output not in graph.wanted:
                    convolutions[output] = len(result) - 1, made
        graph.layers[:] = [entry for entry in result if entry is not None]
        return merges


@dataclass(frozen=True)
class _Scale:
    """``x * factor + shift``.

    Attributes:
        of: The tensor x.
        factor: A coefficient per channel, or one for all, float64.
        shift: As `factor`.
    """

    of: int
    factor: torch.Tensor
    shift: torch.Tensor


def _scale_layer(graph: PlanGraph, entry: Entry) -> _Scale | None:
    """What a scale layer computes, if it has one coefficient per channel, or one for all."""
    if entry["type"] != LayerType.SCALE.name or "POWER" in entry["weights"] or not _fixed(entry, graph.is_fixed):
        return None
    attributes = entry["attributes"]
    if attributes["channel_axis"] != 1 or attributes["mode"] == ScaleMode.ELEMENTWISE.name:
        return None
    factor, shift = (_coefficients(graph.weights, entry, *role) for role in (("SCALE", 1.0), ("SHIFT", 0.0)))
    return _Scale(entry["inputs"][0], factor, shift)


def _arithmetic(graph: PlanGraph, entry: Entry, producers: Mapping[int, Entry]) -> _Scale | None:
    """What a product or sum with a constant computes, if that has one number per channel, or one for all."""
    operation = entry["attributes"].get("op")
    if entry["type"] != LayerType.ELEMENTWISE.name or operation not in _ARITHMETIC:
        return None
    for x, other in (entry["inputs"], entry["inputs"][::-1]):
        value = graph.constant(producers.get(other))
        if value is not None and value.dtype in _FLOATS and value.numel() == math.prod(value.shape[1:2]):
            numbers, none = value.reshape(-1).double(), torch.zeros(1).double()
            is_product = operation == ElementWiseOperation.PROD.name
            return _Scale(x, numbers, none) if is_product else _Scale(x, none + 1, numbers)
    return None


def _is_plain(graph: PlanGraph, entry: Entry) -> bool:
    """Whether an entry is a convolution whose kernel and bias are its own weights, which never change."""
    key = entry["weights"].get("KERNEL")
    return (
        entry["type"] == LayerType.CONVOLUTION.name
        and len(entry["inputs"]) == 1
        and key in graph.weights
        and graph.weights.spec(key)[0] in _FLOATS
        and _fixed(entry, graph.is_fixed)
    )


def _fixed(entry: Entry, is_fixed: Callable[[str, str], bool]) -> bool:
    return all(is_fixed(key, role) for role, key in entry["weights"].items())


def _coefficients(weights: WeightTable, entry: Entry, role: str, default: float) -> torch.Tensor:
    key = entry["weights"].get(role)
    return torch.tensor([default]).double() if key is None else weights[key].double()


def _merged(convolution: Entry, entry: Entry, scale: _Scale, weights: WeightTable) -> Entry | None:
    """A convolution that does what a convolution and the scale after it do; its kernel is computed in the plan.

    Returns:
        None where the coefficients are not those of channels, or weights of that type cannot hold what they make.
    """
    kernel = convolution["weights"]["KERNEL"]
    kind, shape = weights.spec(kernel)
    maps = convolution["attributes"]["num_output_maps"]
    if not {scale.factor.numel(), scale.shift.numel()} <= {1, maps}:
        return None
    factor = scale.factor.expand(maps)
    bias = _coefficients(weights, convolution, "BIAS", 0.0).expand(maps) * factor + scale.shift.expand(maps)
    if not _can_hold(weights[kernel], factor, bias):
        return None
    name = f"{convolution['name']} + {entry['name']}"
    keys = {"KERNEL": f"{name}:kernel:{len(weights)}", "BIAS": f"{name}:bias:{len(weights)}"}
    weights.defer(keys["KERNEL"], kind, math.prod(shape), lambda target: _scale(weights[kernel], factor, target))
    weights[keys["BIAS"]] = bias.to(kind)
    dtype, count = convolution["weight_specs"]["KERNEL"]
    return {
        **convolution,
        "name": name,
        "metadata": " ".join(text for text in (convolution["metadata"], entry["metadata"]) if text),
        "outputs": entry["outputs"],
        "weights": keys,
        "weight_specs": {"KERNEL": [dtype, count], "BIAS": [dtype, maps]},
    }


def _can_hold(kernel: torch.Tensor, factor: torch.Tensor, bias: torch.Tensor) -> bool:
    """Whether the type of a kernel holds its products with a factor for each map, and a bias.

    The largest of a map's products must be normal numbers, for others are rounded to fewer bits. Infinite factors
    would make NaN of zeros.
    """
    limits = torch.finfo(kernel.dtype)
    sizes = kernel.reshape(len(factor), -1).abs().amax(1).double() * factor.abs()
    is_normal = (sizes == 0) | ((sizes >= limits.smallest_normal) & (sizes <= limits.max))
    return bool(is_normal.all() and (bias.abs() <= limits.max).all())


def _scale(kernel: torch.Tensor, factor: torch.Tensor, target: torch.Tensor) -> None:
    """Writes a kernel times a factor for each of its output maps, rounded once; a few maps at a time."""
    maps = factor.shape[0]
    source, result = kernel.reshape(maps, -1), target.view(maps, -1)
    step = max(1, _ELEMENTS_AT_ONCE // max(1, source.shape[1]))
    for start in range(0, maps, step):
        part = slice(start, start + step)
        result[part] = source[part].double() * factor[part].unsqueeze(1)
