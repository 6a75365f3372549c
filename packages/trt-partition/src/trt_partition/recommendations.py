"""Which values of `min_block_size` are worth trying, and what each really gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trt_partition.sweep import Sweep


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
