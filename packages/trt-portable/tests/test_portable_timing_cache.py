"""The timing cache: keys, values, merging, and what builds record in it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trt_portable as trt

KEY = trt.TimingCacheKey.parse("0x" + "ab" * 16)


@given(st.binary(min_size=16, max_size=16))
def test_keys_are_texts_and_back(data: bytes) -> None:
    text = "0x" + data.hex()
    key = trt.TimingCacheKey.parse(text)
    assert str(key) == text
    assert key == trt.TimingCacheKey.parse(text) and hash(key) == hash(trt.TimingCacheKey.parse(text))


@pytest.mark.parametrize("text", ["", "0x12", "ab" * 17, "0x" + "zz" * 16])
def test_other_texts_are_no_keys(text: str) -> None:
    with pytest.raises(ValueError):
        trt.TimingCacheKey.parse(text)


@pytest.fixture
def filled(builder: trt.Builder) -> trt.ITimingCache:
    """What one build learned."""
    cache = builder.create_builder_config().create_timing_cache(b"")
    build(builder, cache)
    return cache


def build(builder: trt.Builder, cache: trt.ITimingCache, *flags: Any, level: int = 3) -> Any:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    network.mark_output(network.add_activation(x, trt.ActivationType.RELU).get_output(0))
    config = builder.create_builder_config()
    config.builder_optimization_level = level
    for flag in flags:
        config.set_flag(flag)
    assert config.set_timing_cache(cache, False)
    assert config.get_timing_cache() is cache
    return builder.build_serialized_network(network, config)


def test_a_build_records_its_time(filled: trt.ITimingCache) -> None:
    (key,) = filled.queryKeys()
    assert filled.query(key).timingMSec > 0.0
    assert filled.query(KEY) is None


def test_the_same_build_finds_its_time(builder: Any, filled: Any) -> None:
    assert build(builder, filled, trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS) is not None
    assert len(filled.queryKeys()) == 1


def test_a_miss_can_be_an_error(builder: Any, logger: Any) -> None:
    cache = builder.create_builder_config().create_timing_cache(b"")
    assert build(builder, cache, trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS) is None
    assert "no entry 0x" in logger.errors[-1]


def test_level_0_and_a_disabled_cache_record_nothing(builder: Any) -> None:
    cache = builder.create_builder_config().create_timing_cache(b"")
    assert build(builder, cache, level=0) is not None
    assert build(builder, cache, trt.BuilderFlag.DISABLE_TIMING_CACHE) is not None
    assert cache.queryKeys() == []


def test_serialization(builder: Any, filled: Any, logger: Any) -> None:
    config = builder.create_builder_config()
    blob = bytes(filled.serialize())
    again = config.create_timing_cache(blob)
    assert again.queryKeys() == filled.queryKeys()
    for damaged in (blob[:-1], blob + b" ", b"x" + blob, blob.replace(b"entries", b"Entries")):
        assert config.create_timing_cache(damaged) is None
        assert "timing cache" in logger.errors[-1]


def test_editing(filled: trt.ITimingCache) -> None:
    (key,) = filled.queryKeys()
    value = trt.TimingCacheValue
    assert not filled.update(KEY, value(1, 1.0)), "unknown keys are not added"
    assert not filled.update(key, value(1, -1.0))
    assert filled.update(key, value(7, 2.5))
    assert (filled.query(key).tacticHash, filled.query(key).timingMSec) == (7, 2.5)
    assert filled.update(key, value(7, float("nan")))
    assert filled.queryKeys() == []


def test_merging_keeps_local_entries(builder: Any, filled: Any) -> None:
    config = builder.create_builder_config()
    other = config.create_timing_cache(filled.serialize())
    (key,) = other.queryKeys()
    assert other.update(key, trt.TimingCacheValue(7, 2.5))
    assert filled.combine(other, False)
    assert filled.query(key).tacticHash != 7
    empty = config.create_timing_cache(b"")
    assert empty.combine(other, False)
    assert empty.query(key).tacticHash == 7
    assert empty.reset() and empty.queryKeys() == []


def test_times_from_elsewhere_need_consent(builder: Any, filled: Any) -> None:
    config = builder.create_builder_config()
    filled._made_in = {"torch": "1.0", "device": "abacus"}
    foreign = config.create_timing_cache(filled.serialize())
    assert not config.set_timing_cache(foreign, False)
    assert config.get_timing_cache() is None
    assert config.set_timing_cache(foreign, True)
    local = config.create_timing_cache(b"")
    assert not local.combine(foreign, False)
    assert local.combine(foreign, True)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"made_in": {}},
        {"made_in": [], "entries": {}},
        {"made_in": {}, "entries": []},
        {"made_in": {}, "entries": [["0x1", [1, 1.0]]]},
        {"made_in": {}, "entries": {"0x1": 1}},
        {"made_in": {}, "entries": {"0x1": [1]}},
        {"made_in": {}, "entries": {"0x1": ["a", "b"]}},
        {"made_in": {"torch": 1}, "entries": {}},
        {"made_in": {}, "entries": {}, "more": 1},
    ],
)
def test_sealed_nonsense_is_no_cache(builder: Any, logger: Any, document: Any) -> None:
    text = json.dumps(document).encode()
    content = b"TRTPTIME" + hashlib.sha256(text).digest() + text
    assert builder.create_builder_config().create_timing_cache(content) is None
    assert "timing cache" in logger.errors[-1]
