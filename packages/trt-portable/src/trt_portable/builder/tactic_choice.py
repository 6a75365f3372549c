"""Choosing how an engine executes: the fastest candidate that computes what interpreting computes."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.builder.inductor import TACTICS
from trt_portable.builder.kernel_choice import remembering
from trt_portable.builder.progress_monitor import IProgressMonitor, Phase
from trt_portable.builder.tactics import INTERPRET, PREPACKED, Subject, Tactic, tactic_hash
from trt_portable.builder.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.builder.timing_key import timing_key
from trt_portable.builder.trial import NEVER, Trial
from trt_portable.device import current_device
from trt_portable.enums import BuilderFlag, ErrorCodeTRT, LayerType
from trt_portable.errors import Refusal
from trt_portable.execution.replay import may_record
from trt_portable.fusion.product_choice import NAMES, ONEDNN
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.engine_info import EngineInfo
from trt_portable.plan.weight_table import WeightTable
from trt_portable.reporting import Reporter

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig

_LEAST_PACKED_WEIGHTS: Final = 1 << 14  # fewer fit into a cache however they lie
_PHASE: Final = "Choose tactics"
_PACKABLE: Final = (LayerType.CONVOLUTION.name, LayerType.MATRIX_MULTIPLY.name)


@dataclass(frozen=True)
class Choice:
    """How an engine executes.

    Attributes:
        info: The engine part of the plan, which names the tactic.
        artifacts: What tactics made, for each profile where one of them is faster than everything else.
    """

    info: EngineInfo
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """A way to execute at one profile.

    Attributes:
        tactic: What makes it; None for a program that runs layers.
        is_prepacked: Whether layers that run, at other shapes for instance, use packed weights.
        product_kernels: The fastest kernel of each product with a matrix then.
    """

    tactic: Tactic | None
    is_prepacked: bool
    product_kernels: tuple[str, ...] = ()

    @property
    def layers(self) -> str:
        """How layers run."""
        return PREPACKED if self.is_prepacked else INTERPRET

    @property
    def name(self) -> str:
        """What the plan calls it."""
        return self.layers if self.tactic is None else self.tactic.name

    @property
    def hash(self) -> int:
        """Identity in the timing cache."""
        is_plain = self.tactic is None or not self.is_prepacked
        return tactic_hash(self.name if is_plain else f"{self.name} beside {self.layers}")


def choose_tactic(
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: WeightTable,
    config: IBuilderConfig,
    reporter: Reporter,
    parent: str,
    *,
    tactics: Sequence[Tactic] = TACTICS,
) -> Choice:
    """The fastest way to execute a network that computes what interpreting it computes.

    Candidates are timed at the optimal shapes of each profile; interpreting alone is timed only when the
    application attached a timing cache that is to learn the time. Level 0 times and tries nothing. Whether layers use
    packed weights is decided at the first profile.

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
    found = [tactic for tactic in tactics if tactic.least_level <= level and _is_candidate(tactic, subject, reporter)]
    may_prepack = config.max_num_tactics != 1 and _may_prepack(subject, tensors)
    if config.max_num_tactics > 0:
        found = found[: config.max_num_tactics - 1 - may_prepack]
    if not found and not may_prepack and cache is None:
        return Choice(replace(info, tactic=INTERPRET))
    on_device = {key: tensor.to(device).reshape(-1) for key, tensor in tensors.computed().items()}
    subject = replace(subject, tensors=[on_device[slot.weights] for slot in info.weight_slots])
    if cache is None or config.get_flag(BuilderFlag.DISABLE_TIMING_CACHE):
        cache = ITimingCache()
    environment = (
        f"level {level}",
        str(device),
        "TF32" if info.allows_tf32 else "no TF32",
        _ways_to_run(device),
        *[PREPACKED] * may_prepack,
        *(tactic.name for tactic in found),
    )
    must_know = config.get_flag(BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
    chosen: list[_Candidate] = []
    artifacts: dict[Any, Artifact] = {}
    num_candidates = 1 + may_prepack + len(found)
    num_profiles = len(info.profiles) if found else 1  # layers run alike at all of them
    try:
        with (
            remembering(cache, may_measure=not must_know),
            Phase(config.progress_monitor, _PHASE, parent, num_profiles * num_candidates) as phase,
        ):
            for profile in range(num_profiles):
                key = timing_key(structure, info, tensors, profile, *environment)
                attempt = functools.partial(_attempt, config.progress_monitor, phase, profile)
                trial = Trial(subject, profile, config.avg_timing_iterations, level, reporter, attempt)
                best, artifact = _chosen(trial, found, cache, key, may_prepack=may_prepack, must_know=must_know)
                chosen.append(best)
                if artifact is not None:
                    artifacts.setdefault(artifact.shapes, artifact)
    finally:
        subject.release()
    first = chosen[0]
    info = replace(info, tactic=first.name, prepacked=first.is_prepacked, product_kernels=first.product_kernels)
    return Choice(info, tuple(artifacts.values()))


@contextlib.contextmanager
def _attempt(monitor: IProgressMonitor | None, phase: Phase, profile: int, name: str) -> Iterator[None]:
    """Tells a progress monitor what is tried, and that it was."""
    with Phase(monitor, f"Try {name} at profile {profile}", _PHASE, 1) as trying:
        yield
        trying.step()
    phase.step()


def _is_candidate(tactic: Tactic, subject: Subject, reporter: Reporter) -> bool:
    """Whether a tactic is worth trying; one that cannot say so is not."""
    try:
        return tactic.is_candidate(subject)
    except Exception as error:
        reporter.info(f"tactic {tactic.name}: not available here: {type(error).__name__}: {error}")
        return False


def _ways_to_run(device: torch.device) -> str:
    """What else decides about times on a device: threads, or whether the host starts each kernel by itself."""
    if device.type == "cpu":
        return f"{torch.get_num_threads()} threads"
    return "replayed" if may_record(device) else "direct"


def _may_prepack(subject: Subject, tensors: WeightTable) -> bool:
    """Whether packing weights is worth the time it takes to try."""
    if subject.device.type != "cpu" or subject.info.debug_tensors:
        return False
    specs = [tensors.spec(key) for key in tensors]
    weights = sum(math.prod(shape) for dtype, shape in specs if dtype is torch.float32)
    return weights >= _LEAST_PACKED_WEIGHTS and any(layer["type"] in _PACKABLE for layer in subject.structure["layers"])


def _chosen(
    trial: Trial,
    tactics: Sequence[Tactic],
    cache: ITimingCache,
    key: TimingCacheKey,
    *,
    may_prepack: bool,
    must_know: bool,
) -> tuple[_Candidate, Artifact | None]:
    """The best candidate at one profile, and its artifact; what the cache remembers is not timed again."""
    remembered = cache.query(key)
    if remembered is not None:
        for candidate in _candidates(tactics, may_prepack=may_prepack):
            if candidate.hash == remembered.tacticHash:
                kernels = _remembered_kernels(cache, key) if candidate.is_prepacked else ()
                return _rebuilt(trial, replace(candidate, product_kernels=kernels))
    if must_know:
        raise Refusal(f"the timing cache has no entry {key}", ErrorCodeTRT.INVALID_STATE)
    timed = _raced(trial, tactics) if trial.is_raced else _timed(trial, tactics, may_prepack=may_prepack)
    best = min(timed, key=lambda each: each.milliseconds)  # the first of equals
    if best.milliseconds != NEVER:
        cache._record(key, TimingCacheValue(best.candidate.hash, best.milliseconds))
        for at, name in enumerate(best.candidate.product_kernels):
            cache._record(_product_key(key, at), TimingCacheValue(tactic_hash(name), best.milliseconds))
    return best.candidate, best.artifact


def _remembered_kernels(cache: ITimingCache, key: TimingCacheKey) -> tuple[str, ...]:
    """The kernels of products that a cache remembers with the choice for a network."""
    names = {tactic_hash(name): name for name in NAMES}
    found: list[str] = []
    while (value := cache.query(_product_key(key, len(found)))) is not None:
        found.append(names.get(value.tacticHash, ONEDNN))
    return tuple(found)


def _product_key(key: TimingCacheKey, at: int) -> TimingCacheKey:
    return TimingCacheKey.of(str(key), f"product {at}")


@dataclass(frozen=True)
class _Timed:
    """A candidate with its time, and what its tactic made."""

    candidate: _Candidate
    milliseconds: float
    artifact: Artifact | None = None


def _raced(trial: Trial, tactics: Sequence[Tactic]) -> list[_Timed]:
    """All candidates on a GPU: built first, then timed in turns."""
    trial.begin(tactics)
    built = [(tactic, *made) for tactic in tactics if (made := trial.build(tactic)) is not None]
    plain, *spent = trial.race([(tactic, program) for tactic, _, program in built])
    compiled = [
        _Timed(_Candidate(tactic, is_prepacked=False), milliseconds, artifact)
        for (tactic, artifact, _), milliseconds in zip(built, spent, strict=True)
    ]
    return [_Timed(_Candidate(None, is_prepacked=False), plain), *compiled]


def _timed(trial: Trial, tactics: Sequence[Tactic], *, may_prepack: bool) -> Iterator[_Timed]:
    """All candidates on the CPU, each timed when it is there; tactics go with the faster way to run layers."""
    layers = _Candidate(None, is_prepacked=False)
    plain = trial.time_interpreted()
    packed, kernels = trial.time_prepacked() if may_prepack else (NEVER, ())
    plain, packed = trial.compare_layers(plain, packed)
    yield _Timed(layers, plain)
    if packed < plain:
        layers = _Candidate(None, is_prepacked=True, product_kernels=kernels)
        yield _Timed(layers, packed)
    for tactic in tactics:
        built = trial.build(tactic)
        if built is not None:
            artifact, program = built
            yield _Timed(replace(layers, tactic=tactic), trial.time(tactic, program), artifact)


def _candidates(tactics: Sequence[Tactic], *, may_prepack: bool) -> Iterator[_Candidate]:
    for tactic in (None, *tactics):
        for is_prepacked in (False, True)[: 1 + may_prepack]:
            yield _Candidate(tactic, is_prepacked)


def _rebuilt(trial: Trial, candidate: _Candidate) -> tuple[_Candidate, Artifact | None]:
    """A candidate with its artifact; without its tactic where that fails now."""
    if candidate.tactic is None:
        return candidate, None
    built = trial.build(candidate.tactic)
    return (replace(candidate, tactic=None), None) if built is None else (candidate, built[0])
