"""Which cases the suite runs of tests marked `sampled`: each value of each parameter, and few of how they combine.

And how many examples it tries properties on.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"


class Case:
    """A case of a test whose parameters are `a`, and `b` together with `c`."""

    def __init__(
        self, values: tuple[Any, Any, Any], keywords: tuple[str, ...] = ("sampled",), number: tuple[int, ...] = ()
    ) -> None:
        self.number = number
        self.nodeid = f"tests/test_it.py::test_it[{values}]"
        self.keywords = keywords
        self.callspec = SimpleNamespace(params=dict(zip("abc", values, strict=True)))

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=self.number) if name in self.keywords else None

    def iter_markers(self, name: str) -> list[Any]:
        assert name == "parametrize"
        return [SimpleNamespace(args=("a", [])), SimpleNamespace(args=("b, c", []))]


def kept_of(pytestconfig: pytest.Config, cases: list[Case], seed: int) -> list[Case]:
    """What is kept of cases, and that the others are told to be left out."""
    told: list[Case] = []
    config = SimpleNamespace(
        getoption=lambda _: seed, hook=SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    )
    kept = list(cases)
    pytestconfig.pluginmanager.get_plugin(str(CONFTEST))._sample(config, kept)
    assert {*kept, *told} == {*cases} and len(kept) + len(told) == len(cases)
    return kept


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5))
def test_every_value_is_kept_and_a_quarter_of_the_cases(
    pytestconfig: pytest.Config, rows: int, columns: int, seed: int
) -> None:
    pairs = [(column, -column % 3) for column in range(columns)]
    cases = [Case((row, *pair)) for row, pair in itertools.product(range(rows), pairs)]
    kept = kept_of(pytestconfig, cases, seed)
    found = [tuple(case.callspec.params.values()) for case in kept]
    assert {row for row, *_ in found} == set(range(rows))
    assert {tuple(pair) for _, *pair in found} == set(pairs)
    assert len(cases) / 4 <= len(kept) <= max(-(-len(cases) // 4), rows + columns - 1)
    assert [case.nodeid for case in kept_of(pytestconfig, cases, seed)] == [case.nodeid for case in kept]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 5))
def test_one_case_in_so_many_is_kept(pytestconfig: pytest.Config, count: int, number: int, seed: int) -> None:
    cases = [Case((row, 0, 0), number=(number,)) for row in range(count)]
    assert len(kept_of(pytestconfig, cases, seed)) == -(-count // number)
    for_gpus = [Case((row, 0, 0), ("sampled", "gpu"), (number,)) for row in range(count)]
    assert kept_of(pytestconfig, for_gpus, seed) == for_gpus


def test_other_tests_are_kept_whole(pytestconfig: pytest.Config) -> None:
    cases = [Case((row, column, 0), ()) for row in range(5) for column in range(5)]
    assert kept_of(pytestconfig, cases, 0) == cases


def _property(examples: int) -> Any:
    @settings(max_examples=examples)
    @given(st.none())
    def holds(_: None) -> None:
        pass

    return holds


@pytest.mark.parametrize(("profile", "tried"), [("repeatable", [3, 10, 10, 40]), ("seeded", [3, 10, 12, 80])])
def test_properties_are_tried_on_half_of_many_examples_where_they_are_the_same_ones(
    profile: str, tried: list[int], pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPOTHESIS_PROFILE", profile)
    properties = [_property(examples) for examples in (3, 10, 12, 80)]
    items = [SimpleNamespace(function=each) for each in [*properties, *properties, print]]  # of several cases
    pytestconfig.pluginmanager.get_plugin(str(CONFTEST))._try_fewer([*items, SimpleNamespace()])
    assert [each._hypothesis_internal_use_settings.max_examples for each in properties] == tried
