"""Figures of one output beside its reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trt_frontends.accuracy import measure_error
from trt_frontends.comparison.output_error import worst_of

NAN, INF = math.nan, math.inf


def test_equal_tensors_have_no_error() -> None:
    error = measure_error(torch.tensor([1.0, -2.0]), torch.tensor([1.0, -2.0]))
    assert (error.max_abs, error.max_rel, error.scaled, error.cosine, error.snr_db) == (0, 0, 0, pytest.approx(1), INF)
    assert error.histogram[0] == 2


def test_figures_of_a_known_difference() -> None:
    error = measure_error(torch.tensor([1.5, 4.0]), torch.tensor([1.0, 4.0]))
    assert (error.max_abs, error.mean_abs) == (0.5, 0.25)
    assert (error.max_rel, error.mean_rel) == (0.5, 0.25)
    assert error.scaled == 0.125
    assert error.snr_db == pytest.approx(10 * math.log10(17 / 0.25))
    assert error.cosine == pytest.approx((1.5 + 16) / (math.hypot(1.5, 4) * math.hypot(1, 4)))


@pytest.mark.parametrize(
    ("found", "reference", "scaled", "nans"),
    [
        ([NAN, 1.0], [NAN, 1.0], 0.0, (1, 1)),
        ([NAN, 1.0], [2.0, 1.0], INF, (1, 0)),
        ([INF, 1.0], [INF, 1.0], 0.0, (0, 0)),
        ([INF, 1.0], [-INF, 1.0], INF, (0, 0)),
        ([INF, 1.0], [NAN, 1.0], INF, (0, 1)),
        ([0.0, 1.0], [INF, 1.0], INF, (0, 0)),
    ],
)
def test_what_is_not_finite_must_be_in_the_same_places(
    found: list[float], reference: list[float], scaled: float, nans: tuple[int, int]
) -> None:
    error = measure_error(torch.tensor(found), torch.tensor(reference))
    assert (error.scaled, error.nans) == (scaled, nans)
    assert error.max_abs == 0.0


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=20)
)
def test_halves_say_together_what_the_whole_says(left: list[float], right: list[float]) -> None:
    found, reference = torch.tensor(left).double(), torch.tensor(right[: len(left)]).double()
    whole = measure_error(found, reference)
    middle = len(left) // 2
    parts = [measure_error(found[part], reference[part]) for part in (slice(0, middle), slice(middle, None))]
    together = worst_of(parts)
    assert together.max_abs == whole.max_abs
    assert together.mean_abs == pytest.approx(whole.mean_abs, rel=1e-9, abs=1e-12)
    assert together.histogram == whole.histogram
    assert sum(whole.histogram) == whole.elements == together.elements
    assert together.scaled >= whole.scaled


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.complex64])
def test_every_type_is_compared(dtype: torch.dtype) -> None:
    ones = torch.ones(3).to(dtype)
    assert measure_error(ones, ones).scaled == 0
    assert measure_error(torch.zeros(3).to(dtype), ones).max_abs == 1


def test_empty_tensors_are_equal() -> None:
    error = measure_error(torch.ones(0), torch.ones(0))
    assert (error.scaled, error.cosine, error.elements) == (0.0, 1.0, 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_right_or_wrong(dtype: torch.dtype) -> None:
    large = torch.full((4,), 2**60 if dtype is torch.int64 else 1).to(dtype)
    other = large.clone()
    other[0] = large[0] + 1 if dtype is not torch.bool else False
    assert measure_error(other, large).scaled >= 0.25
    assert measure_error(large, large.clone()).scaled == 0
