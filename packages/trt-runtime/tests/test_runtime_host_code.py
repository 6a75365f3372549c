"""Compiled code in plans runs where the caller, or the private cache, vouches for where they come from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_runtime import EngineStore, TRTModule
from trt_runtime import engine as engine_module
from trt_runtime.plan_notes import allow_host_code, is_host_code_allowed


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each engine that is loaded may run compiled code."""
    found: list[bool] = []
    plain = engine_module.new_runtime

    def runtime(trt: Any, host_code_allowed: bool, *rest: Any) -> Any:
        found.append(host_code_allowed)
        return plain(trt, host_code_allowed, *rest)

    monkeypatch.setattr(engine_module, "new_runtime", runtime)
    return found


def _load(module: TRTModule, plan: torch.Tensor) -> None:
    EngineStore().engine_for(plan, module.header.text, torch.device("cpu"))


def test_a_plan_runs_without_it(static_engine: TRTModule, asked: list[bool]) -> None:
    _load(static_engine, static_engine.plan.clone())
    assert asked == [False]


def test_a_plan_that_is_trusted_runs_it(static_engine: TRTModule, asked: list[bool]) -> None:
    plan = static_engine.plan.clone()
    allow_host_code(plan)
    assert is_host_code_allowed(plan) and not is_host_code_allowed(plan.clone())
    _load(static_engine, plan)
    assert asked == [True]


def test_what_was_written_since_is_not_trusted(static_engine: TRTModule) -> None:
    plan = static_engine.plan.clone()
    allow_host_code(plan)
    plan[-1:] += 1
    assert not is_host_code_allowed(plan)


def test_no_claim_of_a_header_allows_it(static_engine: TRTModule, asked: list[bool]) -> None:
    import dataclasses

    header = dataclasses.replace(static_engine.header, version_compatible=True)
    EngineStore().engine_for(static_engine.plan.clone(), header.text, torch.device("cpu"))
    assert asked == [False]


def test_word_dies_with_the_plan(static_engine: TRTModule) -> None:
    from trt_runtime import plan_notes

    before = len(plan_notes._allowed)
    plan = static_engine.plan.clone()
    allow_host_code(plan)
    assert len(plan_notes._allowed) == before + 1
    del plan
    assert len(plan_notes._allowed) == before
