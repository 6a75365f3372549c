"""Putting a plan together: network structure, engine information and weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from trt_portable.memory import IHostMemory
from trt_portable.plan.container import write_plan
from trt_portable.plan.engine_info import EngineInfo, RefitMode, WeightSlot
from trt_portable.plan.weight_table import WeightTable
from trt_portable.shape_tensors import is_known_to_host


def is_host_constant(slot: WeightSlot) -> bool:
    """Whether weights are the numbers of a constant that the host knows: shapes may depend on them."""
    return slot.role == "CONSTANT" and is_known_to_host(slot.dtype, slot.count)


def strippable(slots: Iterable[WeightSlot]) -> frozenset[str]:
    """Ids of weights that a refit can bring back completely; numbers of shapes always stay."""
    leave: set[str] = set()
    stay: set[str] = set()
    for slot in slots:
        (leave if slot.refittable and not is_host_constant(slot) else stay).add(slot.weights)
    return frozenset(leave - stay)


def write_engine(
    structure: Mapping[str, Any],
    info: EngineInfo,
    slots: Sequence[WeightSlot],
    tensors: Mapping[str, torch.Tensor],
    features: Iterable[str],
    *,
    compiled: bytes = b"",
    strip: bool,
    keep_refit: bool = True,
) -> IHostMemory:
    """Serializes an engine.

    Args:
        structure: Layers and tensors, as the network half writes them.
        info: The rest; its weight slots are replaced by `slots`.
        slots: Every use of weights.
        tensors: Flat tensors by id; those that are missing count as stripped.
        features: What a reader must understand.
        compiled: Section of compiled artifacts.
        strip: Leave out the weights that a refit can bring back.
        keep_refit: Whether the engine read back can be refitted.
    """
    absent = {slot.weights for slot in slots if slot.weights not in tensors}
    stripped = frozenset(absent | (strippable(slots) if strip else frozenset()))
    written = WeightTable(tensors).only(tensors.keys() - stripped)
    if not keep_refit:
        slots = [replace(slot, refittable=False) for slot in slots]
        info = replace(info, refit=RefitMode.NONE)
    info = replace(info, weight_slots=tuple(slots), stripped=stripped)
    features = set(features) - {"stripped"} | ({"stripped"} if stripped else set())
    return write_plan({"network": structure, "engine": info.to_json()}, written, features, compiled)
