"""Keys of the timing cache: different networks and circumstances have different ones, names do not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trt_portable as trt

# What networks are made of for the property below: name of a variation, and its values.
VARIATIONS: dict[str, st.SearchStrategy[Any]] = {
    "width": st.integers(2, 4),
    "operation": st.sampled_from(["RELU", "TANH"]),
    "in_loop": st.sampled_from(["SUM", "PROD", "MAX"]),
    "trips": st.integers(1, 3),
    "slope": st.sampled_from([0.0, 0.1, 0.25]),
    "is_last": st.booleans(),
    "weights": st.sampled_from(["one", "shared", "apart"]),
    "half": st.booleans(),
    "batch": st.integers(1, 3),
}


def _network_key(
    width: int,
    operation: str,
    in_loop: str,
    trips: int,
    slope: float,
    is_last: bool,
    weights: str,
    half: bool,
    batch: int,
) -> str:
    from trt_portable.builder.builder import Builder

    logger = trt.Logger(trt.Logger.ERROR)
    builder = Builder(logger)
    network = builder.create_network()
    dtype, numpy_type = (trt.float16, np.float16) if half else (trt.float32, np.float32)
    x = network.add_input("x", dtype, (-1, width))
    leaky = network.add_activation(x, trt.ActivationType.LEAKY_RELU)
    leaky.alpha = slope
    value = network.add_activation(leaky.get_output(0), trt.ActivationType[operation]).get_output(0)
    first, second = np.ones((1, width), numpy_type), np.ones((1, width), numpy_type)
    for data in {"one": [first], "shared": [first, first], "apart": [first, second]}[weights]:
        constant = network.add_constant((1, width), data).get_output(0)
        value = network.add_elementwise(value, constant, trt.ElementWiseOperation.SUM).get_output(0)
    loop = network.add_loop()
    count = network.add_constant((), np.array(trips, np.int32)).get_output(0)
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    carried = loop.add_recurrence(value)
    body = network.add_elementwise(carried.get_output(0), value, trt.ElementWiseOperation[in_loop]).get_output(0)
    carried.set_input(1, body)
    kind = trt.LoopOutput.LAST_VALUE if is_last else trt.LoopOutput.CONCATENATE
    result = loop.add_loop_output(carried.get_output(0), kind, 0)
    if not is_last:
        result.set_input(1, count)
    network.mark_output(result.get_output(0))
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, width), (batch, width), (4, width))
    config.add_optimization_profile(profile)
    cache = config.create_timing_cache(b"")
    config.set_timing_cache(cache, False)
    assert builder.build_serialized_network(network, config) is not None
    (key,) = cache.queryKeys()
    return str(key)


@settings(max_examples=9, deadline=None)
@given(st.fixed_dictionaries(VARIATIONS), st.sampled_from(sorted(VARIATIONS)), st.data())
def test_different_networks_have_different_keys(parts: dict[str, Any], changed: str, data: st.DataObject) -> None:
    with trt.device("cpu"):
        other = data.draw(VARIATIONS[changed].filter(lambda value: value != parts[changed]))
        assert _network_key(**parts) == _network_key(**parts)
        assert _network_key(**parts) != _network_key(**{**parts, changed: other})


def _keys(builder: trt.Builder, add: Callable[[Any, Any], Any], *flags: Any) -> list[str]:
    """What a build remembers of one layer."""
    network = builder.create_network()
    network.mark_output(add(network, network.add_input("x", trt.float32, (2, 2))).get_output(0))
    config = builder.create_builder_config()
    for flag in flags:
        config.set_flag(flag)
    if not flags:
        config.clear_flag(trt.BuilderFlag.TF32)
    cache = config.create_timing_cache(b"")
    config.set_timing_cache(cache, False)
    assert builder.build_serialized_network(network, config) is not None
    return list(map(str, cache.queryKeys()))


def test_other_precision_and_another_number_of_threads_are_other_keys(
    builder: trt.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(network: Any, x: Any) -> Any:
        return network.add_activation(x, trt.ActivationType.RELU)

    plain, tf32 = _keys(builder, add), _keys(builder, add, trt.BuilderFlag.TF32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 96)
    threads = _keys(builder, add)
    assert len({*plain, *tf32, *threads}) == 3


def test_names_do_not_matter(builder: trt.Builder) -> None:
    """Neither does that of an input whose memory an output has."""
    cache = builder.create_builder_config().create_timing_cache(b"")
    for name in ("a", "b"):
        network = builder.create_network()
        network.name = name
        layer = network.add_activation(network.add_input(name, trt.float32, (2,)), trt.ActivationType.RELU)
        layer.name = layer.metadata = name
        layer.get_output(0).name = f"{name} out"
        network.mark_output(layer.get_output(0))
        kept, update = (network.add_input(f"{name} {extent}", trt.float32, (1, 1, extent, 2)) for extent in (4, 1))
        place = network.add_input(f"{name} place", trt.int32, (1,))
        network.mark_output(network.add_kv_cache_update(kept, update, place, trt.KVCacheMode.LINEAR).get_output(0))
        config = builder.create_builder_config()
        config.set_timing_cache(cache, False)
        assert builder.build_serialized_network(network, config) is not None
    assert len(cache.queryKeys()) == 1
