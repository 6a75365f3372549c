"""Choosing how an engine executes: the fastest candidate that computes what interpreting computes.

Which kernel computes each product with a matrix on the host is measured when the product runs for the first time.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from trt_core.cached_property import cached_property
from trt_portable.builder.autotune.autotuner import NEVER, Autotuner, building, first_difference, largest_difference
from trt_portable.builder.autotune.clock import (
    FAR,
    ColdWeights,
    as_engines_run,
    host_clock,
    milliseconds,
    race,
    race_milliseconds,
    race_ways,
    time_layers,
)
from trt_portable.builder.autotune.timing_cache import ITimingCache, TimingCacheKey, timing_key
from trt_portable.builder.config import IBuilderConfig, IProgressMonitor, Phase
from trt_portable.builder.inductor.tactic import TACTICS
from trt_portable.builder.tactic import INTERPRET, LIBRARY_TACTICS, PREPACKED, NotApplicable, Subject, Tactic
from trt_portable.device_choice import current_device
from trt_portable.enums import LayerType
from trt_portable.errors import PortableError, is_out_of_memory
from trt_portable.execution.launch_list import CompiledProgram, with_plans
from trt_portable.execution.launcher import Executable, WithoutTF32
from trt_portable.execution.program import LayerFailure, PackingCompute, Program, forget_packed
from trt_portable.execution.replay import may_record
from trt_portable.fusion.epilogues import LAYERS, MKL, NAMES, ONEDNN, RECURRENT, Ways
from trt_portable.libraries import NAMES as LIBRARIES
from trt_portable.libraries.library_program import LibraryProgram
from trt_portable.network.serialization import leaf_entries
from trt_portable.optimization_profile import Range
from trt_portable.plan.artifact import Artifact, Varying
from trt_portable.plan.engine_info import EngineInfo, Shape
from trt_portable.plan.weight_store import WeightStore
from trt_portable.plan.weight_table import WeightTable
from trt_portable.reporting import Reporter
from trt_portable.shape_tensors import Value, as_tensor, operand

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer


MadeProgram: TypeAlias = "CompiledProgram | LibraryProgram"
"""What runs an artifact."""
_LEAST_PACKED_WEIGHTS: Final = 1 << 14  # fewer fit into a cache however they lie
_PHASE: Final = "Choose tactics"
_RANGES: Final = ("range", "range of size 1")
"""What is compiled beside the optimal shapes: the whole range, and what is left of it at a batch of 1."""
_PACKABLE: Final = (LayerType.CONVOLUTION.name, LayerType.MATRIX_MULTIPLY.name, "LINEAR")


@dataclass(frozen=True)
class Choice:
    """How an engine executes.

    Attributes:
        info: The engine part of the plan, which names the tactic.
        artifacts: What tactics made, for each profile where one of them is faster than everything else.
        kernels: The fastest kernel of each product with a matrix, by the place of its layer among all, as weights
            number them; where layers run with packed weights.
    """

    info: EngineInfo
    artifacts: tuple[Artifact, ...] = ()
    kernels: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Candidate:
    """A way to execute at one profile.

    Attributes:
        tactic: What makes it; None for a program that runs layers.
        is_prepacked: Whether layers that run, at other shapes for instance, use packed weights.
        kernels: The fastest kernel of each product with a matrix then, by the place of its layer.
    """

    tactic: Tactic | None
    is_prepacked: bool
    kernels: Mapping[int, str] = field(default_factory=dict)

    @property
    def layers(self) -> str:
        """How layers run."""
        return PREPACKED if self.is_prepacked else INTERPRET

    @property
    def name(self) -> str:
        """What the plan calls it."""
        return self.layers if self.tactic is None else self.tactic.name

    @property
    def label(self) -> str:
        """Its name in the timing cache."""
        is_plain = self.tactic is None or not self.is_prepacked
        return self.name if is_plain else f"{self.name} beside {self.layers}"


def choose_tactic(
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: WeightTable,
    config: IBuilderConfig,
    reporter: Reporter,
    parent: str,
    *,
    tactics: Sequence[Tactic] = (*TACTICS, *LIBRARY_TACTICS),
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
    on_device = {key: tensor.to(device).reshape(-1) for key, tensor in tensors.computed(device).items()}
    subject = replace(subject, tensors=[on_device[slot.weights] for slot in info.weight_slots])
    autotuner = Autotuner.of(config, reporter)
    environment = (
        f"level {level}",
        str(device),
        "TF32" if info.allows_tf32 else "no TF32",
        _ways_to_run(device),
        *[PREPACKED] * may_prepack,
        *(tactic.identity for tactic in found),
    )
    chosen: list[_Candidate] = []
    artifacts: dict[Any, Artifact] = {}
    num_candidates = 1 + may_prepack + len(found)
    num_profiles = len(info.profiles) if found else 1  # layers run alike at all of them
    try:
        with (
            building(autotuner),
            Phase(config.progress_monitor, _PHASE, parent, num_profiles * num_candidates) as phase,
        ):
            for profile in range(num_profiles):
                key = timing_key(structure, info, tensors, profile, *environment)
                attempt = functools.partial(_attempt, config.progress_monitor, phase, profile)
                trial = Trial(subject, profile, config.avg_timing_iterations, level, reporter, attempt)
                best, artifact = _chosen(trial, found, autotuner, key, may_prepack=may_prepack)
                chosen.append(best)
                if artifact is not None:
                    artifacts.setdefault((artifact.shapes, artifact.varying), artifact)
                    assert best.tactic is not None
                    for name in _RANGES:
                        ranged = _chosen_for_range(trial, best.tactic, autotuner, TimingCacheKey.of(str(key), name))
                        narrow = None if ranged is None else _left_out(subject.info, profile, ranged)
                        if ranged is not None:
                            artifacts.setdefault((ranged.shapes, ranged.varying), ranged)
                        if narrow is None:
                            break
                        trial = trial.narrowed(narrow)
    finally:
        subject.release()
    first = chosen[0]
    info = replace(info, tactic=first.name, prepacked=first.is_prepacked)
    return Choice(info, tuple(artifacts.values()), first.kernels)


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
    except NotApplicable as reason:
        reporter.info(f"tactic {tactic.name}: left out: {reason}")
        return False
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
    trial: Trial, tactics: Sequence[Tactic], autotuner: Autotuner, key: TimingCacheKey, *, may_prepack: bool
) -> tuple[_Candidate, Artifact | None]:
    """The best candidate at one profile, and its artifact; what the cache remembers is not timed again."""
    candidates = {each.label: each for each in _candidates(tactics, may_prepack=may_prepack)}
    timed: dict[str, _Timed] = {}

    def contest() -> dict[str, float]:
        found = _raced(trial, tactics) if trial.is_raced else _timed(trial, tactics, may_prepack=may_prepack)
        timed.update((each.candidate.label, each) for each in found)
        return {label: each.milliseconds for label, each in timed.items()}

    winner = autotuner.choose(f"tactic at profile {trial.profile}", key, candidates, contest)
    if winner.is_remembered:
        candidate = candidates[winner.name]
        places = range(trial.num_layers if candidate.is_prepacked else 0)
        known = {at: autotuner.remembered(_product_key(key, at), NAMES) for at in places}
        kernels = {at: winner.name for at, winner in known.items() if winner is not None}
        return _rebuilt(trial, replace(candidate, kernels=kernels))
    best = timed[winner.name]
    for at, name in best.candidate.kernels.items():
        autotuner.record(_product_key(key, at), replace(winner, name=name))
    return best.candidate, best.artifact


def _chosen_for_range(trial: Trial, tactic: Tactic, autotuner: Autotuner, key: TimingCacheKey) -> Artifact | None:
    """What serves the other shapes of a profile, where a tactic makes it and it is faster than the layers there."""
    known = autotuner.remembered(key, (INTERPRET, tactic.name))
    if known is None and not autotuner.may_measure:
        return None
    made = trial.build_range(tactic) if known is None or known.name == tactic.name else None
    if made is None or known is not None:
        return None if made is None else made[0]
    artifact, program = made
    subject = f"sizes of profile {trial.profile}"
    winner = autotuner.choose(subject, key, (INTERPRET, tactic.name), lambda: trial.race_range(tactic, program))
    return artifact if winner.name == tactic.name else None


def _left_out(info: EngineInfo, profile: int, ranged: Artifact) -> EngineInfo | None:
    """An engine for a size of 1 that a compiler left out of a range because it compiles it apart; None without one.

    Where several axes have it, the first one counts, as a batch does.
    """
    inputs = [tensor for tensor in info.io if tensor.is_input]
    allowed = info.profiles[profile].shapes
    begins_late = [
        each for each in ranged.varying if each.least == 2 and allowed[inputs[each.source].name].min[each.axis] == 1
    ]
    axis = min((each.axis for each in begins_late), default=None)
    if axis is None:
        return None
    shapes = dict(allowed)
    for name in {inputs[each.source].name for each in begins_late if each.axis == axis}:
        extents = (
            (*each[:axis], 1, *each[axis + 1 :]) for each in (allowed[name].min, allowed[name].opt, allowed[name].max)
        )
        shapes[name] = Range(*extents)
    profiles = list(info.profiles)
    profiles[profile] = replace(profiles[profile], shapes=shapes)
    return replace(info, profiles=tuple(profiles))


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
    packed, kernels = trial.time_prepacked() if may_prepack else (NEVER, {})
    plain, packed = trial.compare_layers(plain, packed)
    yield _Timed(layers, plain)
    if packed < plain:
        layers = _Candidate(None, is_prepacked=True, kernels=kernels)
        yield _Timed(layers, packed)
    least = min(plain, packed)
    foreign: dict[Tactic, tuple[Artifact, MadeProgram]] = {}
    for tactic in tactics:
        built = trial.build(tactic) if least >= tactic.least_milliseconds else None
        if built is None:
            continue
        if tactic.name in LIBRARIES:
            foreign[tactic] = built
            trial.drop_slow(foreign, least)
        else:
            yield _Timed(replace(layers, tactic=tactic), trial.time(tactic, built[1]), built[0])
    programs = {tactic: program for tactic, (_, program) in foreign.items()}
    for tactic, spent in trial.race_libraries(programs, least, is_prepacked=layers.is_prepacked).items():
        yield _Timed(replace(layers, tactic=tactic), spent, foreign[tactic][0])


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


_BUDGET_SECONDS: Final = {0: 0.0, 1: 0.0, 2: 0.0, 3: 120.0, 4: 600.0, 5: 1800.0}
"""No further candidate is begun after that time; what was begun is finished."""
RACE: Final = "all, in turns"
"""What is tried last on a GPU."""
_FEW_BYTES: Final = 64 << 20
"""Weights on the CPU up to which a model may be in memory twice: then programs are timed as they run. Larger ones with
packed weights are timed layer by layer; the small layers of a MobileNet would find in caches then what they do not find
there in a run."""
_MOST_RUNS: Final = 15
_CLEAR_GAIN: Final = 0.9
_CLEAR_LOSS: Final = 1.33
"""Packed weights that take between these parts of the plain layers' time are timed again: of two measurements, one
after the other, work of others may disturb only one, and packing gains as a rule."""
_TURNS: Final = 2
_WORTH_A_LIBRARY: Final = 0.97
"""A library takes that part of the layers' time at most: it takes longer to load, and more memory."""
_CLEAR_LIBRARY: Final = 0.85
"""A library whose first calls take that part of the layers' time has won, however these were timed."""
_GLANCES: Final = 2
_OF_ANY_SIZE: Final = ("_interpreted", "_weights")
"""What trials for other sizes need not make anew."""
_MOST_ROUNDING: Final = 0.5
"""Outputs that differ by a larger part of their size are wrong, whatever rounding makes of a network."""

