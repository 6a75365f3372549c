"""Walking over graphs."""

from __future__ import annotations

from trt_core.graph_search import reachable

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
