"""The clocks of autotuning: of runs as engines make them, of one layer on the CPU, of one kernel on a GPU.

A device that was idle runs slower at first, and a hot one slower again: of two runs that are timed one after the other,
one is timed on another device. So candidates are warmed up together and take turns, in both directions, and what
changes in between reaches them alike (`race`). Kernels of a GPU are timed by its own events (`race_on_device`),
layers of the CPU with weights that no cache holds (`ColdWeights`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import torch

from trt_core.cached_property import cached_property
from trt_portable.execution.launcher import Executable
from trt_portable.execution.paging import return_freed_memory
from trt_portable.execution.program import Compute, LayerFailure, PackingCompute, Program, forget_packed
from trt_portable.execution.replay import may_record, record_run
from trt_portable.fusion.packed_products import PrepackedConvolution
from trt_portable.shape_tensors import Value, as_tensor

_WARM_UP_SECONDS: Final = 0.06
"""Runs take turns for that long before any counts: clocks of a GPU that was idle need some 20 ms to rise."""
_LEAST_SECONDS: Final = 0.002
"""A sample is so many calls that it takes that long, so that waiting for the device does not matter."""
_MOST_CALLS: Final = 100
_RACE_SECONDS: Final = 0.2
_ENOUGH_SECONDS: Final = 0.1
"""Samples that nobody asked for are taken until they have lasted that long: a long run is disturbed in a small part."""
_LEAST_ROUNDS: Final = 5
_DEVICE_ROUNDS: Final = 10
_MOST_FREED_BYTES: Final = 12 << 20
"""Freed memory goes back to the system when results and packed weights of as many bytes have come and gone."""

Run: TypeAlias = Callable[[], object]


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
        return torch.ones(self._nbytes // torch.float32.itemsize, device="cpu")


def as_engines_run(executable: Executable, values: Sequence[Value], device: torch.device) -> Callable[[], object]:
    """What a context starts in every run: the replay of a recording where one can be made, else the run itself.

    The recording leaves outputs in memory of somebody else, as engines do in the memory bound to them.

    Args:
        executable: What runs; it is run once, which warms up allocator and kernels.
        values: Its inputs.
        device: Where it runs.

    Raises:
        PortableError: The program cannot run on these values.
    """
    with torch.inference_mode():
        results = executable.run(values)
        replay = record_run(executable, values, results, device) if may_record(device) else None

    def run() -> None:
        with torch.inference_mode():
            executable.run(values)

    return run if replay is None else replay


def race_milliseconds(
    executables: Sequence[Executable], values: Sequence[Value], device: torch.device, iterations: int
) -> list[float | Exception]:
    """Times of runs as engines make them, measured in turns; for a program that fails, why.

    Args:
        executables: What is timed.
        values: The inputs of each.
        device: Where they run.
        iterations: Samples to take of each, at least.
    """
    runs: dict[int, Callable[[], object]] = {}
    found: dict[int, float | Exception] = {}
    for at, executable in enumerate(executables):
        try:
            runs[at] = as_engines_run(executable, values, device)
            runs[at]()
        except Exception as error:  # whatever a compiler made may fail in any way
            runs.pop(at, None)
            found[at] = error
    if runs:
        times = race(list(runs.values()), lambda: _wait(device), iterations)
        found.update((at, seconds * 1e3) for at, seconds in zip(runs, times, strict=True))
    return [found[at] for at in range(len(executables))]


def milliseconds(
    executable: Executable, values: Sequence[Value], device: torch.device, iterations: int, most: int = 0
) -> float:
    """Time of a run that others disturbed least, replayed where the engine would replay it.

    Args:
        executable: What is timed.
        values: Its inputs.
        device: Where it runs.
        iterations: Samples to take; short runs have `LEAST_SAMPLES` at least.
        most: Up to so many are taken of runs that are short.

    Raises:
        PortableError: The program cannot run on these values.
    """
    run = as_engines_run(executable, values, device)
    with torch.inference_mode():
        run()
        once = _seconds(run, 1, device)
        repeats = max(1, min(100, int(_LEAST_SECONDS / max(once, 1e-7))))
        times, least = [once], max(iterations, LEAST_SAMPLES)
        while len(times) < least or (len(times) < most and sum(times) * repeats < _ENOUGH_SECONDS):
            times.append(_seconds(run, repeats, device) / repeats)
    return min(times) * 1e3


def time_layers(program: Program, values: Sequence[Value], weights: ColdWeights) -> tuple[list[Value], float]:
    """Runs a program with packed weights on the CPU layer by layer, each a few times.

    A layer's packed weights are given up behind it, and what was freed goes back to the system now and then, so a
    model is never in memory twice.

    Args:
        program: What is timed.
        values: Its inputs.
        weights: Times the layers that have some.

    Returns:
        The outputs, and the sum of each layer's best time, in milliseconds.

    Raises:
        LayerFailure: A layer cannot run on these values.
    """
    slots = program.start(values)
    seconds = 0.0
    freed = 0
    for compute, read, outputs, dying, call in program.steps:
        operands = read(slots)
        try:
            spare = operands
            if isinstance(compute, PrepackedConvolution) and compute.overwrites:  # then runs would add up
                spare = [*operands[:-1], as_tensor(operands[-1]).clone()]
            results = compute(operands)  # warms up, and packs weights
            if isinstance(compute, PackingCompute):
                seconds += weights.least_seconds(lambda: compute(spare), as_tensor(spare[0]))  # noqa: B023
                freed += compute.forget()
            else:
                seconds += least_seconds(lambda: compute(spare))  # noqa: B023 - called at once
        except Exception as error:
            raise LayerFailure(call.name, error) from error
        freed += sum(as_tensor(value).nbytes for value in results)
        if freed >= _MOST_FREED_BYTES:
            return_freed_memory()
            freed = 0
        for at, result in zip(outputs, results, strict=True):
            slots[at] = result
        for at in dying:
            slots[at] = None
    return [value for at in program.output_slots if (value := slots[at]) is not None], seconds * 1e3


FAR: Final = 1.3
"""A way that takes that many times as long as the fastest is not timed again."""
_ROUNDS: Final = 3
"""Ways take turns so often: other work on the machine disturbs one of them as a rule, and not each time the same."""


def race_ways(
    ways: Mapping[str, Compute], inputs: Sequence[Value | None], weights: ColdWeights, note: Callable[[str], None]
) -> dict[str, float]:
    """The least milliseconds of ways to compute a layer on the CPU; those far behind the fastest run less often.

    Packed weights of one way at a time are in memory.

    Args:
        ways: What computes the layer, by name.
        inputs: Operands; the layer before has just made the first one.
        weights: Times runs.
        note: Hears of ways that fail, by name.
    """
    x = as_tensor(inputs[0])
    times: dict[str, float] = {}
    left = list(ways)
    for _ in range(_ROUNDS):
        for name in left:
            way = ways[name]
            try:
                way(inputs)  # packs weights
                seconds = weights.least_seconds(lambda: way(inputs), x)  # noqa: B023 - called at once
            except Exception as error:  # a kernel may fail in any way
                note(f"{name}: not available here for {tuple(x.shape)}: {type(error).__name__}: {error}")
                times.pop(name, None)
                continue
            finally:
                forget_packed([way])
            times[name] = min(seconds, times.get(name, seconds))
        least = min(times.values(), default=0.0)
        left = [name for name in left if name in times and times[name] <= least * FAR]
        if len(left) < 2:
            break
    return {name: seconds * 1e3 for name, seconds in times.items()}


def _seconds(run: object, repeats: int, device: torch.device) -> float:
    assert callable(run)
    clock = time.perf_counter if device.type == "cuda" else host_clock()
    _wait(device)
    started = clock()
    for _ in range(repeats):
        run()
    _wait(device)
    return clock() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def race_on_device(starts: Mapping[str, Run]) -> dict[str, float]:
    """The least milliseconds of kernels by name, by the events of the device that runs them.

    Args:
        starts: What starts each on the current stream, and did so before.
    """
    times = dict.fromkeys(starts, math.inf)
    for _ in range(_DEVICE_ROUNDS):  # in turns, since the clocks of a GPU that was idle rise
        for name, start in starts.items():
            times[name] = min(times[name], _on_device(start))
    return times


def _on_device(start: Run) -> float:
    """Milliseconds of one run on the device."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    start()
    second.record()
    second.synchronize()
    milliseconds: float = first.elapsed_time(second)
    return milliseconds
