"""Chooses which groups of operators to reduce, by measuring: the algorithm, of any question about sets of groups.

With n groups it asks at most 2 + n + log2(n) + 8 times, the same questions each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

MOST_FILLED: Final = 8
"""How many groups are tried that the first choice has no room for."""

ErrorOf = Callable[[frozenset[int]], float]
"""Returns the error with the groups of these positions reduced."""


@dataclass(frozen=True)
class Selection:
    """A choice of groups, by position.

    Attributes:
        reduced: The groups that are reduced, in the order in which they are given up: the last one goes first.
        alone: The error with one group reduced, for each; empty where everything may be.
        error: The error of the choice, measured.
        error_of_all: The error with every group reduced.
    """

    reduced: tuple[int, ...]
    error: float
    error_of_all: float
    alone: tuple[float, ...] = field(default=())

    def smaller(self, share: float) -> Selection:
        """Returns the first of the groups, a share of their number rounded down; the error is not measured."""
        return Selection(self.reduced[: int(len(self.reduced) * share)], math.nan, self.error_of_all, self.alone)


def select(work: Sequence[int], error: ErrorOf, allowed: float) -> Selection:
    """Reduces as much work as an error allows.

    Groups are ordered by the error that each makes alone, for the work that it saves; the longest beginning of that
    order is taken whose error, all taken together, is allowed, found by halving. Then the largest of the groups that
    are left are tried on top. So nothing rests on errors adding up in any way: what is chosen was measured as a whole.

    Args:
        work: What is saved by reducing each group.
        error: Measures; with nothing reduced the error must be allowed.
        allowed: The largest error.
    """
    everything = tuple(range(len(work)))
    error_of_all = error(frozenset(everything))
    if error_of_all <= allowed:
        return Selection(everything, error_of_all, error_of_all)
    alone = tuple(error(frozenset({group})) for group in everything)
    fitting = [group for group in everything if alone[group] <= allowed]
    fitting.sort(key=lambda group: (alone[group] / max(work[group], 1), group))
    low, high, known = 0, len(fitting) + 1, math.nan
    while high - low > 1:
        middle = (low + high) // 2
        found = error(frozenset(fitting[:middle]))
        if found <= allowed:
            low, known = middle, found
        else:
            high = middle
    chosen = fitting[:low]
    left = sorted(fitting[low + 1 :], key=lambda group: (-work[group], group))
    for group in left[:MOST_FILLED]:
        found = error(frozenset({*chosen, group}))
        if found <= allowed:
            chosen.append(group)
            known = found
    return Selection(tuple(chosen), known, error_of_all, alone)
