"""The identity of a network in the timing cache: everything that its time can depend on, and no names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import torch

from trt_portable.builder.timing_cache import TimingCacheKey
from trt_portable.plan.engine_info import EngineInfo
from trt_portable.plan.engine_plan import is_host_constant

_VERBATIM: Final = ("attributes", "plugin")
"""What layers say of themselves. A name in it is no name of theirs: a plugin's says what is computed."""
_NAMES: Final = frozenset({"name", "metadata", "weight_names", "refittable", "dimension_names", "debug"})


def timing_key(
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: Mapping[str, torch.Tensor],
    profile: int,
    *environment: str,
) -> TimingCacheKey:
    """The key of a network at a profile.

    Layers with their attributes, the layers inside loops and conditionals, boundaries, types and counts of
    weights, which weights are shared, shapes and types of tensors, and numbers that shapes may depend on all
    take part. Names do not, nor do the values of other weights.

    Args:
        structure: The network part of a plan.
        info: The engine part.
        tensors: Weights by id.
        profile: Index of the profile whose shapes are timed.
        environment: What else decides: device, tactics, level.
    """
    numbers = [
        tensors[slot.weights].reshape(-1).tolist()
        for slot in info.weight_slots
        if is_host_constant(slot) and slot.weights in tensors
    ]
    places = {tensor.name: at for at, tensor in enumerate(info.io)}
    tensors_of_network = [
        {**_without_names(tensor), "aliased_input": places.get(tensor["aliased_input"])}
        for tensor in info.to_json()["io"]
    ]
    ranges = info.profiles[profile]
    shapes = [
        ranges.shapes[tensor.name].to_json() if tensor.name in ranges.shapes else None
        for tensor in info.io
        if tensor.is_input
    ]
    values = [
        ranges.values[tensor.name].to_json() if tensor.name in ranges.values else None
        for tensor in info.io
        if tensor.is_input
    ]
    order: dict[str, int] = {}
    described = [_without_names(structure, order), tensors_of_network, shapes, values, numbers]
    return TimingCacheKey.of(json.dumps(described, sort_keys=True), *environment)


def _without_names(part: Any, weights: dict[str, int] | None = None) -> Any:
    """A structure without names, its weights numbered in the order in which they are met."""
    if isinstance(part, Mapping):
        found = {
            key: value if key in _VERBATIM else _without_names(value, weights)
            for key, value in part.items()
            if key not in _NAMES
        }
        if weights is not None and isinstance(part.get("weights"), Mapping):
            numbered = {role: weights.setdefault(key, len(weights)) for role, key in part["weights"].items()}
            found["weights"] = numbered
        return found
    if isinstance(part, (list, tuple)):
        return [_without_names(value, weights) for value in part]
    return part
