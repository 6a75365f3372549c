"""Choosing how an engine executes: candidates are built, held to the interpreter, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.builder.inductor import TACTICS
from trt_portable.builder.progress_monitor import Phase
from trt_portable.builder.tactics import INTERPRET, Subject, Tactic, tactic_hash
from trt_portable.builder.timing import first_difference, milliseconds
from trt_portable.builder.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.builder.timing_key import timing_key
from trt_portable.device import current_device
from trt_portable.enums import BuilderFlag, ErrorCodeTRT
from trt_portable.error_recorder import Reporter
from trt_portable.errors import PortableError, Refusal
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.engine_info import EngineInfo
from trt_portable.runtime.launch_list import CompiledProgram

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig

_BUDGET_SECONDS: Final = {0: 0.0, 1: 0.0, 2: 0.0, 3: 120.0, 4: 600.0, 5: 1800.0}
"""No further candidate is begun after that time; what was begun is finished."""


@dataclass(frozen=True)
class Choice:
    """How an engine executes.

    Attributes:
        info: The engine part of the plan, which names the tactic.
        artifacts: What tactics made, for each profile where one of them is faster than interpreting.
    """

    info: EngineInfo
    artifacts: tuple[Artifact, ...] = ()


def choose_tactic(
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: Mapping[str, torch.Tensor],
    config: IBuilderConfig,
    reporter: Reporter,
    parent: str,
    *,
    tactics: Sequence[Tactic] = TACTICS,
) -> Choice:
    """The fastest way to execute a network that computes what interpreting it computes.

    Candidates are timed at the optimal shapes of each profile; interpreting alone is timed only when the
    application attached a timing cache that is to learn the time. Level 0 times and tries nothing.

    Raises:
        Refusal: The timing cache lacks an entry although ERROR_ON_TIMING_CACHE_MISS is set.
        BuildCancelled: The progress monitor said so.
    """
    level = config.builder_optimization_level
    cache = config.get_timing_cache()
    if level == 0:
        return Choice(replace(info, tactic=INTERPRET))
    device = current_device()
    subject = Subject(structure, info, (), device)
    found = [tactic for tactic in tactics if tactic.least_level <= level and tactic.is_candidate(subject)]
    if config.max_num_tactics > 0:
        found = found[: config.max_num_tactics - 1]
    if not found and cache is None:
        return Choice(replace(info, tactic=INTERPRET))
    on_device = {key: tensor.to(device).reshape(-1) for key, tensor in tensors.items()}
    subject = replace(subject, tensors=[on_device[slot.weights] for slot in info.weight_slots])
    if cache is None or config.get_flag(BuilderFlag.DISABLE_TIMING_CACHE):
        cache = ITimingCache()
    environment = (f"level {level}", str(device), *(tactic.name for tactic in found))
    artifacts: dict[Any, Artifact] = {}
    names = []
    with Phase(config.progress_monitor, "Choose tactics", parent, len(info.profiles) * (len(found) + 1)) as phase:
        for profile in range(len(info.profiles)):
            key = timing_key(structure, info, tensors, profile, *environment)
            trial = _Trial(subject, profile, config.avg_timing_iterations, level, reporter, phase.step)
            must_know = config.get_flag(BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
            name, artifact = _chosen(trial, found, cache, key, must_know=must_know)
            names.append(name)
            if artifact is not None:
                artifacts.setdefault(artifact.shapes, artifact)
    return Choice(replace(info, tactic=names[0]), tuple(artifacts.values()))


def _chosen(
    trial: _Trial, found: Sequence[Tactic], cache: ITimingCache, key: TimingCacheKey, *, must_know: bool
) -> tuple[str, Artifact | None]:
    """The best tactic's name and artifact at one profile; what the cache remembers is not timed again."""
    remembered = cache.query(key)
    if remembered is not None:
        if remembered.tacticHash == tactic_hash(INTERPRET):
            return INTERPRET, None
        for tactic in found:
            if tactic_hash(tactic.name) == remembered.tacticHash:
                artifact = trial.build(tactic)
                return (INTERPRET, None) if artifact is None else (tactic.name, artifact)
    if must_know:
        raise Refusal(f"the timing cache has no entry {key}", ErrorCodeTRT.INVALID_STATE)
    name, best, least = INTERPRET, None, trial.time_interpreted()
    for tactic in found:
        artifact = trial.build(tactic)
        if artifact is None:
            continue
        spent = trial.time(artifact)
        if spent < least:
            name, best, least = tactic.name, artifact, spent
    if least != float("inf"):
        cache._record(key, TimingCacheValue(tactic_hash(name), least))
    return name, best


class _Trial:
    """Builds and times tactics at one profile."""

    def __init__(
        self,
        subject: Subject,
        profile: int,
        iterations: int,
        level: int,
        reporter: Reporter,
        step: Callable[[], None],
    ) -> None:
        self._subject = subject
        self._profile = profile
        self._iterations = iterations
        self._until = time.monotonic() + _BUDGET_SECONDS[level]
        self._reporter = reporter
        self._step = step
        self._values = subject.example_inputs(profile)

    def time_interpreted(self) -> float:
        """Milliseconds of an interpreted run; infinite when the network cannot run on example inputs."""
        self._step()
        try:
            program = self._subject.interpreted()
            return milliseconds(program, self._values, self._subject.device, self._iterations)
        except PortableError:
            return float("inf")

    def build(self, tactic: Tactic) -> Artifact | None:
        """What a tactic makes, if it computes what it should; None, with a note, whatever goes wrong."""
        self._step()
        if time.monotonic() > self._until:
            self._reporter.verbose(f"tactic {tactic.name}: not tried, the time for tactics is spent")
            return None
        started = time.monotonic()
        try:
            artifact = tactic.build(self._subject, self._profile)
            if artifact is None:
                return None
            difference = self._difference(artifact)
        except Exception as error:  # a compiler may fail in any way, and an engine needs none
            self._reporter.info(f"tactic {tactic.name}: not available here: {type(error).__name__}: {error}")
            return None
        if difference is not None:
            self._reporter.warning(f"tactic {tactic.name} is left out, for it computes something else: {difference}")
            return None
        self._reporter.verbose(f"tactic {tactic.name}: built in {time.monotonic() - started:.1f} s")
        return artifact

    def _difference(self, artifact: Artifact) -> str | None:
        with torch.inference_mode():
            expected = self._subject.interpreted().run(self._values)
            return first_difference(self._load(artifact).run(self._values), expected)

    def time(self, artifact: Artifact) -> float:
        """Milliseconds of a run of an artifact; infinite when it fails."""
        try:
            return milliseconds(self._load(artifact), self._values, self._subject.device, self._iterations)
        except Exception as error:
            self._reporter.info(f"tactic {artifact.tactic}: cannot be timed: {error}")
            return float("inf")

    def _load(self, artifact: Artifact) -> CompiledProgram:
        return CompiledProgram(artifact, self._subject.weights(), self._subject.device)
