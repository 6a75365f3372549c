"""How long calls of a program take."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Latency:
    """Times of calls, in microseconds, from the call to results that are ready.

    Attributes:
        calls: How many were timed.
        threads: How many threads called at the same time.
        first_us: The first call of all, which sets up the engines.
        mean_us, p50_us, p90_us, p99_us, max_us: Of the timed calls.
        calls_per_second: All threads together.
    """

    calls: int
    threads: int
    first_us: float
    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float
    calls_per_second: float

    def to_json(self) -> dict[str, Any]:
        """Returns the values by name."""
        return asdict(self)

    def __str__(self) -> str:
        threads = f" from {self.threads} threads" if self.threads > 1 else ""
        return (
            f"first call {self.first_us:.0f} us; then {self.calls} calls{threads}: mean {self.mean_us:.1f} us, "
            f"p50 {self.p50_us:.1f}, p90 {self.p90_us:.1f}, p99 {self.p99_us:.1f}, max {self.max_us:.1f}; "
            f"{self.calls_per_second:.0f} calls/s"
        )


def measure(
    program: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    calls: int,
    warm_up: int,
    threads: int = 1,
) -> Latency:
    """Times calls, each until its results are ready.

    Args:
        program: What to call.
        args, kwargs: What with.
        calls: Calls that each thread times.
        warm_up: Calls that each thread makes before.
        threads: Threads that call at the same time; on CUDA each has a stream of its own.
    """
    on_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in [*args, *kwargs.values()])
    first = _time_call(program, args, kwargs, on_cuda)
    times: list[float] = []
    failures: list[BaseException] = []
    barrier = threading.Barrier(threads + 1)

    def work() -> None:
        own: list[float] = []
        try:
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream() if on_cuda else None):
                for _ in range(warm_up):
                    _time_call(program, args, kwargs, on_cuda)
                barrier.wait()
                own.extend(_time_call(program, args, kwargs, on_cuda) for _ in range(calls))
        except BaseException as error:
            failures.append(error)
            barrier.abort()
        times.extend(own)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    with contextlib.suppress(threading.BrokenBarrierError):  # the failure is raised below
        barrier.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - begin
    if failures:
        raise failures[0]
    times.sort()
    return Latency(
        calls=len(times),
        threads=threads,
        first_us=first * 1e6,
        mean_us=sum(times) / len(times) * 1e6,
        p50_us=percentile(times, 0.5) * 1e6,
        p90_us=percentile(times, 0.9) * 1e6,
        p99_us=percentile(times, 0.99) * 1e6,
        max_us=times[-1] * 1e6,
        calls_per_second=len(times) / elapsed,
    )


def percentile(times: Sequence[float], part: float) -> float:
    """Returns the shortest time that at least `part` of the sorted times do not exceed."""
    return times[max(math.ceil(part * len(times)) - 1, 0)]


def _time_call(program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], on_cuda: bool) -> float:
    begin = time.perf_counter()
    program(*args, **kwargs)
    if on_cuda:
        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - begin
