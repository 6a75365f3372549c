"""What can be reached in a graph of any kind of node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
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
