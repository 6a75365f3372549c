"""Finds the sizes at which a condition does not hold, where one symbol alone decides that.

Conditions that PyTorch notes may name symbols which cancel: `(height // (height // 4)) * width` has no height in it
where the height is a multiple of 4. All sizes of all symbols are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trt_runtime.program.size_grid import SizeGrid

MOST_COMBINATIONS: Final = 1 << 18
"""Where there are more sizes, nothing is said."""

_MOST_FAILING: Final = 16
"""Where a condition fails at more sizes, nothing is said: it is tried at each whether that matters."""


class FailingSizes:
    """Says at which sizes a condition does not hold.

    Args:
        demanded: Relations of sympy that sizes have to fulfil in any case; only such sizes are looked at.
        spans: The sizes of each symbol.
        usual: A size of each symbol, which those that do not matter have where the demanded relations allow it.
    """

    def __init__(self, demanded: Iterable[Any], spans: Mapping[str, range], usual: Mapping[str, int]) -> None:
        self._demanded = [(_names(condition), condition) for condition in demanded]
        self._spans = spans
        self._usual = usual
        self._grids: dict[frozenset[str], SizeGrid] = {}

    def of(self, condition: Any) -> list[dict[str, int]] | None:
        """Returns the sizes of one symbol at which a condition does not hold, where those of others do not matter.

        Where the demanded relations tie the others to it, they have sizes that are allowed beside it: two batches that
        must be equal are both 1, or neither.

        Args:
            condition: A relation of sympy.

        Returns:
            Sizes by symbol. None where more than one symbol decides, for a condition that cannot be computed, and for
            too many sizes.
        """
        names = _names(condition)
        about = [other for other in self._demanded if names & other[0]]
        everything = names.union(*(others for others, _ in about))
        if self._count(everything) <= MOST_COMBINATIONS:
            names = everything
        if not names or not 0 < self._count(names) <= MOST_COMBINATIONS:
            return None
        grid = self._grids.get(names)
        if grid is None:
            grid = self._grids[names] = SizeGrid({name: self._spans[name] for name in sorted(names)})
        holds = grid.holds(condition)
        if holds is None:
            return None
        allowed = holds | ~holds
        for others, other in about:
            found = grid.holds(other) if others <= names else None
            allowed = allowed if found is None else allowed & found
        for axis in range(len(names)):
            rest = tuple(other for other in range(len(names)) if other != axis)
            fails, passes = ((answer & allowed).any(axis=rest, keepdims=True) for answer in (~holds, holds))
            if not (fails & passes).any():
                few = fails.sum() <= _MOST_FAILING
                return self._nearest(sorted(names), axis, ~holds & allowed) if few else None
        return None

    def _nearest(self, names: list[str], axis: int, failing: Any) -> list[dict[str, int]]:
        """Returns the sizes nearest to the usual ones for each place of an axis at which something fails."""
        spans = [self._spans[name] for name in names]
        usual = [self._usual.get(name, span.start) for name, span in zip(names, spans, strict=True)]
        nearest: dict[int, tuple[int, tuple[int, ...]]] = {}
        for place in zip(*(places.tolist() for places in failing.nonzero()), strict=True):
            sizes = tuple(span[at] for span, at in zip(spans, place, strict=True))
            distance = sum(abs(size - best) for size, best in zip(sizes, usual, strict=True))
            nearest[place[axis]] = min((distance, sizes), nearest.get(place[axis], (distance, sizes)))
        return [dict(zip(names, sizes, strict=True)) for _, (_, sizes) in sorted(nearest.items())]

    def _count(self, names: Iterable[str]) -> float:
        return math.prod(len(self._spans[name]) if name in self._spans else math.inf for name in names)


def _names(condition: Any) -> frozenset[str]:
    return frozenset(str(symbol) for symbol in condition.free_symbols)