_MOST_TIMES: Final = 8
"""Sizes of a range are tried up to so many times the optimal ones: larger ones may not fit into memory."""

_MOST_NEAR: Final = 64
"""Sizes that are tried in place of an end that is not served."""


class Trial:
    """Builds and times candidates.

    Args:
        subject: What is built.
        profile: The profile whose optimal shapes count.
        iterations: Samples to take of each candidate.
        level: The optimization level, which bounds the time.
        reporter: Hears what became of each candidate.
        attempt: What is entered for each candidate, by its name, as long as it is tried.
    """

    def __init__(
        self,
        subject: Subject,
        profile: int,
        iterations: int,
        level: int,
        reporter: Reporter,
        attempt: Callable[[str], AbstractContextManager[object]],
    ) -> None:
        self._subject = subject
        self.profile = profile
        self._iterations = iterations
        self._level = level
        self._until = time.monotonic() + _BUDGET_SECONDS[level]
        self._is_part = False
        self._reporter = reporter
        self._attempt = attempt
        self._prepacked: Program | None = None
        self._glances: dict[str, float] = {}

    def narrowed(self, info: EngineInfo) -> Trial:
        """Builds and times for a part of the profile's sizes, until the time of this one is spent.

        Args:
            info: The engine with that part alone.
        """
        subject = replace(self._subject, info=info)
        made = Trial(subject, self.profile, self._iterations, self._level, self._reporter, self._attempt)
        made._until, made._is_part = self._until, True
        made.__dict__.update({name: found for name, found in self.__dict__.items() if name in _OF_ANY_SIZE})
        return made

    def time_interpreted(self) -> float:
        """Milliseconds of an interpreted run on the CPU; `NEVER` when the network cannot run on example inputs."""
        with self._attempt(INTERPRET):
            try:
                _ = self._expected
                return self._milliseconds(self._interpreted)
            except Exception as error:
                if not (isinstance(error, PortableError) or is_out_of_memory(error)):  # so large are the example inputs
                    raise
                self._reporter.info(f"tactic {INTERPRET}: cannot be timed: {error}")
                return NEVER

    @property
    def num_layers(self) -> int:
        """How many layers there are, those inside of others too."""
        return sum(1 for _ in leaf_entries(self._subject.structure["layers"]))

    def time_prepacked(self) -> tuple[float, dict[int, str]]:
        """Milliseconds of a run with weights packed, and the fastest kernel of each product by the place of its layer.

        `NEVER`, and no kernels, where nothing is to pack, or something goes wrong.
        """
        with self._attempt(PREPACKED):
            try:
                note = self._reporter.verbose
                products = ProductRace(self._cold_weights, note, Autotuner(ITimingCache({}), report=note))
                made = self._subject.prepacked(products)
                if made is None:
                    return NEVER, {}
                self._prepacked, layers = made
                found, spent = self._run_prepacked(self._prepacked)
                kernels = products.names(layers)
                counts = Counter(kernels.values())
                self._reporter.verbose(f"tactic {PREPACKED}: {spent:.4f} ms, products by {dict(counts)}")
                return (spent, kernels) if self._is_right(PREPACKED, found) else (NEVER, {})
            except Exception as error:  # whatever goes wrong, the layers themselves can still run
                self._reporter.info(f"tactic {PREPACKED}: not available here: {type(error).__name__}: {error}")
                return NEVER, {}

    def compare_layers(self, plain: float, packed: float) -> tuple[float, float]:
        """Tells the layers as they are and with packed weights apart where they seem to take about as long.

        Then they are timed once more, in turns, so that other work on the machine disturbs both.

        Args:
            plain: Milliseconds of the layers as they are, as measured first.
            packed: The same with packed weights.

        Returns:
            Milliseconds of each.
        """
        if self._prepacked is None or not plain * _CLEAR_GAIN < packed < plain * _CLEAR_LOSS:
            return plain, packed
        try:
            plain, packed = self._in_turns(self._prepacked)
        except Exception as error:
            self._reporter.info(f"tactic {PREPACKED}: cannot be timed again: {type(error).__name__}: {error}")
            return plain, NEVER
        self._reporter.verbose(f"tactics {INTERPRET} and {PREPACKED}, in turns: {plain:.4f} and {packed:.4f} ms")
        return plain, packed

    def _in_turns(self, prepacked: Program) -> tuple[float, float]:
        """Milliseconds of the layers as they are and with packed weights."""
        if self._is_small:
            runs = [as_engines_run(each, self._values, self._subject.device) for each in (self._interpreted, prepacked)]
            plain, packed = race(runs, lambda: None, self._iterations, clock=host_clock())
            return plain * 1e3, packed * 1e3
        turns = [(self._milliseconds(self._interpreted), self._run_prepacked(prepacked)[1]) for _ in range(_TURNS)]
        return min(plain for plain, _ in turns), min(packed for _, packed in turns)

    def begin(self, tactics: Sequence[Tactic]) -> None:
        """Lets tactics begin what goes on by itself, while the layers run for the first time, which takes long too."""
        try:
            for tactic in tactics:
                tactic.begin()
            _ = self._expected
        except Exception as error:  # a tactic that cannot begin says so when it is built
            self._reporter.verbose(f"tactics: {type(error).__name__}: {error}")

    def build(self, tactic: Tactic) -> tuple[Artifact, MadeProgram] | None:
        """What a tactic makes, if it computes what it should; None, with a note, whatever goes wrong."""
        with self._attempt(tactic.name):
            return self._build(tactic)

    def _build(self, tactic: Tactic) -> tuple[Artifact, MadeProgram] | None:
        if time.monotonic() > self._until:
            self._reporter.verbose(f"tactic {tactic.name}: not tried, the time for tactics is spent")
            return None
        started = time.monotonic()
        try:
            artifact = tactic.build(self._subject, self.profile)
            if artifact is None:
                return None
            if artifact.shapes != self._subject.input_shapes(self.profile):
                raise ValueError(f"it is for inputs of the shapes {artifact.shapes}")
            program = self._program_of(artifact)
            wanted = self._expected  # of inputs as they are now
            if tactic.name in LIBRARIES and not any(bool(as_tensor(value).nan_to_num().any()) for value in wanted):
                raise ValueError("all results of example inputs are 0, so nothing shows whether it computes the same")
            with torch.inference_mode():
                found = program.run(self._subject.with_own_updates(self._values))
                is_right = self._keeps_inputs(tactic.name) and self._is_right(tactic.name, found)
                is_right = is_right and (not artifact.varying or self._is_right_at_ends(tactic, program))
        except (Exception, SystemExit) as error:  # a compiler may fail in any way, and an engine needs none
            self._tell_failure(tactic, error)
            self.__dict__.pop("_values", None)  # it may have written to them
            return None
        self._reporter.verbose(f"tactic {tactic.name}: built in {time.monotonic() - started:.1f} s")
        return (artifact, program) if is_right else None

    def _tell_failure(self, tactic: Tactic, error: BaseException, sizes: str = "") -> None:
        """Says that a tactic failed: as a warning where that makes an engine several times slower."""
        what = f"tactic {tactic.name}: not available here{sizes}: {type(error).__name__}: {error}"
        if self._subject.device.type == "cuda" and tactic.name not in LIBRARIES:
            where = " at other sizes than the optimal ones" if sizes else ""
            how = f"layers are interpreted in its place{where}, which starts a kernel for each step"
            self._reporter.warning(f"{what}; {how}")
        else:
            self._reporter.info(what)

    def _program_of(self, artifact: Artifact) -> MadeProgram:
        """What runs an artifact."""
        if artifact.tactic not in LIBRARIES:
            return CompiledProgram(artifact, self._weights, self._interpreted, self._subject.device)
        return LibraryProgram(artifact, self._subject.structure, self._subject.info, self._weights)

    @property
    def is_raced(self) -> bool:
        """Whether candidates are timed together, by `race`; on the CPU each is timed when it is there."""
        return self._subject.device.type != "cpu"

    def race(self, programs: Sequence[tuple[Tactic, MadeProgram]]) -> list[float]:
        """Times interpreting and what tactics made, in turns and as the engine would run them.

        Returns:
            Milliseconds of an interpreted run, and of each program; `NEVER` for what fails.
        """
        names = [INTERPRET, *(tactic.name for tactic, _ in programs)]
        self.__dict__.pop("_expected", None)  # all are right, and each takes memory for outputs now
        with self._attempt(RACE):
            executables: list[Executable] = [self._interpreted, *(program for _, program in programs)]
            found = race_milliseconds(
                [self._as_allowed(each) for each in executables], self._values, self._subject.device, self._iterations
            )
        for name, spent in zip(names, found, strict=True):
            if isinstance(spent, Exception):
                self._reporter.info(f"tactic {name}: cannot be timed: {spent}")
            else:
                self._reporter.verbose(f"tactic {name}: {spent:.4f} ms")
        return [NEVER if isinstance(spent, Exception) else spent for spent in found]

    def build_range(self, tactic: Tactic) -> tuple[Artifact, MadeProgram] | None:
        """What a tactic makes for a range of shapes, if it computes what it should at the ends; None, with a note."""
        if time.monotonic() > self._until:
            return None
        allowed = [
            self._subject.info.allowed_shape(each, self.profile) for each in self._subject.info.io if each.is_input
        ]
        if all(each.min == each.max for each in allowed):
            return self._build(tactic) if self._is_part else None
        started = time.monotonic()
        try:
            artifact = tactic.build_range(self._subject, self.profile)
            if artifact is None:
                return None
            program = self._program_of(artifact)
            if not self._is_right_for_all(tactic, program):
                artifact = _from_two(artifact)
                program = self._program_of(artifact)
                if not self._is_right_for_all(tactic, program):
                    return None
        except (Exception, SystemExit) as error:  # a compiler may fail in any way, and an engine needs none
            self._tell_failure(tactic, error, " for a range")
            return None
        spans = ", ".join(f"{each.least}..{each.most}" for each in artifact.varying)
        self._reporter.verbose(f"tactic {tactic.name}: built for {spans} in {time.monotonic() - started:.1f} s")
        return artifact, program

    def _is_right_for_all(self, tactic: Tactic, program: MadeProgram) -> bool:
        """As `_is_right_at_ends`; a program that fails there is not right."""
        try:
            with torch.inference_mode():
                return self._is_right_at_ends(tactic, program)
        except LayerFailure as error:
            self._reporter.info(f"tactic {tactic.name}: fails within its range: {error}")
            return False

    def _is_right_at_ends(self, tactic: Tactic, program: MadeProgram) -> bool:
        """Whether what serves a range computes what interpreting computes at both ends of it, and at sizes of 1."""
        for shapes in dict.fromkeys((*_ends(program.artifact), *_sizes_of_1(program.artifact))):
            values = self._subject.example_inputs(self.profile, shapes)
            expected = self._interpreted.run(self._subject.with_own_updates(values))
            if not self._is_right(f"{tactic.name} for {shapes}", program.run(values), expected, values):
                return False
        return True

    def race_range(self, tactic: Tactic, program: MadeProgram) -> dict[str, float]:
        """Times the layers and what a tactic made for a range, at its ends; the geometric mean counts."""
        times: dict[str, list[float]] = {INTERPRET: [], tactic.name: []}
        executables = [self._as_allowed(each) for each in (self._interpreted, program)]
        for shapes in _ends(program.artifact):
            values = self._subject.example_inputs(self.profile, shapes)
            with with_plans():  # as recordings have them
                found = race_milliseconds(executables, values, self._subject.device, self._iterations)
            for name, spent in zip(times, found, strict=True):
                times[name].append(NEVER if isinstance(spent, Exception) else spent)
        return {name: math.prod(spent) ** (1 / len(spent)) for name, spent in times.items()}

    def time(self, tactic: Tactic, program: MadeProgram) -> float:
        """Milliseconds of a run of what a tactic made; `NEVER` when it fails."""
        try:
            return self._milliseconds(program)
        except Exception as error:
            self._reporter.info(f"tactic {tactic.name}: cannot be timed: {error}")
            return NEVER

    def drop_slow(self, built: dict[Tactic, tuple[Artifact, MadeProgram]], layers: float) -> None:
        """Gives up what libraries made and cannot win, so that it is neither timed further nor held in memory.

        Two calls tell: the first one warms up, and work of others disturbs hardly both of one and none of another.

        Args:
            built: What is left; changed in place.
            layers: Milliseconds of the layers.
        """
        for tactic, (_, program) in built.items():
            if tactic.name not in self._glances:
                (seconds,) = self._glanced([program], self._values)
                self._glances[tactic.name] = seconds * 1e3
        limit = FAR * min(layers, *(self._glances[tactic.name] for tactic in built))
        for tactic in [each for each in built if self._glances[each.name] > limit]:
            del built[tactic]
            spent = self._glances[tactic.name]
            self._reporter.verbose(f"tactic {tactic.name}: not timed further, its first calls take {spent:.4f} ms")

    def race_libraries(
        self, programs: Mapping[Tactic, MadeProgram], layers: float, *, is_prepacked: bool
    ) -> dict[Tactic, float]:
        """Milliseconds of a run of what libraries made; `NEVER` where one fails, and where it gains little.

        They run in turns, and with them the layers, since of two measurements one after the other, work of others may
        disturb only one. For a range of sizes the ends count as the optimal sizes do.

        Args:
            programs: What they made.
            layers: Milliseconds of the layers.
            is_prepacked: Whether these are layers with packed weights.
        """
        if not programs:
            return {}
        executables = list(programs.values())
        _, *ends = dict.fromkeys(
            shapes for each in executables for shapes in (each.artifact.shapes, *_ends(each.artifact))
        )
        found = [self._ratios(executables, self._beside(layers, is_prepacked=is_prepacked))]
        plain = (
            self._interpreted if self._prepacked is None or not is_prepacked or not self._is_small else self._prepacked
        )
        for shapes in ends:
            least, *spent = self._glanced([plain, *executables], self._subject.example_inputs(self.profile, shapes))
            found.append([each / least for each in spent])
        ratios = dict(zip(programs, zip(*found, strict=True), strict=True))
        means = {tactic: math.prod(each) ** (1 / len(each)) for tactic, each in ratios.items()}
        for tactic, mean in means.items():
            self._reporter.verbose(f"tactic {tactic.name}: {mean:.3f} of the time of the layers")
        return {tactic: NEVER if mean > _WORTH_A_LIBRARY else layers * mean for tactic, mean in means.items()}

    def _beside(self, layers: float, *, is_prepacked: bool) -> Program | float:
        """What libraries race against at the optimal sizes: the layers as they run, or only their milliseconds.

        Packed weights of a large model are in memory only where its layers seem to take about as long as a library.
        """
        if not is_prepacked:
            return self._interpreted
        assert self._prepacked is not None
        is_clear = min(self._glances.values()) < _CLEAR_LIBRARY * layers
        return self._prepacked if self._is_small or not is_clear else layers

    def _ratios(self, programs: Sequence[MadeProgram], layers: Program | float) -> list[float]:
        """Times of what libraries made over that of the layers, in turns; `NEVER` where one of them fails."""
        executables = programs if isinstance(layers, float) else [layers, *programs]
        try:
            runs = [as_engines_run(each, self._values, self._subject.device) for each in executables]
            found = race(runs, lambda: None, self._iterations, clock=host_clock())
        except Exception as error:
            self._reporter.info(f"libraries: cannot be timed: {error}")
            return [NEVER] * len(programs)
        plain, *spent = [layers / 1e3, *found] if isinstance(layers, float) else found
        return [each / plain for each in spent]

    def _glanced(self, executables: Sequence[Executable], values: Sequence[Value]) -> list[float]:
        """Seconds of the better of two runs of each, in turns and not warmed up before; `NEVER` for what fails."""
        clock = host_clock()
        least = [NEVER] * len(executables)
        for _ in range(_GLANCES):
            for at, executable in enumerate(executables):
                started = clock()
                try:
                    with torch.inference_mode():
                        executable.run(values)
                except Exception as error:
                    self._reporter.info(f"a run that is timed failed: {error}")
                    continue
                least[at] = min(least[at], clock() - started)
        return least

    def _is_right(
        self,
        name: str,
        found: Sequence[Value],
        expected: Sequence[Value] | None = None,
        values: Sequence[Value] | None = None,
    ) -> bool:
        """Whether a candidate computes what interpreting computes; says so where it does not.

        Args:
            name: What messages call it.
            found: Its outputs.
            expected: What interpreting computes; by default of the optimal sizes.
            values: What both are computed of.
        """
        expected = self._expected if expected is None else expected
        held = {tensor.dtype for tensor in self._subject.tensors}
        difference = first_difference(found, expected, held)
        if difference is None:
            return True
        rounding = self._rounding(expected, self._values if values is None else values, held)
        if first_difference(found, expected, held, rounding) is None:
            self._reporter.info(
                f"tactic {name}: {difference}, which rounding alone makes of this network: {rounding:.2g}"
            )
            return True
        self._reporter.warning(f"tactic {name} is left out, for it computes something else: {difference}")
        return False

    def _rounding(self, expected: Sequence[Value], values: Sequence[Value], held: Collection[torch.dtype]) -> float:
        """By what part of their size outputs change where inputs do by as much as all layers round.

        Networks whose weights were drawn and never trained may make a few per cent of such noise, or half of what they
        compute, so that a compiler that rounds elsewhere computes something else there without being wrong.
        """
        generator = torch.Generator("cpu").manual_seed(0)
        moved: list[Value] = []
        for value in self._subject.with_own_updates(values):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                types = {value.dtype, *(dtype for dtype in held if dtype in (torch.float16, torch.bfloat16))}
                part = max(torch.finfo(dtype).eps for dtype in types) / 2 * self.num_layers**0.5
                signs = torch.randint(2, value.shape, generator=generator, device="cpu").mul_(2).sub_(1).to(value)
                value = value * (1 + part * signs)
            moved.append(value)
        with torch.inference_mode():
            return min(largest_difference(self._interpreted.run(moved), expected), _MOST_ROUNDING)

    def _keeps_inputs(self, name: str) -> bool:
        """Whether the inputs are what they were, and were not written to; says so where they were."""
        fresh = self._subject.example_inputs(self.profile)
        pairs = zip(map(as_tensor, self._values), map(as_tensor, fresh), strict=True)
        updated = self._subject.updated_inputs
        if all(at in updated or torch.equal(have, want) for at, (have, want) in enumerate(pairs)):
            return True
        self._reporter.warning(f"tactic {name} is left out, for it writes to inputs")
        self._values = fresh
        return False

    def _run_prepacked(self, program: Program) -> tuple[list[Value], float]:
        """The outputs of a program with packed weights, and milliseconds of a run."""
        with torch.inference_mode():
            if not self._is_small:
                return time_layers(program, self._values, self._cold_weights)
            return program.run(self._values), self._milliseconds(program)

    def _milliseconds(self, executable: Executable) -> float:
        most = _MOST_RUNS if self._is_small else 0
        return milliseconds(executable, self._values, self._subject.device, self._iterations, most)

    @cached_property
    def _is_small(self) -> bool:
        return self._num_bytes <= _FEW_BYTES

    @cached_property
    def _num_bytes(self) -> int:
        blocks = {tensor.data_ptr(): tensor.nbytes for tensor in self._subject.tensors}  # some are used several times
        return sum(blocks.values())

    @cached_property
    def _cold_weights(self) -> ColdWeights:
        return ColdWeights(self._num_bytes)

    def _as_allowed(self, executable: Executable) -> Executable:
        """An executable as the engine runs it, with TF32 or without."""
        return executable if self._subject.info.allows_tf32 else WithoutTF32(executable)

    @cached_property
    def _values(self) -> list[Value]:
        return self._subject.example_inputs(self.profile)

    @cached_property
    def _interpreted(self) -> Program:
        return self._subject.interpreted()

    @cached_property
    def _expected(self) -> Sequence[Value]:
        with torch.inference_mode():
            return self._interpreted.run(self._subject.with_own_updates(self._values))

    @cached_property
    def _weights(self) -> WeightStore:
        return self._subject.weights()


