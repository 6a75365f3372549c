"""One contest for every choice of a build: an engine's tactic, a kernel on a GPU, on the CPU, one of few bits.

Who chooses says what the candidates are, holds them to the oracle (`autotune.oracle`) and times them by a clock
(`autotune.clock`). The autotuner knows whether that is necessary: it asks the timing cache first, records who won
there, and reports it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trt_portable.builder.autotune.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.enums import BuilderFlag, ErrorCodeTRT
from trt_portable.errors import Refusal

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


@contextlib.contextmanager
def building(autotuner: Autotuner) -> Iterator[None]:
    """Makes an autotuner the one that operators ask which run while a build goes on."""
    before = _current.set(autotuner)
    try:
        yield
    finally:
        _current.reset(before)


def current_autotuner() -> Autotuner | None:
    """The autotuner of the build that goes on; None outside of builds."""
    return _current.get()


def tactic_hash(name: str) -> int:
    """Identity of a tactic, or of a kernel, in the timing cache."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
