"""The live engines of a process: found by content, shared by equal plans, freed with the last module."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch

from trt_core import InputError
from trt_runtime import ENGINES, EngineStore, TRTModule


def test_contexts_are_reused(static_engine: TRTModule) -> None:
    for _ in range(5):
        static_engine(torch.ones(2, 3))
    loaded = ENGINES.engine_for(static_engine.plan, static_engine.header.text, torch.device("cpu"))
    assert len(loaded.contexts) == 1


def test_equal_plans_share_an_engine(static_engine: TRTModule) -> None:
    other = dataclasses.replace(
        static_engine.header, name="another", build_seconds=7.0, layer_count=3, settings_digest="x"
    )
    twin = TRTModule(other, static_engine.plan.clone())
    cpu = torch.device("cpu")
    text = static_engine.header.text
    assert ENGINES.engine_for(static_engine.plan, text, cpu) is ENGINES.engine_for(twin.plan, other.text, cpu)


def test_equal_plans_with_other_bindings_share_none(dynamic_engine: TRTModule) -> None:
    narrow = dataclasses.replace(dynamic_engine.header, ranges=(((1, 2, 2), (3, 3, 3)),))
    twin = TRTModule(narrow, dynamic_engine.plan.clone())
    assert dynamic_engine(torch.ones(5, 3)).shape == (5, 3)
    with pytest.raises(InputError, match="is 5, the engine was built for 1 to 2"):
        twin(torch.ones(5, 3))


def test_engines_die_with_their_modules(static_engine: TRTModule) -> None:
    store = EngineStore()
    plan = static_engine.plan.clone()
    text = static_engine.header.text
    store.run([torch.ones(2, 3)], plan, text)
    watch = weakref.ref(store.engine_for(plan, text, torch.device("cpu")))
    gc.collect()
    assert watch() is not None
    assert len(store) == 1
    gc.disable()  # memory of engines is too large to wait for the collector
    try:
        del plan
        assert watch() is None
        assert len(store) == 0
    finally:
        gc.enable()


def test_cleared_engines_load_again(static_engine: TRTModule) -> None:
    x = torch.randn(2, 3)
    static_engine(x)
    ENGINES.clear()
    gc.collect()
    assert torch.equal(static_engine(x), x.relu())