def _sizes_of_1(artifact: Artifact) -> Iterator[tuple[Shape, ...]]:
    """The shapes that an artifact was compiled at but for one extent, which is 1."""
    for each in artifact.varying:
        found = _with_extents(artifact.shapes, [(each, 1)])
        if each.least == 1 and artifact.serves(found):
            yield found


def _from_two(artifact: Artifact) -> Artifact:
    """An artifact for a range without extents of 1, which compilers treat apart."""
    varying = (replace(each, least=max(each.least, min(each.most, 2))) for each in artifact.varying)
    return replace(artifact, varying=tuple(varying))


def _ends(artifact: Artifact) -> list[tuple[Shape, ...]]:
    """The least shapes that an artifact serves, and large ones; near them, where it asks more of sizes."""
    found = (_end(artifact, is_large=is_large) for is_large in (False, True))
    return list(dict.fromkeys(found))


def _end(artifact: Artifact, *, is_large: bool) -> tuple[Shape, ...]:
    towards_usual: list[tuple[Varying, range]] = []
    for each in artifact.varying:
        usual = artifact.shapes[each.source][each.axis]
        span = range(min(each.most, usual * _MOST_TIMES), usual - 1, -1) if is_large else range(each.least, usual + 1)
        towards_usual.append((each, span[:_MOST_NEAR]))
    shapes = _with_extents(artifact.shapes, [(each, span[0]) for each, span in towards_usual])
    if artifact.serves(shapes):
        return shapes
    shapes = artifact.shapes
    for each, span in towards_usual:
        tried = (_with_extents(shapes, [(each, extent)]) for extent in span)
        shapes = next(filter(artifact.serves, tried), shapes)
    return shapes


