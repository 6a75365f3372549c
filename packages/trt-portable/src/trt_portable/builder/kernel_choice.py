"""Which of several kernels is the fastest: measured once, in turns, and remembered in the timing cache of the build."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import torch

from trt_portable.builder.tactics import tactic_hash
from trt_portable.builder.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.execution.replay import record_run
from trt_portable.shape_tensors import Value

_ROUNDS: Final = 10


@dataclass(frozen=True)
class _Memory:
    """What a build remembers of kernels.

    Attributes:
        cache: Where.
        may_measure: Whether what it does not know may be measured.
    """

    cache: ITimingCache
    may_measure: bool


_memory: ContextVar[_Memory | None] = ContextVar("kernels that a build remembers", default=None)
_found: dict[TimingCacheKey, TimingCacheValue] = {}
"""What was measured in this process."""


@contextlib.contextmanager
def remembering(cache: ITimingCache, *, may_measure: bool) -> Iterator[None]:
    """Lets `fastest` use a timing cache.

    Args:
        cache: Learns what is measured, and spares measuring it again.
        may_measure: Whether what it does not know may be measured.
    """
    before = _memory.set(_Memory(cache, may_measure))
    try:
        yield
    finally:
        _memory.reset(before)


def fastest(
    starts: Mapping[str, Callable[[], object]],
    device: torch.device,
    *form: object,
    replayed: bool = False,
    is_right: Callable[[], bool] = lambda: True,
) -> str:
    """The name of the fastest of several kernels.

    Args:
        starts: What starts each on the current stream, the surest first; one that fails is not chosen.
        device: Where they run.
        form: What else decides about the time: extents, types.
        replayed: Whether they are several kernels each, whose starts one by one would be what is measured.
        is_right: Asked after each of them ran, in order, whether it computed the right thing.

    Returns:
        The first name where nothing can be measured: inside of a capture, or because a build may not.
    """
    first = next(iter(starts))
    if len(starts) == 1:
        return first
    key = TimingCacheKey.of("kernel", str(device), *map(repr, form), *starts)
    memory = _memory.get()
    known = (None if memory is None else memory.cache.query(key)) or _found.get(key)
    if known is None or known.tacticHash not in map(tactic_hash, starts):
        if torch.cuda.is_current_stream_capturing() or not (memory is None or memory.may_measure):
            return first
        times = _milliseconds(starts, device, replayed=replayed, is_right=is_right)
        if not times:
            return first
        best = min(times, key=times.__getitem__)
        known = TimingCacheValue(tactic_hash(best), times[best])
    _found[key] = known
    if memory is not None:
        memory.cache._record(key, known)
    return next(name for name in starts if tactic_hash(name) == known.tacticHash)


def _milliseconds(
    starts: Mapping[str, Callable[[], object]], device: torch.device, *, replayed: bool, is_right: Callable[[], bool]
) -> dict[str, float]:
    """The least time of each kernel that runs, on the device."""
    runs: dict[str, Callable[[], object]] = {}
    for name, start in starts.items():
        with contextlib.suppress(Exception):  # whatever this Triton or this GPU cannot do
            start()
            if is_right():
                runs[name] = (record_run(_Alone(start), (), (), device) if replayed else None) or start
    times = dict.fromkeys(runs, math.inf)
    for _ in range(_ROUNDS):  # in turns, since the clocks of a GPU that was idle rise
        for name, run in runs.items():
            times[name] = min(times[name], _elapsed(run))
    return times


class _Alone:
    """A kernel as an executable, which leaves its result wherever it does."""

    constants = None

    def __init__(self, start: Callable[[], object]) -> None:
        self._start = start

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Starts it."""
        self._start()
        return []


def _elapsed(start: Callable[[], object]) -> float:
    """Milliseconds of one run on the device."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    start()
    second.record()
    second.synchronize()
    milliseconds: float = first.elapsed_time(second)
    return milliseconds
