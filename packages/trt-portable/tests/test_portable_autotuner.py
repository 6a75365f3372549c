"""The choice among kernels: the fastest right one, measured once."""

from __future__ import annotations

import pytest
import torch

from trt_portable.builder.autotune import autotuner
from trt_portable.builder.autotune import clock as clocks
from trt_portable.builder.autotune.autotuner import Autotuner, building, fastest, tactic_hash
from trt_portable.builder.autotune.timing_cache import ITimingCache

CPU = torch.device("cpu")


class Clock:
    """Kernels that take as long as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.started: list[str] = []
        self.wrong: set[str] = set()
        self.failing: set[str] = set()
        monkeypatch.setattr(clocks, "_on_device", lambda run: self.milliseconds[run()])
        monkeypatch.setattr(autotuner, "_process", Autotuner(ITimingCache()))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_capturing)
        self.is_capturing = False

    def start(self, name: str) -> str:
        self.started.append(name)
        if name in self.failing:
            raise RuntimeError("not on this GPU")
        return name

    def choose(self, form: object = 1) -> str:
        starts = {name: lambda name=name: self.start(name) for name in self.milliseconds}
        return fastest(starts, CPU, form, is_right=lambda: self.started[-1] not in self.wrong)


def test_the_fastest_right_kernel_is_chosen_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, sure=3.0, wrong=1.0, failing=0.5, fast=2.0)
    clock.wrong, clock.failing = {"wrong"}, {"failing"}
    cache = ITimingCache()
    with building(Autotuner(cache, may_measure=True)):
        assert clock.choose() == "fast"
    (key,) = cache.queryKeys()
    assert cache.query(key).tacticHash == tactic_hash("fast") and cache.query(key).timingMSec == 2.0
    clock.started.clear()
    other = ITimingCache()
    with building(Autotuner(other, may_measure=True)):
        assert clock.choose() == "fast"  # this process knows
    assert other.queryKeys() == [key]  # and whoever asks later shall
    autotuner._process._cache.reset()
    with building(Autotuner(cache, may_measure=False)):
        assert clock.choose() == "fast"  # the cache does
    assert not clock.started


def test_nothing_is_measured_where_that_cannot_or_must_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, sure=3.0, fast=2.0)
    with building(Autotuner(ITimingCache(), may_measure=False)):
        assert clock.choose() == "sure"
    clock.is_capturing = True
    assert clock.choose() == "sure"
    assert not clock.started
    clock.is_capturing, clock.failing = False, {"sure", "fast"}
    cache = ITimingCache()
    with building(Autotuner(cache, may_measure=True)):
        assert clock.choose() == "sure" and not cache.queryKeys()


def test_other_forms_are_other_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, sure=1.0, fast=2.0)
    assert clock.choose((8, 2)) == "sure"
    clock.milliseconds["fast"] = 0.5
    assert clock.choose((8, 2)) == "sure" and clock.choose((8, 3)) == "fast"
