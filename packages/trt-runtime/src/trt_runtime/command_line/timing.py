"""Times of calls, of one program or of several in turns: what `bench` measures."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

from trt_core.errors import InputError

_ROUNDS: Final = 5
"""How often programs that are compared take turns, so that a machine that changes its pace changes it for all."""


@dataclass(frozen=True)
class Times:
    """Microseconds of many calls.

    Attributes:
        mean_us: Their mean.
        p50_us, p90_us, p99_us: The times that 50, 90 and 99 of 100 calls do not exceed.
        max_us: The longest.
    """

    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Summarizes seconds in any order, at least one."""
        ordered = sorted(seconds)
        p50, p90, p99 = (percentile(ordered, part) * 1e6 for part in (0.5, 0.9, 0.99))
        return cls(sum(ordered) / len(ordered) * 1e6, p50, p90, p99, ordered[-1] * 1e6)

    def __str__(self) -> str:
        return (
            f"mean {self.mean_us:.1f} us, p50 {self.p50_us:.1f}, p90 {self.p90_us:.1f}, p99 {self.p99_us:.1f}, "
            f"max {self.max_us:.1f}"
        )


@dataclass(frozen=True)
class Timing:
    """What calls of one program took.

    Attributes:
        calls: How many were timed.
        threads: How many threads called at the same time.
        streams: How many calls each thread had in flight, each on a stream of its own.
        first_us: The first call of all, which sets up the engines.
        latency: From the call to results that are ready.
        host: From the call to its return; what is left of the latency is waiting for the GPU.
        device: Between the events around a call on its stream; None without a GPU.
        calls_per_second: All threads together.
    """

    calls: int
    threads: int
    streams: int
    first_us: float
    latency: Times
    host: Times
    device: Times | None
    calls_per_second: float

    def to_json(self) -> dict[str, Any]:
        """Returns the values by name; those of the latency at the top."""
        values = asdict(self)
        return {**values, **values.pop("latency")}

    def __str__(self) -> str:
        threads = f" from {self.threads} threads" if self.threads > 1 else ""
        streams = f" on {self.streams} streams each" if self.streams > 1 else ""
        lines = [
            f"first call {self.first_us:.0f} us; then {self.calls} calls{threads}{streams}, "
            f"{self.calls_per_second:.0f} calls/s",
            f"latency: {self.latency}",
        ]
        if self.device is not None:
            lines += [f"host:    {self.host}", f"device:  {self.device}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Load:
    """How programs are called while they are timed.

    Attributes:
        calls: Calls that each thread times, at least.
        warm_up: Calls that each thread makes before.
        threads: Threads that call at the same time.
        streams: Calls that each thread has in flight on CUDA, each on a stream of its own.
        seconds: How long each program is called, at least.
    """

    calls: int = 100
    warm_up: int = 10
    threads: int = 1
    streams: int = 1
    seconds: float = 0.0


def measure(program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], load: Load) -> Timing:
    """Times calls of one program.

    Raises:
        InputError: Several streams are asked for where no input is on a GPU.
    """
    return measure_in_turns({"": program}, args, kwargs, load)[""]


def measure_in_turns(
    programs: Mapping[str, Callable[..., Any]], args: Sequence[Any], kwargs: Mapping[str, Any], load: Load
) -> dict[str, Timing]:
    """Times calls of programs that take the same inputs, one program at a time, in turns where there are several.

    Args:
        programs: What to call, by name.
        args, kwargs: What with.
        load: How.

    Raises:
        InputError: Several streams are asked for where no input is on a GPU.
    """
    on_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in [*args, *kwargs.values()])
    if load.streams > 1 and not on_cuda:
        raise InputError(
            f"{load.streams} streams are asked for, and no input is on a GPU", hint="use --threads on the CPU"
        )
    runs = {name: _Runs(program, args, kwargs, load, on_cuda) for name, program in programs.items()}
    rounds = _ROUNDS if len(runs) > 1 else 1
    for _ in range(rounds):
        for run in runs.values():
            run.take_turn(rounds)
    return {name: run.timing() for name, run in runs.items()}


