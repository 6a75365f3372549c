"""Which of several kernels on a GPU is the fastest: measured once, in turns, and remembered by a build."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import torch

from trt_portable.builder.autotune.autotuner import Autotuner, current_autotuner
from trt_portable.builder.autotune.clock import race_on_device
from trt_portable.builder.autotune.timing_cache import ITimingCache, TimingCacheKey
from trt_portable.execution.replay import record_run
from trt_portable.shape_tensors import Value

_process = Autotuner(ITimingCache({}))
"""Remembers what was measured in this process."""


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
        is_right: The oracle, asked after each of them ran, in order, whether it computed the right thing.

    Returns:
        The first name where nothing can be measured: inside of a capture, or because a build may not.
    """
    first = next(iter(starts))
    if len(starts) == 1:
        return first
    key = TimingCacheKey.of("kernel", str(device), *map(repr, form), *starts)
    build = current_autotuner()
    winner = (None if build is None else build.remembered(key, starts)) or _process.remembered(key, starts)
    if winner is None:
        if torch.cuda.is_current_stream_capturing() or not (build is None or build.may_measure):
            return first
        runs = _runnable(starts, device, replayed=replayed, is_right=is_right)
        if not runs:
            return first
        winner = (build or _process).judge(" ".join(map(str, form)), race_on_device(runs))
    for autotuner in (_process, build):
        if autotuner is not None:
            autotuner.record(key, winner)
    return winner.name


def _runnable(
    starts: Mapping[str, Callable[[], object]], device: torch.device, *, replayed: bool, is_right: Callable[[], bool]
) -> dict[str, Callable[[], object]]:
    """What starts each kernel that runs, and computes the right thing."""
    runs: dict[str, Callable[[], object]] = {}
    for name, start in starts.items():
        with contextlib.suppress(Exception):  # whatever this Triton or this GPU cannot do
            start()
            if is_right():
                runs[name] = (record_run(_Alone(start), (), (), device) if replayed else None) or start
    return runs


class _Alone:
    """A kernel as an executable, which leaves its result wherever it does."""

    constants = None

    def __init__(self, start: Callable[[], object]) -> None:
        self._start = start

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Starts it."""
        self._start()
        return []
