"""Rounded numbers said in integers: for every size of a range what Python computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_core.sizes.expressions import Extent, evaluate_extent, is_extent
from trt_core.sizes.steps import MOST_CHANGES, Steps, find_steps

ROUNDINGS = ("trunc", "floor", "ceil", "round")


def _require_exact(extent: Extent, steps: Steps, sizes: range) -> None:
    assert is_extent(extent)
    for size in sizes:
        known = {"s0": size}
        assert steps.at(evaluate_extent(steps.size, known)) == evaluate_extent(extent, known), size


@given(
    st.floats(0.01, 8, allow_subnormal=False) | st.sampled_from([0.7, 1 / 3, 1 / 49, 2.2, 0.1, 1e-3]),
    st.sampled_from(ROUNDINGS),
    st.integers(0, 50),
    st.integers(0, 300),
)
def test_scaled_sizes(factor: float, rounding: str, first: int, more: int) -> None:
    sizes = range(first, first + more + 1)
    extent = [rounding, ["mul", factor, ["float", "s0"]]]
    steps = find_steps(extent, {"s0": sizes})
    if steps is not None:  # ties of `round` may go up and down too often
        _require_exact(extent, steps, sizes)
        assert len(steps.changes) <= MOST_CHANGES


@pytest.mark.parametrize(
    ("extent", "most", "changes"),
    [
        (["trunc", ["mul", 1.3, ["float", "s0"]]], 20_000, 0),
        (["trunc", ["mul", 0.7, ["float", "s0"]]], 20_000, 20),  # 0.7 * 90 is below 63
        (["trunc", ["truediv", ["float", "s0"], 1.1]], 5000, 12),
        (["ceil", ["log2", "s0"]], 1000, 10),
        (["trunc", ["pow", ["float", "s0"], 0.5]], 1000, 40),
        (["floor", ["mul", 0.7, ["float", ["floordiv", ["add", "s0", 1], 2]]]], 5000, 20),
        (["floor", ["mul", 0.7, ["add", ["float", "s0"], ["mul", 0.1, ["float", ["floordiv", "s0", 2]]]]]], 60, 60),
    ],
)
def test_few_changes_do(extent: Extent, most: int, changes: int) -> None:
    sizes = range(1, most + 1)
    steps = find_steps(extent, {"s0": sizes})
    assert steps is not None and len(steps.changes) <= changes
    _require_exact(extent, steps, sizes)


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.5, 0.45, 0.75, 1.5, 2.5])
def test_half_way_goes_to_even_numbers_over_long_ranges(scale: float) -> None:
    extent: Any = ["round", ["mul", scale, ["float", "s0"]]]
    sizes = range(3, 30_000)
    steps = find_steps(extent, {"s0": sizes})
    assert steps is not None and not steps.changes
    _require_exact(extent, steps, sizes)


def test_a_product_of_sizes_is_one_size() -> None:
    extent: Any = ["trunc", ["pow", ["float", ["mul", "h", "w"]], 0.5]]
    spans = {"h": range(1, 9), "w": range(2, 9)}
    steps = find_steps(extent, spans)
    assert steps is not None and steps.size == ["mul", "h", "w"]
    assert all(steps.at(h * w) == int(math.sqrt(h * w)) for h in spans["h"] for w in spans["w"])


@pytest.mark.parametrize(
    ("extent", "spans"),
    [
        (
            ["trunc", ["add", ["mul", 0.7, ["float", "h"]], ["mul", 0.3, ["float", "w"]]]],
            {"h": range(9), "w": range(9)},
        ),
        (["trunc", ["mul", 0.7, ["float", "h"]]], {}),
        (["round", ["mul", 0.7, ["float", "h"]]], {"h": range(1, 100_000)}),  # 0.7 * 45 is below a half
        (["trunc", ["mul", 0.7, ["float", "h"]]], {"h": range(1 << 40)}),
        (["trunc", ["mul", 1e300, ["float", "h"]]], {"h": range(1, 9)}),
        (["trunc", ["truediv", 1.0, ["float", "h"]]], {"h": range(9)}),
        (["trunc", ["mul", ["float", "h"], ["mod", "h", 7]]], {"h": range(1, 2000)}),
    ],
)
def test_what_is_no_line(extent: Extent, spans: dict[str, range]) -> None:
    assert find_steps(extent, spans) is None
