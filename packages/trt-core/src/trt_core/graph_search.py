"""What can be reached in a graph of any kind of node, and which step of a list is the last to need something."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def reachable(starts: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> dict[_Node, None]:
    """Returns some nodes and all that follow, directly or not; each once, as a set that keeps an order."""
    found = dict.fromkeys(starts)
    pending = list(found)
    while pending:
        for node in following(pending.pop()):
            if node not in found:
                found[node] = None
                pending.append(node)
    return found


def last_uses(steps: Iterable[Iterable[_Node]], kept: Container[_Node] = ()) -> list[list[_Node]]:
    """Returns for each step what no later one reads or makes.

    Args:
        steps: What each of them reads and makes.
        kept: What is needed behind the last one.
    """
    last: dict[_Node, int] = {}
    dying: list[list[_Node]] = []
    for at, touched in enumerate(steps):
        for value in touched:
            last[value] = at
        dying.append([])
    for value, at in last.items():
        if value not in kept:
            dying[at].append(value)
    return dying
