"""One contest for every choice of a build: an engine's tactic, a kernel on a GPU, on the CPU, one of few bits.

Who chooses says what the candidates are, holds them to the oracle (`SameResult`) and times them by a clock
(`autotune.clock`). The autotuner knows whether that is necessary: it asks the timing cache first, records who won
there, and reports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from trt_core.temporary import with_value
from trt_portable.builder.autotune.clock import race_on_device
from trt_portable.builder.autotune.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.enums import BuilderFlag, ErrorCodeTRT
from trt_portable.errors import Refusal
from trt_portable.execution.replay import record_run
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig
    from trt_portable.reporting import Reporter


NEVER: Final = float("inf")
"""The time of what cannot run, or computes something else."""


@dataclass(frozen=True)
class Winner:
    """Who won a contest.

    Attributes:
        name: Of the candidate.
        milliseconds: Its time; `NEVER` where none could run.
        is_remembered: Whether the timing cache said so, and nothing was measured.
    """

    name: str
    milliseconds: float
    is_remembered: bool


class Autotuner:
    """Chooses among candidates, by measurement or from memory.

    Args:
        cache: Learns who won, and spares measuring it again.
        may_measure: Whether what the cache does not know may be measured.
        report: Hears of every contest who won, and how long each candidate took.

    Attributes:
        may_measure: The same.
    """

    def __init__(
        self, cache: ITimingCache, *, may_measure: bool = True, report: Callable[[str], None] = lambda text: None
    ) -> None:
        self.may_measure = may_measure
        self._cache = cache
        self._report = report

    @staticmethod
    def of(config: IBuilderConfig, reporter: Reporter) -> Autotuner:
        """The autotuner of a build, with the timing cache that its configuration names."""
        cache = config.get_timing_cache()
        if cache is None or config.get_flag(BuilderFlag.DISABLE_TIMING_CACHE):
            cache = ITimingCache()
        may_measure = not config.get_flag(BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        return Autotuner(cache, may_measure=may_measure, report=reporter.verbose)

    def remembered(self, key: TimingCacheKey, names: Collection[str]) -> Winner | None:
        """Who won before, if it is one of these candidates."""
        found = self._cache.query(key)
        if found is None:
            return None
        name = next((name for name in names if tactic_hash(name) == found.tacticHash), None)
        return None if name is None else Winner(name, found.timingMSec, is_remembered=True)

    def record(self, key: TimingCacheKey, winner: Winner) -> None:
        """Remembers who won, unless nobody could run."""
        if winner.milliseconds != NEVER:
            self._cache._record(key, TimingCacheValue(tactic_hash(winner.name), winner.milliseconds))

    def choose(
        self, subject: str, key: TimingCacheKey, names: Collection[str], contest: Callable[[], Mapping[str, float]]
    ) -> Winner:
        """Who is the fastest.

        Args:
            subject: What is chosen, for messages.
            key: All that decides about the times.
            names: Of the candidates.
            contest: Times them: milliseconds by name, `NEVER` for what cannot run, and one name at least.

        Raises:
            Refusal: The cache does not know, and nothing may be measured.
        """
        known = self.remembered(key, names)
        if known is not None:
            return known
        if not self.may_measure:
            raise Refusal(f"the timing cache has no entry {key}", ErrorCodeTRT.INVALID_STATE)
        winner = self.judge(subject, contest())
        self.record(key, winner)
        return winner

    def judge(
        self, subject: str, times: Mapping[str, float], *, margin: float = 1.0, preferred: Sequence[str] = ()
    ) -> Winner:
        """Who won a contest that was held; the first one of those that take as long as each other.

        Args:
            subject: What was chosen, for messages.
            times: Milliseconds by name, one name at least.
            margin: Candidates take as long as each other where the fastest takes that part of their time, or more.
            preferred: Their order, if it is not that of `times`.
        """
        least = min(times.values())
        equals = [name for name, spent in times.items() if spent * margin <= least]
        best = min(equals, key=preferred.index) if preferred else equals[0]
        spent = ", ".join(f"{name} {time:.4f} ms" for name, time in times.items() if time != NEVER)
        self._report(f"{subject}: {best}, of {spent}" if spent else f"{subject}: {best}, untimed")
        return Winner(best, times[best], is_remembered=False)


_current: ContextVar[Autotuner | None] = ContextVar("the autotuner of the build that goes on", default=None)
_is_trying: ContextVar[bool] = ContextVar("whether kernels are tried, and not measured", default=False)


def building(autotuner: Autotuner) -> contextlib.AbstractContextManager[Autotuner]:
    """Makes an autotuner the one that operators ask which run while a build goes on."""
    return with_value(_current, autotuner)


def trying_all() -> contextlib.AbstractContextManager[bool]:
    """Has every kernel that may be the fastest started once, and none measured: operands need no data."""
    return with_value(_is_trying, True)


def is_trying() -> bool:
    """Whether `trying_all` holds."""
    return _is_trying.get()


def tactic_hash(name: str) -> int:
    """Identity of a tactic, or of a kernel, in the timing cache."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


