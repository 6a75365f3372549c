"""Which of several runs is the fastest, measured in turns.

A device that was idle runs slower at first, and a hot one slower again: of two runs that are timed one after the other,
one is timed on another device. So all of them are warmed up together and take turns, in both directions, and what
changes in between reaches them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

_WARM_UP_SECONDS: Final = 0.06
"""Runs take turns for that long before any counts: clocks of a GPU that was idle need some 20 ms to rise."""
_LEAST_SECONDS: Final = 0.002
"""A sample is so many calls that it takes that long, so that waiting for the device does not matter."""
_MOST_CALLS: Final = 100
_RACE_SECONDS: Final = 0.2
_LEAST_ROUNDS: Final = 5

Run = Callable[[], object]


def race(
    runs: Sequence[Run],
    wait: Callable[[], None],
    rounds: int = _LEAST_ROUNDS,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """The time of each run: the lower quartile, since what others do on the device only adds to it.

    Args:
        runs: What is timed; each starts work, and did so before.
        wait: Returns when the device is done.
        rounds: Samples of each run to take at least; short runs get more.
        clock: Tells seconds.

    Returns:
        Seconds per call, in the order of the runs.
    """

    def seconds(run: Run, calls: int) -> float:
        wait()
        started = clock()
        for _ in range(calls):
            run()
        wait()
        return (clock() - started) / calls

    until = clock() + _WARM_UP_SECONDS
    once = [seconds(run, 1) for run in runs]
    while clock() < until:
        once = [min(known, seconds(run, 1)) for run, known in zip(runs, once, strict=True)]
    calls = [max(1, min(_MOST_CALLS, round(_LEAST_SECONDS / max(known, 1e-7)))) for known in once]
    samples: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    until = clock() + _RACE_SECONDS * len(runs)
    while len(samples[0]) < max(rounds, _LEAST_ROUNDS) or clock() < until:
        for at in order:
            samples[at].append(seconds(runs[at], calls[at]))
        order.reverse()
    return [statistics.quantiles(each, n=4)[0] for each in samples]
