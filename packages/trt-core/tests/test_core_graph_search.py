"""Walking over graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trt_core.graph_search import last_uses, reachable

EDGES = {"a": "bc", "b": "d", "c": "da", "d": "", "e": "a"}


def test_what_follows_is_found_once_with_the_starts():
    asked = []

    def following(node):
        asked.append(node)
        return EDGES[node]

    assert set(reachable("a", following)) == set("abcd")
    assert sorted(asked) == list("abcd"), "a loop and a node with two readers are walked once"


def test_starts_may_repeat_or_lack():
    assert list(reachable("dd", EDGES.__getitem__)) == ["d"]
    assert not reachable((), EDGES.__getitem__)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8), st.sets(st.integers(0, 9)))
def test_what_no_later_step_needs_dies_with_the_last_one(steps, kept):
    dying = last_uses(steps, kept)
    assert len(dying) == len(steps)
    for at, dead in enumerate(dying):
        later = {value for touched in steps[at + 1 :] for value in touched}
        assert sorted(dead) == sorted(set(steps[at]) - later - kept)
