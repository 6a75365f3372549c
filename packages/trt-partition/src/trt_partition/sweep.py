"""What every `min_block_size` gives, from the sizes of the blocks that partitioning found, and which are worth trying.

One pass over the blocks answers for all sizes.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class Recommendation:
    """A value of `min_block_size`.

    Attributes:
        kind: `minimal` for the fewest engines, `moderate` for those of average size and above, `current`.
        min_block_size: The value.
        engines: Number of engines that partitioning with it gives.
    """

    kind: str
    min_block_size: int | float
    engines: int

    def __str__(self) -> str:
        if self.kind == "current":
            return (
                "The current level of graph segmentation is equivalent to selecting "
                f"min_block_size={self.min_block_size} which generates {self.engines} TRT engine(s)"
            )
        return (
            f"For {self.kind} graph segmentation, select min_block_size={self.min_block_size} "
            f"which would generate {self.engines} TRT engine(s)"
        )


def recommend(sweep: Sweep, current: int | float, engines: int) -> tuple[Recommendation, ...]:
    """Reads recommendations from a sweep.

    Args:
        sweep: What every size gives.
        current: The size in use.
        engines: Engines that there are with it.

    Returns:
        The largest size that leaves an engine; the average size of all possible engines, rounded up, where that
        makes a difference to both others; the current size.
    """
    found: list[Recommendation] = []
    if sweep.points:
        minimal = sweep.points[-1]
        found.append(Recommendation("minimal", minimal.min_block_size, minimal.engines))
        average = _average_size(sweep)
        count = sweep.at(average).engines
        if count not in (minimal.engines, engines):
            found.append(Recommendation("moderate", average, count))
    found.append(Recommendation("current", current, engines))
    return tuple(found)


def _average_size(sweep: Sweep) -> int:
    """The mean over engines, each counted at the largest size that keeps it, rounded up."""
    total = 0
    previous = 0
    for point in reversed(sweep.points):
        total += point.min_block_size * max(point.engines - previous, 0)
        previous = max(previous, point.engines)
    return math.ceil(total / previous)