# Relative to the size of an output. Products in another order, TF32 and 10 or 7 bits of mantissa differ by less;
# a wrong kernel by more.
_TOLERANCES: Final = {torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
_ROUNDED: Final = {torch.float8_e4m3fn: 0.1, torch.float8_e5m2: 0.2}
"""The same for outputs of types that nothing is computed in: numbers between two of theirs may go either way."""
_LEAST_SIZE: Final = 1e-6  # of an element: smaller numbers are what is left where large ones cancel
_PIECE: Final = 1 << 22  # elements
_LEAST_EQUAL: Final = 0.99  # of integers: a maximum among equals may be another one


def first_difference(
    found: Sequence[Value], expected: Sequence[Value], computed_in: Collection[torch.dtype] = (), rounding: float = 0.0
) -> str | None:
    """What is wrong with outputs, in words; None when they agree as far as types allow.

    Args:
        found: What a candidate makes.
        expected: What it should make.
        computed_in: Types of what the outputs are computed from: a float32 that comes from half precision is no better.
        rounding: By what part of their size outputs differ where the same is computed with other rounding.
    """
    within = max(rounding, *(_TOLERANCES.get(dtype, 0.0) for dtype in computed_in), 0.0)
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


def largest_difference(found: Sequence[Value], expected: Sequence[Value]) -> float:
    """By what part of their size outputs differ, the one that differs most; 0 for those of integers, or not finite."""
    parts = [0.0]
    for have, want in zip(map(as_tensor, found), map(as_tensor, expected), strict=True):
        if want.is_floating_point() and want.numel():
            error, size = (value.float().norm().item() for value in (have - want, want))
            parts.append(error / size if 0 < size < math.inf and math.isfinite(error) else 0.0)
    return max(parts)


class SameResult:
    """Holds what was written to what was written first.

    Args:
        result: Where.
    """

    def __init__(self, result: torch.Tensor) -> None:
        self._result = result
        self._wanted: torch.Tensor | None = None

    def __call__(self) -> bool:
        """Whether the result is what it was, and gives it other values."""
        if self._wanted is None:
            self._wanted = self._result.clone()
        is_right = first_difference([self._result], [self._wanted]) is None
        self._result.fill_(torch.nan)
        return is_right


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
    if is_trying():
        for start in starts.values():
            with contextlib.suppress(Exception):  # whoever runs it in earnest hears of it
                start()
        return first
    if len(starts) == 1:
        return first
    key = TimingCacheKey.of("kernel", str(device), *map(repr, form), *starts)
    build = _current.get()
    winner = (None if build is None else build.remembered(key, starts)) or _process.remembered(key, starts)
    if winner is None:
        if torch.cuda.is_current_stream_capturing() or not (build is None or build.may_measure):
            return first
        runs = runnable(starts, device, replayed=replayed, is_right=is_right)
        if not runs:
            return first
        winner = (build or _process).judge(" ".join(map(str, form)), race_on_device(runs))
    for autotuner in (_process, build):
        if autotuner is not None:
            autotuner.record(key, winner)
    return winner.name


def runnable(
    starts: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    replayed: bool,
    is_right: Callable[[], bool] = lambda: True,
) -> dict[str, Callable[[], object]]:
    """What starts each kernel of a GPU that runs, and computes the right thing; arguments are those of `fastest`."""
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
