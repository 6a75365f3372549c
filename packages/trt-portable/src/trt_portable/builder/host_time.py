"""Seconds of work on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Final

import torch

LEAST_SAMPLES: Final = 5
_LONG_SECONDS: Final = 0.01
"""Something is run until that time is spent on it, or `LEAST_SAMPLES` times."""
_SHORT_SECONDS: Final = 1e-4
"""A sample has as many runs as take that long, or the clock's own time would count."""
_CLOCK_GRAIN: Final = 1e-6
"""Seconds that a clock may take for nothing."""
_COLD_SAMPLES: Final = 3
_MOST_CACHED_BYTES: Final = 32 << 20
"""More is not read between two runs, though some processors have larger caches: reading takes time and memory."""
_PART_OF_WEIGHTS: Final = 16
"""Memory for that is a sixteenth of the weights at most."""


def host_clock() -> Callable[[], float]:
    """What tells seconds of work on the CPU: where one thread does all of it, only those that it had the processor.

    On a machine with other work, a layer that was interrupted in every run would seem slow.
    """
    is_fine = time.get_clock_info("thread_time").resolution <= _CLOCK_GRAIN
    return time.thread_time if is_fine and torch.get_num_threads() == 1 else time.perf_counter


def least_seconds(run: Callable[[], object]) -> float:
    """The shortest of a few samples of what ran before.

    Args:
        run: What is timed.

    Returns:
        Seconds of one run.
    """
    clock = host_clock()
    times: list[float] = []
    repeats = 1
    while len(times) < LEAST_SAMPLES and sum(times) < _LONG_SECONDS:
        started = clock()
        for _ in range(repeats):
            run()
        spent = clock() - started
        if repeats == 1 and spent < _SHORT_SECONDS:
            repeats = max(2, round(_SHORT_SECONDS / max(spent, _CLOCK_GRAIN)))
        else:
            times.append(spent / repeats)
    return min(times)


class ColdWeights:
    """Times layers whose weights are not in the processor's caches, where the other layers of a run leave no room.

    Run again and again, a product reads its weights from a cache that holds them all. Of two ways to multiply, the one
    that reads memory in the worse order then seems as good as the other.

    Args:
        nbytes: The weights of the whole model.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = min(nbytes // _PART_OF_WEIGHTS, _MOST_CACHED_BYTES)

    def least_seconds(self, run: Callable[[], object], warm: torch.Tensor) -> float:
        """The shortest of a few runs of what ran before.

        Args:
            run: What is timed.
            warm: What the layer before it has just made, and caches do hold.

        Returns:
            Seconds of one run.
        """
        clock = host_clock()
        times: list[float] = []
        for _ in range(_COLD_SAMPLES):
            self._others.sum()
            warm.sum()
            started = clock()
            run()
            times.append(clock() - started)
        return min(times)

    @cached_property
    def _others(self) -> torch.Tensor:
        return torch.ones(self._nbytes // torch.float32.itemsize)
