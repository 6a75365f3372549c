"""Suggestions for misspelt names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trt_core.wording import did_you_mean


def test_suggests_the_nearest_name() -> None:
    assert did_you_mean("relo", ["gelu", "relu", "add"]) == "did you mean 'relu'?"


def test_says_nothing_when_nothing_is_near() -> None:
    assert did_you_mean("zzz", ["relu", "add"]) == ""


@given(st.text(), st.lists(st.text(min_size=1)))
def test_suggests_only_what_is_known(name: str, known: list[str]) -> None:
    suggestion = did_you_mean(name, known)
    assert not suggestion or any(repr(candidate) in suggestion for candidate in known)
