"""How long a run takes, and whether it computes what it should."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import torch

from trt_portable.builder.host_time import LEAST_SAMPLES, ColdWeights, host_clock, least_seconds
from trt_portable.builder.race import race
from trt_portable.execution.launcher import Executable
from trt_portable.execution.paging import return_freed_memory
from trt_portable.execution.program import LayerFailure, PackingCompute, Program
from trt_portable.execution.replay import may_record, record_run
from trt_portable.fusion.packed_products import PrepackedConvolution
from trt_portable.shape_tensors import Value, as_tensor

_LEAST_SECONDS: Final = 0.002
"""Runs are repeated until a sample is at least that long, so that the clock's grain does not matter."""
_MOST_FREED_BYTES: Final = 12 << 20
"""Freed memory goes back to the system when results and packed weights of as many bytes have come and gone."""
# Relative to the size of an output. Products in another order, TF32 and 10 or 7 bits of mantissa differ by less;
# a wrong kernel by more.
_TOLERANCES: Final = {torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
_ROUNDED: Final = {torch.float8_e4m3fn: 0.1, torch.float8_e5m2: 0.2}
"""The same for outputs of types that nothing is computed in: numbers between two of theirs may go either way."""
_LEAST_SIZE: Final = 1e-6  # of an element: smaller numbers are what is left where large ones cancel
_PIECE: Final = 1 << 22  # elements
_LEAST_EQUAL: Final = 0.99  # of integers: a maximum among equals may be another one


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


def milliseconds(executable: Executable, values: Sequence[Value], device: torch.device, iterations: int) -> float:
    """Time of a run that others disturbed least, replayed where the engine would replay it.

    Args:
        executable: What is timed.
        values: Its inputs.
        device: Where it runs.
        iterations: Samples to take; short runs have `LEAST_SAMPLES` at least.

    Raises:
        PortableError: The program cannot run on these values.
    """
    run = as_engines_run(executable, values, device)
    with torch.inference_mode():
        run()
        once = _seconds(run, 1, device)
        repeats = max(1, min(100, int(_LEAST_SECONDS / max(once, 1e-7))))
        times = [_seconds(run, repeats, device) / repeats for _ in range(max(iterations, LEAST_SAMPLES) - 1)]
    return min(once, *times) * 1e3


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
                added = operands[-1]
                assert added is not None
                spare = [*operands[:-1], as_tensor(added).clone()]
            results = compute(operands)  # warms up, and packs weights
            if isinstance(compute, PackingCompute):
                seconds += weights.least_seconds(lambda: compute(spare), as_tensor(spare[0]))  # type: ignore[arg-type]  # noqa: B023
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


def first_difference(
    found: Sequence[Value], expected: Sequence[Value], computed_in: Collection[torch.dtype] = ()
) -> str | None:
    """What is wrong with outputs, in words; None when they agree as far as types allow.

    Args:
        found: What a candidate makes.
        expected: What it should make.
        computed_in: Types of what the outputs are computed from: a float32 that comes from half precision is no better.
    """
    within = max((_TOLERANCES.get(dtype, 0.0) for dtype in computed_in), default=0.0)
    if len(found) != len(expected):
        return f"{len(found)} outputs instead of {len(expected)}"
    for index, (have, want) in enumerate(zip(map(as_tensor, found), map(as_tensor, expected), strict=True)):
        if have.shape != want.shape or have.dtype is not want.dtype:
            return f"output {index} is {have.dtype} {tuple(have.shape)}, not {want.dtype} {tuple(want.shape)}"
        if not want.numel():
            continue
        tolerance = _TOLERANCES.get(want.dtype) or _ROUNDED.get(want.dtype)
        parts = _parts(have, want)
        if tolerance is None:
            equal = sum(int((left == right).sum()) for left, right in parts) / want.numel()
            if equal < _LEAST_EQUAL:
                return f"output {index}: {equal:.1%} of the elements are equal"
            continue
        said = _float_difference(parts, max(tolerance, within), want.dtype)
        if said is not None:
            return f"output {index} {said}"
    return None


def _parts(have: torch.Tensor, want: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two tensors piece by piece: what is computed of a piece in double precision is a small part of either."""
    pieces = (tensor.reshape(-1).split(_PIECE) for tensor in (have, want))
    return list(zip(*pieces, strict=True))


def _float_difference(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], tolerance: float, dtype: torch.dtype
) -> str | None:
    """How numbers differ by more than a part of their size, or where they are finite."""
    least = max(_LEAST_SIZE, torch.finfo(dtype).smallest_normal)  # below it, half precision loses bits
    sums: list[torch.Tensor] = []  # per piece: places finite in one only, other infinities, error, size, finite places
    for left, right in parts:
        have, want = left.double(), right.double()
        finite = torch.isfinite(want)
        elsewhere = finite != torch.isfinite(have)
        other = ~finite & (have.nan_to_num() != want.nan_to_num())
        errors, sizes = (torch.where(finite & ~elsewhere, value, 0.0).square().sum() for value in (have - want, want))
        sums.append(torch.stack([elsewhere.sum(), other.sum(), errors, sizes, finite.sum()]))
    places, others, error, size, count = torch.stack(sums).sum(0).tolist()
    if places:
        return "is finite in other places"
    if others:
        return "has other infinities or NaN"
    error, size = error**0.5, size**0.5
    if error > tolerance * max(size, least * count**0.5):
        return f"is off by {error / max(size, 1e-30):.2g} of its size"
    return None
