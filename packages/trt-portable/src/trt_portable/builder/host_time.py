"""Seconds of work on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch

LEAST_SAMPLES: Final = 5
_LONG_SECONDS: Final = 0.01
"""Something is run until that time is spent on it, or `LEAST_SAMPLES` times."""
_SHORT_SECONDS: Final = 1e-4
"""A sample has as many runs as take that long, or the clock's own time would count."""
_CLOCK_GRAIN: Final = 1e-6
"""Seconds that a clock may take for nothing."""


def host_clock() -> Callable[[], float]:
    """What tells seconds of work on the CPU: where one thread does all of it, only those that it had the processor.

    On a machine with other work, a layer that was interrupted in every run would seem slow.
    """
    is_fine = time.get_clock_info("thread_time").resolution <= _CLOCK_GRAIN
    return time.thread_time if is_fine and torch.get_num_threads() == 1 else time.perf_counter


def least_seconds(run: Callable[[], object], *, spend: float = 0.0) -> float:
    """The shortest of a few samples of what ran before.

    Args:
        run: What is timed.
        spend: Seconds to spend on it at least: a disturbance may last for longer than a few short samples.

    Returns:
        Seconds of one run.
    """
    clock = host_clock()
    times: list[float] = []
    repeats = 1
    started_at = clock()
    while clock() - started_at < spend or (len(times) < LEAST_SAMPLES and sum(times) < _LONG_SECONDS):
        started = clock()
        for _ in range(repeats):
            run()
        spent = clock() - started
        if repeats == 1 and spent < _SHORT_SECONDS:
            repeats = max(2, round(_SHORT_SECONDS / max(spent, _CLOCK_GRAIN)))
        else:
            times.append(spent / repeats)
    return min(times)
