"""Whether a process keeps memory that it should have given back."""

from __future__ import annotations

import gc
from collections.abc import Callable

import psutil


def grows_each_time(work: Callable[[], object], limit_bytes: int, rounds: int = 4) -> bool:
    """Whether the process grows by `limit_bytes` or more in every round of `work`, as it does where something leaks.

    Allocators, other threads and libraries that are read late make a process grow too, but not each time. The first
    round that grows by less is the last one.
    """
    process = psutil.Process()
    for _ in range(rounds):
        before = process.memory_info().rss
        work()
        gc.collect()
        if process.memory_info().rss - before < limit_bytes:
            return False
    return True
