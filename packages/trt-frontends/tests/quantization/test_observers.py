"""Observers choose ranges from what they see, in whatever pieces they see it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_frontends.quantization.calibration import Histogram, make_observer, round_to, scale_of
from trt_frontends.quantization.quantization_config import Observer, QuantizationConfig, Scheme

EVERY = [
    QuantizationConfig(dtype=scheme, observer=kind) for scheme in (Scheme.INT8, Scheme.FLOAT8) for kind in Observer
]


def seen(config: QuantizationConfig, *parts: torch.Tensor) -> float:
    observer = make_observer(config)
    for part in parts:
        observer.observe(part)
    return observer.largest()


@pytest.mark.parametrize("config", EVERY, ids=lambda config: f"{config.observer.value}-{config.scheme.value}")
def test_ranges_lie_within_what_was_seen(config: QuantizationConfig) -> None:
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    largest = seen(config, values[:1000], values[1000:])
    assert 0 < largest <= float(values.abs().max()) * (1 + 1e-6)
    assert seen(config, values[:1000], values[1000:]) == largest
    assert seen(config, torch.zeros(5)) == 0 and seen(config, torch.empty(0)) == 0
    assert scale_of(0.0, config.scheme) == 1.0


@pytest.mark.parametrize("config", EVERY, ids=lambda config: f"{config.observer.value}-{config.scheme.value}")
def test_ranges_reach_from_the_smallest_float_to_the_largest(config: QuantizationConfig) -> None:
    limits = torch.finfo(torch.float32)
    tiny, huge = torch.full((4,), limits.smallest_normal / 4), torch.full((4,), limits.max)
    for parts in ((tiny,), (huge,), (tiny, torch.ones(4), huge / 3, huge), (torch.zeros(4), huge)):
        assert 0 < scale_of(seen(config, *parts), config.scheme) < float("inf")


@given(st.lists(st.floats(0, 1e4, width=32), min_size=1, max_size=30), st.integers(0, 30))
@settings(max_examples=30)
def test_histograms_count_everything_whatever_comes_first(values: list[float], cut: int) -> None:
    histogram = Histogram()
    for part in (values[:cut], values[cut:]):
        histogram.add(torch.tensor(part))
    assert histogram.counts.sum() == len(values)
    assert histogram.largest == pytest.approx(max(values))
    assert histogram.limit >= histogram.largest


@pytest.mark.parametrize("kind", [Observer.PERCENTILE, Observer.MSE, Observer.ENTROPY])
def test_single_outliers_are_clipped(kind: Observer) -> None:
    values = torch.cat([torch.randn(200_000, generator=torch.Generator().manual_seed(0)), torch.tensor([300.0])])
    assert seen(QuantizationConfig(observer=kind), values) < 250
    assert seen(QuantizationConfig(observer=Observer.MAX), values) == 300


def test_the_least_squared_error_is_no_larger_than_that_of_the_whole_range() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(1)).pow(3).double()
    errors = {}
    for kind in (Observer.MSE, Observer.MAX):
        largest = seen(QuantizationConfig(observer=kind), values)
        errors[kind] = (round_to(values, largest / 127, Scheme.INT8) - values).square().mean()
    assert errors[Observer.MSE] < errors[Observer.MAX]


def test_percentiles_keep_their_share() -> None:
    largest = seen(QuantizationConfig(observer="percentile", percentile=90), torch.arange(1, 1001).float())
    assert largest == pytest.approx(900, abs=1)
