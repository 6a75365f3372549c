"""What every `min_block_size` gives, from the sizes of the blocks that partitioning found: one pass for all sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class SweepPoint:
    """What sizes up to `min_block_size`, and above the point before, give.

    Attributes:
        min_block_size: Largest size for which this holds.
        engines: Number of engines.
        operators: Operators that run in engines.
    """

    min_block_size: int
    engines: int
    operators: int


@dataclass(frozen=True)
class Sweep:
    """A step function from `min_block_size` to engines and operators in them.

    Attributes:
        points: The steps, ascending; above the last one there are no engines.
        unlimited: The graph is wholly supported, so that the last point holds for every finite size.
    """

    points: tuple[SweepPoint, ...] = ()
    unlimited: bool = False

    def at(self, min_block_size: int | float) -> SweepPoint:
        """Returns what partitioning with that `min_block_size` gives, 1 or larger, infinity included."""
        if self.unlimited and min_block_size != float("inf") and self.points:
            return self.points[-1]
        index = bisect_left(self.points, min_block_size, key=lambda point: point.min_block_size)
        return self.points[index] if index < len(self.points) else SweepPoint(0, 0, 0)

    @staticmethod
    def of_blocks(blocks: Iterable[tuple[int, int]]) -> Sweep:
        """Builds the sweep of blocks that stand or fall on their own.

        Args:
            blocks: (computations, operators) of each possible engine; those that compute nothing are never built.
        """
        points: list[SweepPoint] = []
        engines = operators = 0
        descending = sorted((block for block in blocks if block[0] > 0), reverse=True)
        for size, group in groupby(descending, key=lambda block: block[0]):
            for _, count in group:
                engines += 1
                operators += count
            points.append(SweepPoint(size, engines, operators))
        return Sweep(tuple(reversed(points)))


def better_point(left: SweepPoint, right: SweepPoint) -> bool:
    """Whether `right` beats `left`: more operators in engines, then fewer engines."""
    return (right.operators, -right.engines) > (left.operators, -left.engines)


def best_of(sweeps: Sequence[Sweep]) -> Sweep:
    """Returns the sweep that takes the best of several at every size."""
    if len(sweeps) == 1:
        return sweeps[0]
    points: list[SweepPoint] = []
    for size in sorted({point.min_block_size for sweep in sweeps for point in sweep.points}):
        best = sweeps[0].at(size)
        for sweep in sweeps[1:]:
            if better_point(best, sweep.at(size)):
                best = sweep.at(size)
        points.append(SweepPoint(size, best.engines, best.operators))
    return Sweep(tuple(points), unlimited=any(sweep.unlimited for sweep in sweeps))