def percentile(times: Sequence[float], part: float) -> float:
    """Returns the shortest time that at least `part` of the sorted times do not exceed."""
    return times[max(math.ceil(part * len(times)) - 1, 0)]


@dataclass
class _Record:
    """Seconds of calls, in one order."""

    latency: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)


class _Call:
    """A call that has returned, and whose results may not be ready."""

    def __init__(self, program: Callable[[], Any], stream: torch.cuda.Stream | None) -> None:
        if stream is None:
            self._begin = time.perf_counter()
            self._kept = program()
            self._returned = time.perf_counter()
            return
        self._started, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            self._begin = time.perf_counter()
            self._started.record()
            self._kept = program()  # results live on until they are ready: their memory is not another call's
            self._ended.record()
            self._returned = time.perf_counter()
        self._stream = stream

    def wait(self, record: _Record, on_cuda: bool) -> torch.cuda.Stream | None:
        """Waits for the results and writes down what they took; returns the stream, which is free now."""
        record.host.append(self._returned - self._begin)
        if not on_cuda:
            record.latency.append(self._returned - self._begin)
            return None
        self._ended.synchronize()
        record.latency.append(time.perf_counter() - self._begin)
        record.device.append(self._started.elapsed_time(self._ended) * 1e-3)
        return self._stream


class _Runs:
    """All timed calls of one program."""

    def __init__(
        self, program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], load: Load, on_cuda: bool
    ) -> None:
        self._program = lambda: program(*args, **kwargs)
        self._load = load
        self._on_cuda = on_cuda
        self._record = _Record()
        self._elapsed = 0.0
        first = _Record()
        with torch.inference_mode():
            _Call(self._program, torch.cuda.current_stream() if on_cuda else None).wait(first, on_cuda)
        self._first = first.latency[0]

    def take_turn(self, rounds: int) -> None:
        """Calls the program from all threads, a part of what is asked for.

        Raises:
            BaseException: What a call raised.
        """
        records: list[_Record] = []
        failures: list[BaseException] = []
        barrier = threading.Barrier(self._load.threads + 1)

        def work() -> None:
            try:
                records.append(self._work(rounds, barrier))
            except BaseException as error:
                failures.append(error)
                barrier.abort()

        workers = [threading.Thread(target=work) for _ in range(self._load.threads)]
        for worker in workers:
            worker.start()
        with contextlib.suppress(threading.BrokenBarrierError):  # the failure is raised below
            barrier.wait()
        begin = time.perf_counter()
        for worker in workers:
            worker.join()
        self._elapsed += time.perf_counter() - begin
        if failures:
            raise failures[0]
        for record in records:
            self._record.latency += record.latency
            self._record.host += record.host
            self._record.device += record.device

    def _work(self, rounds: int, barrier: threading.Barrier) -> _Record:
        lanes = [torch.cuda.Stream() if self._on_cuda else None for _ in range(self._load.streams)]
        with torch.inference_mode():
            self._keep_calling(lanes, self._load.warm_up, 0.0)
            barrier.wait()
            return self._keep_calling(lanes, math.ceil(self._load.calls / rounds), self._load.seconds / rounds)

    def _keep_calling(self, lanes: Sequence[torch.cuda.Stream | None], calls: int, seconds: float) -> _Record:
        free, flying, record = deque(lanes), deque[_Call](), _Record()
        made, until = 0, time.perf_counter() + seconds
        while made < calls or time.perf_counter() < until:
            if not free:
                free.append(flying.popleft().wait(record, self._on_cuda))
            flying.append(_Call(self._program, free.popleft()))
            made += 1
            if len(lanes) == 1:  # nothing else is to be started while the results are made
                free.append(flying.popleft().wait(record, self._on_cuda))
        for call in flying:
            call.wait(record, self._on_cuda)
        return record

    def timing(self) -> Timing:
        """Summarizes what was timed."""
        record = self._record
        return Timing(
            calls=len(record.latency),
            threads=self._load.threads,
            streams=self._load.streams,
            first_us=self._first * 1e6,
            latency=Times.of(record.latency),
            host=Times.of(record.host),
            device=Times.of(record.device) if record.device else None,
            calls_per_second=len(record.latency) / self._elapsed,
        )
