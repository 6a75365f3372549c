"""The search for a smallest set of nodes: halving, one culprit after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import fx

from trt_frontends.pipeline import Progress


class Question(Protocol):
    """How large is the error when these nodes are kept out of what may be wrong?"""

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Every node in doubt, in the order of the graph."""

    def error(self, kept: Iterable[str], /) -> float:
        """Returns the error with the nodes of these names kept out."""


class CulpritSearch:
    """Finds a small set of nodes that make the output right when they are kept out.

    Args:
        question: Right when every node is kept out, wrong when none is.
        allowed: Largest error that is right.
        most: How many nodes are looked for.
        progress: Told what is being done.

    Attributes:
        complete: Whether keeping out what `run` returned is enough.
    """

    def __init__(self, question: Question, allowed: float, most: int, progress: Progress) -> None:
        self.complete = False
        self._question = question
        self._allowed = allowed
        self._most = most
        self._progress = progress

    def run(self) -> list[fx.Node]:
        """Returns the culprits in the order of the graph; `complete` says whether they are all."""
        culprits: list[fx.Node] = []
        while len(culprits) < self._most:
            if self._is_right(culprits):
                self.complete = True
                return self._without_innocent(culprits)
            culprits.insert(0, self._last_culprit(culprits))
        self.complete = self._is_right(culprits)
        return culprits

    def _last_culprit(self, known: Sequence[fx.Node]) -> fx.Node:
        """The node that makes the output right when it joins all nodes before it, and those known.

        With nothing kept out the output is wrong, with everything out it is right. So halving always ends at a node
        that makes the difference, also where the error does not grow evenly along the graph.
        """
        nodes = self._question.nodes
        wrong, right = 0, len(nodes)
        while right - wrong > 1:
            self._progress(f"looking for culprit {len(known) + 1}", len(nodes) - (right - wrong), len(nodes))
            middle = (wrong + right) // 2
            if self._is_right([*nodes[:middle], *known]):
                right = middle
            else:
                wrong = middle
        return nodes[right - 1]

    def _without_innocent(self, culprits: list[fx.Node]) -> list[fx.Node]:
        """Leaves out nodes that need not be kept out once the others are."""
        for node in list(culprits):
            others = [other for other in culprits if other is not node]
            if others and self._is_right(others):
                culprits = others
        return culprits

    def _is_right(self, kept: Iterable[fx.Node]) -> bool:
        return self._question.error(node.name for node in kept) <= self._allowed