def _with_extents(shapes: Sequence[Shape], extents: Sequence[tuple[Varying, int]]) -> tuple[Shape, ...]:
    changed = [list(shape) for shape in shapes]
    for each, extent in extents:
        changed[each.source][each.axis] = extent
    return tuple(map(tuple, changed))


_EQUAL: Final = 0.97
"""Ways take as long as each other where the fastest takes more than that part of their time."""
_PREFERRED: Final = (RECURRENT, MKL, ONEDNN, LAYERS)
"""Of ways that take as long as each other, the one that whole runs slow down least is taken: measured on models."""


class ProductRace:
    """Races the ways of computing each product of a program, on the operands of its first run.

    Equal products of as many rows are raced once.

    Args:
        weights: Times runs.
        note: Hears of kernels that fail.
        autotuner: Says who won each race.
    """

    def __init__(self, weights: ColdWeights, note: Callable[[str], None], autotuner: Autotuner | None = None) -> None:
        self._weights = weights
        self._note = note
        self._autotuner = autotuner or Autotuner(ITimingCache({}))
        self._products: dict[int, RacedProduct] = {}
        self._known: dict[tuple[Hashable, tuple[int, ...]], str] = {}

    def __call__(self, layer: ILayer, case: Hashable, ways: Ways) -> RacedProduct:
        """What computes a product."""
        product = self._products[id(layer)] = RacedProduct(self, case, ways)
        return product

    def names(self, layers: Iterable[ILayer]) -> dict[int, str]:
        """The fastest way of each product by the place of its layer; the first one of those that never ran."""
        found = ((at, self._products.get(id(layer))) for at, layer in enumerate(layers))
        return {at: product.name or next(iter(product.ways)) for at, product in found if product is not None}

    def fastest(self, product: RacedProduct, inputs: Sequence[Value | None]) -> str:
        """The name of the fastest way of a product, on operands."""
        x = operand(inputs[0])
        key = (product.case, tuple(x.shape))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _raced_products(product, inputs, self._weights, self._note, self._autotuner)
        return found


class RacedProduct(PackingCompute):
    """A product whose fastest way its first run finds.

    Args:
        race: Knows of equal products.
        case: The product apart from its numbers.
        ways: What computes it.

    Attributes:
        name: Of the fastest way; empty before the first run.
    """

    def __init__(self, race: ProductRace, case: Hashable, ways: Ways) -> None:
        self.name = ""
        self.case = case
        self.ways = ways
        self._race = race

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The result."""
        if not self.name:
            self.name = self._race.fastest(self, inputs)
        return self.ways[self.name](inputs)

    def forget(self) -> int:
        """Gives up packed weights, and returns how many bytes they were."""
        return forget_packed(self.ways.values())


def _raced_products(
    product: RacedProduct,
    inputs: Sequence[Value | None],
    weights: ColdWeights,
    note: Callable[[str], None],
    autotuner: Autotuner,
) -> str:
    """The fastest way; layers, the last one, where none can be timed."""
    times = race_ways(product.ways, inputs, weights, lambda failure: note(f"products by {failure}"))
    if not times:
        return list(product.ways)[-1]
    subject = f"product of {tuple(as_tensor(inputs[0]).shape)}"
    return autotuner.judge(subject, times, margin=_EQUAL, preferred=_PREFERRED).name
