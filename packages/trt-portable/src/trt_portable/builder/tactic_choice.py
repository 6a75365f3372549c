"""Choosing the tactic of an engine, by time where there is a choice."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from trt_portable.builder.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.device import current_device
from trt_portable.enums import BuilderFlag, ErrorCodeTRT
from trt_portable.errors import PortableError, Refusal
from trt_portable.plan.engine_info import EngineInfo, Shape
from trt_portable.plan.weight_store import WeightStore
from trt_portable.runtime.image import load_image
from trt_portable.runtime.tactic import TACTICS, Tactic, candidates
from trt_portable.values import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig


def choose_tactic(
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: Mapping[str, torch.Tensor],
    config: IBuilderConfig,
) -> EngineInfo:
    """The engine information with the fastest tactic.

    Tactics are timed at the optimal shapes of the first profile when there are several to choose from,
    or when the application attached a timing cache that is to learn the time. Level 0 times nothing.

    Raises:
        Refusal: The timing cache lacks an entry although ERROR_ON_TIMING_CACHE_MISS is set.
    """
    found = candidates(config.builder_optimization_level)
    if config.max_num_tactics > 0:
        found = found[: config.max_num_tactics]
    cache = config.get_timing_cache()
    if config.builder_optimization_level == 0 or (len(found) == 1 and cache is None):
        return replace(info, tactic=found[0].name)
    if cache is None or config.get_flag(BuilderFlag.DISABLE_TIMING_CACHE):
        cache = ITimingCache()
    key = _key(structure, info)
    remembered = cache.query(key)
    if remembered is not None:
        by_hash = {tactic.hash: tactic for tactic in found}
        if remembered.tacticHash in by_hash:
            return replace(info, tactic=by_hash[remembered.tacticHash].name)
    if config.get_flag(BuilderFlag.ERROR_ON_TIMING_CACHE_MISS):
        raise Refusal(f"the timing cache has no entry {key}", ErrorCodeTRT.INVALID_STATE)
    times = {
        tactic.name: _milliseconds(tactic, structure, info, tensors, config.avg_timing_iterations) for tactic in found
    }
    fastest = min(found, key=lambda tactic: times[tactic.name])
    if times[fastest.name] != float("inf"):
        cache._record(key, TimingCacheValue(fastest.hash, times[fastest.name]))
    return replace(info, tactic=fastest.name)


def _key(structure: Mapping[str, Any], info: EngineInfo) -> TimingCacheKey:
    layers = [[entry["type"], entry["inputs"], entry["outputs"], entry["attributes"]] for entry in structure["layers"]]
    profile = info.profiles[0].to_json()
    described = [layers, [tensor.to_json() for tensor in info.io], profile]
    names = [f"level {info.optimization_level}", str(current_device()), *TACTICS]
    return TimingCacheKey.of(json.dumps(described), *names)


def _milliseconds(
    tactic: Tactic,
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: Mapping[str, torch.Tensor],
    iterations: int,
) -> float:
    """Mean time of a run on zeros; infinite when the network cannot run on them."""
    device = current_device()
    image, layers = load_image(structure, info, device)
    on_device = {key: tensor.to(device) for key, tensor in tensors.items()}
    slots = info.weight_slots
    WeightStore(slots, layers, [on_device[slot.weights].reshape(-1) for slot in slots])
    program = tactic.load(image)
    program.load_constants()
    values = _example_inputs(info, device)
    try:
        with torch.inference_mode():
            program.run(values)  # warms up allocator and kernels
            started = _now(device)
            for _ in range(iterations):
                program.run(values)
            return (_now(device) - started) * 1e3 / iterations
    except PortableError:
        return float("inf")


def _example_inputs(info: EngineInfo, device: torch.device) -> list[Value]:
    profile = info.profiles[0]
    values: list[Value] = []
    for tensor in info.io:
        if not tensor.is_input:
            continue
        allowed = profile.shapes.get(tensor.name)
        shape: Shape = tensor.shape if allowed is None else allowed.opt
        if tensor.is_host:
            numbers = profile.values[tensor.name].opt
            values.append(HostValues.of(numbers, shape, tensor.torch_dtype, device))
        else:
            values.append(torch.zeros(shape, dtype=tensor.torch_dtype, device=device))
    return values


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
