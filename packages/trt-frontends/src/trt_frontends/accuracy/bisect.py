"""Finds the operators that make a compiled model's output wrong, proves it, and reports it as data and as text."""

from __future__ import annotations

import copy
import enum
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_converters.build import layers_of
from trt_core import InputError, PlanError, Reason, TrtError, Verdict, operator_name
from trt_core.dtypes import dtype_name
from trt_core.files.opening import read_file
from trt_core.files.replacing import replacing
from trt_core.provenance import module_path, source_line
from trt_core.remembered import Remembered
from trt_core.reports import DataReport
from trt_core.weight_recipes import bytes_of
from trt_frontends.accuracy.subject import (
    EngineCase,
    Model,
    Subject,
    eager_only,
    require_no_engines,
    run_engines,
    without_wrapper,
)
from trt_frontends.accuracy.verify import cases_of, require_tolerance, run_case, tolerance_of
from trt_frontends.capture import require_weights
from trt_frontends.comparison.output_error import measure_error, tensors_of
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.entry_point import outside_autocast
from trt_frontends.pipeline import BuiltModel, CapturedModel, LoweredModel, Progress, no_progress, settings_to_build
from trt_frontends.precision.graph_run import GraphRun, PrecisionTrials, worst_error
from trt_frontends.stages import lower
from trt_lowering.precision_rules import reduced_type

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords


class Stage(enum.Enum):
    """Where an error arises."""

    NONE = "nowhere"
    LOWERING = "lowering"
    PRECISION = "reduced precision"
    ENGINES = "engines"


Remedy = Mapping[str, tuple[str, ...]]
"""Settings that are collections of names, with the names to add to each."""


@dataclass(frozen=True)
class TensorStatistics:
    """What an operand looked like.

    Attributes:
        name: Node that made it.
        dtype, shape: Its type and extents.
        lowest, highest, mean: Of its finite elements.
        nans, infinities: How many elements are not finite.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    lowest: float
    highest: float
    mean: float
    nans: int
    infinities: int


@dataclass(frozen=True)
class Culprit:
    """An operator that makes the output wrong when it runs in an engine, or in a reduced type.

    Attributes:
        node, operator: Its node and what it computes.
        engine: The engine it is in.
        module, source: The module and the line of the model's code that made it; empty when unknown.
        layers: Layers that its converter makes, `name (type)`.
        error_alone: Scaled error of an engine of this operator alone, given PyTorch's inputs; None when it does not
            convert alone. For reduced precision, the error of the model's output when it alone is reduced.
        inputs: Its operands.
    """

    node: str
    operator: str
    engine: str
    module: str
    source: str
    layers: tuple[str, ...]
    error_alone: float | None
    inputs: tuple[TensorStatistics, ...]


@dataclass(frozen=True)
class EngineError:
    """The error of the model's output when one engine runs as an engine, and every other one in PyTorch."""

    name: str
    error: float


@dataclass(frozen=True, repr=False)
class BisectReport(DataReport):
    """What a search for wrong operators found.

    Attributes:
        model: Name of the model.
        tolerance: Largest scaled error that is right.
        stage: Where the error arises.
        error_before: Error of the compiled model.
        error_after: Error with the proposed setting, found by compiling with it; for `Stage.LOWERING`, the error of the
            lowered graph in PyTorch.
        lowering_passes: The passes that make the lowered graph wrong; none for other stages.
        reduced_to: The type that loses too much, for `Stage.PRECISION`.
        engines: The error that each engine makes.
        culprits: The operators.
        remedy: The setting that avoids the error.
        complete: Whether the culprits are all.
        builds: How many engines the search built.
        in_engines: Where lowering or a reduced type is to blame: what engines make wrong as well, compared with the
            lowered graph as PyTorch runs it. None where they make nothing wrong.
    """

    DERIVED: ClassVar = ("setting", "is_proved")

    model: str
    tolerance: float
    stage: Stage
    error_before: float
    error_after: float
    lowering_passes: tuple[str, ...] = ()
    reduced_to: str = ""
    engines: tuple[EngineError, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    remedy: Remedy = field(default_factory=dict)
    complete: bool = True
    builds: int = 0
    in_engines: BisectReport | None = None

    @property
    def lowering_pass(self) -> str:
        """The first pass that makes the lowered graph wrong; empty where lowering is right."""
        return next(iter(self.lowering_passes), "")

    @property
    def setting(self) -> str:
        """The setting that avoids the error, as it is written in a call; empty when there is none."""
        return ", ".join(f"{name}={{{', '.join(map(repr, values))}}}" for name, values in self.remedy.items())

    @property
    def is_proved(self) -> bool:
        """Whether the proposed setting was run and makes the output right."""
        return bool(self.culprits) and self.error_after <= self.tolerance

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        lines = [f"{self.model}: error {self.error_before:.3g} of the largest magnitude, allowed {self.tolerance:.3g}"]
        if self.stage is Stage.NONE:
            lines.append("nothing is wrong")
        elif self.stage is Stage.LOWERING:
            passes = ", ".join(map(repr, self.lowering_passes))
            lines.append(f"the error arises in lowering, with pass {passes}, before any engine is built")
        elif self.stage is Stage.PRECISION:
            lines.append(f"the error is what {self.reduced_to} loses; no engine is to blame")
            lines += self._culprit_lines("reduced alone")
        else:
            lines += [f"engine {engine.name} alone: {engine.error:.3g}" for engine in self.engines]
            lines += self._culprit_lines("alone, with the same inputs")
        text = "\n".join(lines) + "\n"
        if self.in_engines is not None:
            text += (
                "\nengines are wrong as well, compared with the lowered graph in PyTorch\n" + self.in_engines.to_text()
            )
        return text

    def _culprit_lines(self, alone: str) -> list[str]:
        lines = []
        for culprit in self.culprits:
            place = ", ".join(part for part in (culprit.module, culprit.source) if part)
            engine = f" in {culprit.engine}" if culprit.engine else ""
            lines += ["", f"{culprit.operator} ({culprit.node}){engine}" + (f", {place}" if place else "")]
            if culprit.error_alone is not None:
                lines.append(f"  {alone}: {culprit.error_alone:.3g}")
            if culprit.layers:
                lines.append(f"  layers: {', '.join(culprit.layers)}")
            for item in culprit.inputs:
                lines.append(
                    f"  {item.name}: {item.dtype}{list(item.shape)} from {item.lowest:.3g} to {item.highest:.3g}, "
                    f"mean {item.mean:.3g}"
                    + (f", {item.nans} NaN" if item.nans else "")
                    + (f", {item.infinities} infinite" if item.infinities else "")
                )
        lines.append("")
        if not self.complete:
            lines.append(f"these {len(self.culprits)} are not all: the error is spread over the model")
        if self.setting:
            verb = "makes it right" if self.is_proved else "does not make it right"
            lines.append(f"{self.setting} {verb}: error {self.error_after:.3g} when run")
        return lines


def describe_tensor(name: str, tensor: torch.Tensor) -> TensorStatistics:
    """Returns the statistics of a tensor."""
    numbers = tensor.detach().cpu().double() if not tensor.is_complex() else tensor.detach().cpu().abs().double()
    finite = numbers[numbers.isfinite()]
    return TensorStatistics(
        name=name,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        lowest=float(finite.min()) if finite.numel() else 0.0,
        highest=float(finite.max()) if finite.numel() else 0.0,
        mean=float(finite.mean()) if finite.numel() else 0.0,
        nans=int(numbers.isnan().sum()),
        infinities=int(numbers.isinf().sum()),
    )


@outside_autocast
def bisect(
    model: Model,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    inputs: Iterable[Any] | None = None,
    tolerance: float | None = None,
    samples: int = 1,
    seed: int = 0,
    most: int = 8,
    state: str | Path | None = None,
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> BisectReport:
    """Finds the operators that make the output of a compiled model wrong.

    The model is compiled and compared with eager. When it is beyond tolerance, the first suspect is lowering; then the
    nodes in engines are moved to PyTorch, half of what is in doubt at a time, until the last one is found whose move
    makes the output right; that is repeated while others are left. Where lowering is wrong because it reduces types,
    the same search finds the nodes that have to stay in float32. Where lowering is wrong, engines are compared with
    what it made, so that faults in both are named. What was found is proved by compiling the whole model with the
    setting that keeps those operators in float32, or in PyTorch.

    Args:
        model: The model in eager PyTorch, or an exported program of it. What `torch.compile` returned stands for the
            module that it was given, which is searched as `compile` compiles it.
        arg_inputs, kwarg_inputs, inputs, samples, seed: Inputs to compare on; see `verify`.
        tolerance: Largest error that is right, relative to the largest magnitude of an output; by default by type.
        most: How many operators are looked for before the search gives up: errors that are spread over a whole model
            have no culprits.
        state: File to keep answers in; a search that was interrupted goes on from it.
        progress: Told what is being done.
        registry: Where converters are looked up.
        settings: Compilation settings.

    Returns:
        The report: where the error arises, the operators, their inputs, and the setting that avoids it.

    Raises:
        InputError: There are no inputs, the model has engines already or no weights, or `state` belongs to another
            search.
        SettingsError: A setting cannot be read, or is `dryrun`.
        TrtError: What compiling raises.
    """
    model = without_wrapper(model)
    require_no_engines(model)
    settings_to_build(settings)
    require_weights(model)
    subject = Subject(model, arg_inputs, kwarg_inputs, registry, settings, progress)
    require_tolerance(tolerance)
    cases = cases_of(subject, inputs, samples, seed)
    eager = subject.eager
    progress("running eager", 0, 1)
    with torch.no_grad(), eager_only():
        expected = [tensors_of(run_case(case, eager, "the model")) for case in cases]
    allowed = tolerance_of(settings, expected[0]) if tolerance is None else tolerance
    experiment = Experiment.begin(subject.lower(), cases, expected, None if state is None else Path(state))
    search = _Search(subject, experiment.built, cases, expected, allowed, most, progress)
    without_engines = experiment.error(node.name for node in experiment.nodes)
    before = experiment.error(())
    if before <= allowed:
        return BisectReport(subject.name, allowed, Stage.NONE, before, before, builds=experiment.builds)
    if without_engines <= allowed:
        return search.in_engines(experiment, _Proof(subject, cases, expected), allowed)
    return search.in_lowering(experiment, before, without_engines)


@dataclass(frozen=True)
class _Search:
    """A model that is wrong, and what is known of it.

    Attributes:
        subject: The model.
        built: It, split as it is compiled.
        cases: Inputs to compare on.
        expected: What eager PyTorch computes for each.
        allowed: Largest error that is right.
        most: How many operators are looked for.
        progress: Told what is being done.
    """

    subject: Subject
    built: BuiltModel
    cases: Sequence[SampleInputs]
    expected: Sequence[Sequence[torch.Tensor]]
    allowed: float
    most: int
    progress: Progress

    def in_engines(self, experiment: Experiment, proof: _Proof, allowed: float) -> BisectReport:
        """Finds the operators that engines compute wrongly.

        Args:
            experiment: What engines are compared with.
            proof: Compiles the whole model, compared with the same.
            allowed: Largest error that is right here.
        """
        before = experiment.error(())
        built = self.built
        engines = tuple(EngineError(engine, experiment.error_of_engine(engine)) for engine in built.blocks)
        search = CulpritSearch(experiment, allowed, self.most, self.progress)
        found = search.run()
        self.progress("looking at culprits alone", 0, len(found))
        culprits = _describe(found, experiment, built, self.cases)
        operators = {"torch_executed_ops": tuple(sorted({culprit.operator for culprit in culprits}))}
        remedies = (
            [operators] if reduced_type(built.lowered.settings) is None else [exclusions_of(found, ()), operators]
        )
        remedy, after = proof.first_right(remedies, allowed) if culprits else ({}, before)
        return BisectReport(
            proof.name,
            allowed,
            Stage.ENGINES,
            before,
            after,
            engines=engines,
            culprits=culprits,
            remedy=remedy,
            complete=search.complete,
            builds=experiment.builds,
        )

    def in_lowering(self, experiment: Experiment, before: float, without_engines: float) -> BisectReport:
        """Finds what makes the graph wrong before any engine runs, and what engines get wrong beside that.

        Args:
            experiment: The model compared with eager PyTorch.
            before: The error with engines.
            without_engines: The error of the graph in PyTorch.
        """
        subject, cases, expected, allowed = self.subject, self.cases, self.expected, self.allowed
        # beside a graph that is wrong already, engines are compared with that graph
        engines = experiment.against_pytorch()
        precision = PrecisionFault.look(subject, cases, expected)
        reduced = precision is not None and precision.is_to_blame(allowed)
        # what a type loses, engines may lose in other places
        beyond = max(allowed, without_engines) if reduced else allowed
        in_engines = None
        if engines.error(()) > beyond:
            in_engines = self.in_engines(engines, _Proof(subject, cases, None), beyond)
        if precision is None or not reduced:
            return BisectReport(
                subject.name,
                allowed,
                Stage.LOWERING,
                before,
                without_engines,
                lowering_passes=find_lowering_passes(subject, cases[0], expected[0], allowed),
                builds=experiment.builds + engines.builds,
                in_engines=in_engines,
            )
        search = CulpritSearch(precision.trials, allowed, self.most, self.progress)
        found = search.run()
        proof = _Proof(subject, cases, expected)
        remedy, after = proof.first_right([exclusions_of(found, precision.trials.nodes)], allowed)
        return BisectReport(
            subject.name,
            allowed,
            Stage.PRECISION,
            before,
            after,
            reduced_to=precision.reduced_to,
            culprits=precision.describe(found, experiment),
            remedy=remedy,
            complete=search.complete,
            builds=experiment.builds + engines.builds,
            in_engines=in_engines,
        )


class _Proof:
    """Compiles the whole model with the settings that are proposed.

    Args:
        subject: The model.
        cases: Inputs to compare on.
        expected: What is right; None for what PyTorch computes with the graph that engines are built from.
    """

    def __init__(
        self, subject: Subject, cases: Sequence[SampleInputs], expected: Sequence[Sequence[torch.Tensor]] | None
    ) -> None:
        self.name = subject.name
        self._subject = subject
        self._cases, self._expected = cases, expected

    def first_right(self, remedies: Sequence[Remedy], allowed: float) -> tuple[Remedy, float]:
        """Returns the first remedy that makes the output right, else the last, and the error with it."""
        for done, remedy in enumerate(remedies):
            self._subject.progress("proving the setting", done, len(remedies))
            error = self._error(remedy)
            if error <= allowed:
                break
        return remedy, error

    def _error(self, remedy: Remedy) -> float:
        given = self._subject.settings
        joined = {name: {*(given.get(name) or ()), *values} for name, values in remedy.items()}
        lowered = self._subject.with_settings({**given, **joined}).lower()
        experiment = Experiment.begin(lowered, self._cases, self._expected or ())
        return (experiment if self._expected is not None else experiment.against_pytorch()).error(())


def _describe(
    nodes: Sequence[fx.Node], experiment: Experiment, built: BuiltModel, cases: Sequence[SampleInputs]
) -> tuple[Culprit, ...]:
    """Returns what is known of nodes, each on the inputs on which it is most wrong by itself."""
    lone: dict[fx.Node, LoneOperator] = {}
    found: dict[fx.Node, Culprit] = {}
    for case in cases:
        engines = {engine.name: engine for engine in run_engines(built, case)}
        for node in nodes:
            engine = engines[experiment.engine_of(node)]
            if node not in lone:
                lone[node] = LoneOperator.build(node, engine, built.lowered)
            culprit = _culprit(lone[node], engine)
            if node not in found or (culprit.error_alone or 0) > (found[node].error_alone or 0):
                found[node] = culprit
    return tuple(found[node] for node in nodes)


def _culprit(lone: LoneOperator, engine: EngineCase) -> Culprit:
    node = lone.node
    return Culprit(
        node=node.name,
        operator=operator_name(node.target),
        engine=engine.name,
        module=module_path(node),
        source=source_line(node),
        layers=lone.layers,
        error_alone=lone.error(engine),
        inputs=tuple(
            describe_tensor(operand.name, engine.values[operand.name])
            for operand in node.all_input_nodes
            if operand.name in engine.values
        ),
    )


# Experiments: the error when some nodes run in PyTorch ---------------------------------------------------------------


_LEFT_OUT = Verdict.refuse(Reason.BUILD_FAILED, "it failed to build when the search began")
_IN_PYTORCH = Verdict.refuse(Reason.FORCED_OPERATOR, "kept in PyTorch to look for the cause of an error")


class Experiment:
    """Runs a lowered model with some of its nodes in PyTorch, and compares with eager.

    Engines are built once for each set of nodes that is left in them. Answers are remembered, in a file too where one
    is given, so that a search that was interrupted goes on where it stopped.

    Args:
        built: The model. Engines that are not built are built when they are asked for.
        cases: Inputs to compare on.
        expected: Eager's outputs for them: tensors, in order.
        answers: What is known already.

    Attributes:
        built: The model.
        builds: How many engines were built.
        asked: How many times the model was run to find an answer.
    """

    def __init__(
        self,
        built: BuiltModel,
        cases: Sequence[SampleInputs],
        expected: Sequence[Sequence[torch.Tensor]],
        answers: _Answers,
    ) -> None:
        self.built = built
        self.builds = len(built.engines)
        self.asked = 0
        self._cases = cases
        self._expected = expected
        self._operators = {name: _operators(block) for name, block in built.blocks.items()}
        self._pieces: Remembered[tuple[str, frozenset[str]], nn.Module] = Remembered(2 * len(self._operators) + 5)
        self._answers = answers
        self._question = ""

    @classmethod
    def begin(
        cls,
        lowered: LoweredModel,
        cases: Sequence[SampleInputs],
        expected: Sequence[Sequence[torch.Tensor]],
        state: Path | None = None,
    ) -> Experiment:
        """Builds the engines that `compile` builds; where answers are kept, they say what that left to PyTorch.

        Args:
            lowered: The model.
            cases, expected: See the class.
            state: File that answers are kept in; it belongs to one model, one set of inputs and one set of settings.

        Raises:
            InputError: The file holds the answers of another search.
            TrtError: What building raises.
        """
        answers = _Answers(state, _identity(lowered, expected))
        if answers.left_out is None:
            built = lowered.build()
            answers.left_out = tuple(lowered.excluded)
        else:
            lowered.excluded.update(dict.fromkeys(answers.left_out, _LEFT_OUT))
            built = lowered.split(lowered.plan())
        return cls(built, cases, expected, answers)

    def against_pytorch(self) -> Experiment:
        """Returns the same search with the lowered graph's own results in PyTorch as what is right.

        Answers are kept in the same file, and engines that were built are built once for both.
        """
        other = copy.copy(self)
        other.builds = other.asked = 0
        with torch.no_grad(), self.built.running(self.built.blocks):
            other._expected = [tensors_of(case.call(self.built.module)) for case in self._cases]
        other._question = "against PyTorch: "
        return other

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Every node that runs in an engine, in the order of the graph."""
        return tuple(node for nodes in self._operators.values() for node in nodes)

    def engine_of(self, node: fx.Node) -> str:
        """Returns the name of the engine that a node is in."""
        return next(name for name, nodes in self._operators.items() if node in nodes)

    def error(self, kept: Iterable[str]) -> float:
        """Returns the worst scaled error of any output on any input, with the nodes of these names in PyTorch."""
        names = frozenset(kept)
        key = self._question + hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:24]
        known = self._answers.get(key)
        if known is not None:
            return known
        self.asked += 1
        found = self._measure(names)
        self._answers.put(key, found)
        return found

    def error_of_engine(self, name: str) -> float:
        """Returns the error when one engine runs as an engine and every other one in PyTorch."""
        return self.error(node.name for other, nodes in self._operators.items() if other != name for node in nodes)

    def _measure(self, kept: frozenset[str]) -> float:
        pieces = {name: self._piece(name, kept) for name in self.built.blocks}
        with torch.no_grad(), self.built.running(pieces):
            return worst_error([tensors_of(case.call(self.built.module)) for case in self._cases], self._expected)

    def _piece(self, name: str, kept: frozenset[str]) -> nn.Module:
        """The module that runs a block with some of its nodes in PyTorch."""
        operators = {node.name for node in self._operators[name]}
        here = kept & operators
        if here == operators:
            return self.built.blocks[name]
        if not here and name in self.built.engines:
            return self.built.engines[name]
        piece = self._pieces.get((name, here))
        if piece is None:
            self.builds += 1
            piece = self._pieces[name, here] = self._build(name, here)
        return piece

    def _build(self, name: str, kept: frozenset[str]) -> nn.Module:
        lowered = self.built.lowered
        if not kept:
            return lowered.engine(self.built.blocks[name], name)
        settings = lowered.settings.replace(min_block_size=1, require_full_compilation=False, dryrun=False)
        part = LoweredModel(
            self.built.blocks[name],
            settings,
            lowered.ranges,
            lowered.registry,
            excluded=dict.fromkeys(kept, _IN_PYTORCH),
            is_block=True,
        )
        return part.build().module


_MOST_STATE_BYTES: Final = 64 << 20


class _Answers:
    """Errors by question and set of nodes, mirrored in a file.

    Attributes:
        left_out: Nodes that compiling left to PyTorch as they failed to build; None before it was tried.
    """

    def __init__(self, path: Path | None, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._known: dict[str, float] = {}
        self.left_out: tuple[str, ...] | None = None
        if path is not None and path.exists():
            self._known, self.left_out = self._read(path)

    def get(self, key: str) -> float | None:
        return self._known.get(key)

    def put(self, key: str, error: float) -> None:
        self._known[key] = error
        if self._path is not None:
            kept = {"search": self._identity, "left_out": self.left_out, "errors": self._known}
            with replacing(self._path) as file:
                file.write(json.dumps(kept).encode())

    def _read(self, path: Path) -> tuple[dict[str, float], tuple[str, ...]]:
        try:
            data = json.loads(read_file(str(path), _MOST_STATE_BYTES))
            identity, errors = data["search"], {str(key): float(value) for key, value in data["errors"].items()}
            left_out = tuple(map(str, data["left_out"]))
        except (PlanError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InputError(
                "this is not the state of a search", where=str(path), why=str(error), hint="give a new file"
            ) from error
        if identity != self._identity:
            raise InputError(
                "this is the state of another search",
                where=str(path),
                why="model, weights, inputs or settings differ",
                hint="give a new file, or remove this one",
            )
        return errors, left_out


def _identity(lowered: LoweredModel, expected: Sequence[Sequence[torch.Tensor]]) -> str:
    digest = hashlib.sha256(str(lowered.graph.graph).encode())
    digest.update(str(lowered.settings).encode())
    for results in expected:  # what eager computes depends on the weights and the inputs
        for tensor in results:
            digest.update(bytes_of(tensor))
    return digest.hexdigest()[:32]


def _operators(child: fx.GraphModule) -> Mapping[fx.Node, None]:
    return {
        node: None
        for node in child.graph.nodes
        if node.op == "call_function" and not isinstance(node.meta.get("val"), (int, float, torch.SymInt))
    }


# The search for a smallest set of nodes ------------------------------------------------------------------------------


class Question(Protocol):
    """How large is the error when these nodes are kept out of what may be wrong?"""

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """Every node in doubt, in the order of the graph."""

    def error(self, kept: Iterable[str], /) -> float:
        """Returns the error with the nodes of these names kept out."""


class CulpritSearch:
    """Finds a small set of nodes that make the output right when they are kept out.

    Args:
        question: Right when every node is kept out, wrong when none is.
        allowed: Largest error that is right.
        most: How many nodes are looked for.
        progress: Told what is being done.

    Attributes:
        complete: Whether keeping out what `run` returned is enough.
    """

    def __init__(self, question: Question, allowed: float, most: int, progress: Progress) -> None:
        self.complete = False
        self._question = question
        self._allowed = allowed
        self._most = most
        self._progress = progress

    def run(self) -> list[fx.Node]:
        """Returns the culprits in the order of the graph; `complete` says whether they are all."""
        culprits: list[fx.Node] = []
        while len(culprits) < self._most:
            if self._is_right(culprits):
                self.complete = True
                return self._without_innocent(culprits)
            culprits.insert(0, self._last_culprit(culprits))
        self.complete = self._is_right(culprits)
        return culprits

    def _last_culprit(self, known: Sequence[fx.Node]) -> fx.Node:
        """The node that makes the output right when it joins all nodes before it, and those known.

        With nothing kept out the output is wrong, with everything out it is right. So halving always ends at a node
        that makes the difference, also where the error does not grow evenly along the graph.
        """
        nodes = self._question.nodes
        wrong, right = 0, len(nodes)
        while right - wrong > 1:
            self._progress(f"looking for culprit {len(known) + 1}", len(nodes) - (right - wrong), len(nodes))
            middle = (wrong + right) // 2
            if self._is_right([*nodes[:middle], *known]):
                right = middle
            else:
                wrong = middle
        return nodes[right - 1]

    def _without_innocent(self, culprits: list[fx.Node]) -> list[fx.Node]:
        """Leaves out nodes that need not be kept out once the others are."""
        for node in list(culprits):
            others = [other for other in culprits if other is not node]
            if others and self._is_right(others):
                culprits = others
        return culprits

    def _is_right(self, kept: Iterable[fx.Node]) -> bool:
        return self._question.error(node.name for node in kept) <= self._allowed


# Faults of lowering and of precision ---------------------------------------------------------------------------------


def find_lowering_passes(
    subject: Subject, case: SampleInputs, expected: Sequence[torch.Tensor], allowed: float
) -> tuple[str, ...]:
    """Lowers a model again, running the graph in PyTorch after every pass.

    Returns:
        The names of the passes that move the result by more than `allowed`, `capture` for what is wrong before any.
        Where no single one does, the first after which the result is beyond it.
    """
    jumps: list[str] = []
    beyond: list[str] = []
    last = expected

    def observe(name: str, gm: fx.GraphModule) -> None:
        nonlocal last
        gm.recompile()
        with torch.no_grad():
            found = tensors_of(case.call(gm))
        if worst_error([found], [last]) > allowed:
            jumps.append(name)
        if worst_error([found], [expected]) > allowed:
            beyond.append(name)
        last = found

    lower(subject.capture(observe=observe))
    return tuple(jumps or beyond[:1])


@dataclass(frozen=True)
class PrecisionFault:
    """A model whose settings reduce precision.

    Attributes:
        captured: The model, in its own types.
        trials: Runs it with some nodes in float32 and the rest reduced.
        flat: The first of its inputs.
        reduced_to: The reduced type, by name.
    """

    captured: CapturedModel
    trials: PrecisionTrials
    flat: Sequence[Any]
    reduced_to: str

    @classmethod
    def look(
        cls, subject: Subject, cases: Sequence[SampleInputs], expected: Sequence[Sequence[torch.Tensor]]
    ) -> PrecisionFault | None:
        """Captures a model again; None where its settings reduce nothing."""
        captured = subject.capture()
        dtype = reduced_type(captured.settings)
        if dtype is None:
            return None
        reader = captured.reader(captured.decomposed.graph.graph)
        inputs = [reader.read(case.args, case.kwargs) for case in cases]
        trials = PrecisionTrials(captured.decomposed, captured.settings, captured.rules(), inputs, expected)
        return cls(captured, trials, inputs[0], dtype_name(dtype))

    def is_to_blame(self, allowed: float) -> bool:
        """Whether the result is right once nothing is reduced."""
        return self.trials.error(node.name for node in self.trials.nodes) <= allowed

    def describe(self, nodes: Sequence[fx.Node], experiment: Experiment) -> tuple[Culprit, ...]:
        """Returns what is known of nodes, their operands in float32."""
        values: dict[str, torch.Tensor] = {}
        operands = {operand.name for node in nodes for operand in node.all_input_nodes}

        def see(node: fx.Node, value: Any) -> None:
            if node.name in operands and isinstance(value, torch.Tensor):
                values[node.name] = value

        GraphRun(self.captured.decomposed.graph, see).results(self.flat)
        engines = {node.name: experiment.engine_of(node) for node in experiment.nodes}
        everything = [node.name for node in self.trials.nodes]
        return tuple(
            Culprit(
                node=node.name,
                operator=operator_name(node.target),
                engine=engines.get(node.name, ""),
                module=module_path(node),
                source=source_line(node),
                layers=(),
                error_alone=self.trials.error(name for name in everything if name != node.name),
                inputs=tuple(
                    describe_tensor(operand.name, values[operand.name])
                    for operand in node.all_input_nodes
                    if operand.name in values
                ),
            )
            for node in nodes
        )


def exclusions_of(nodes: Sequence[fx.Node], reducible: Collection[fx.Node]) -> Remedy:
    """Returns the setting that keeps nodes in float32.

    Args:
        nodes: The nodes.
        reducible: Every node that is reduced. Operators are named where they occur nowhere else, nodes otherwise.
    """
    operators = {node.target for node in nodes}
    if {node for node in reducible if node.target in operators} == set(nodes):
        return {"autocast_excluded_ops": tuple(sorted(map(operator_name, operators)))}
    return {"autocast_excluded_nodes": tuple(f"^{node.name}$" for node in nodes)}


# Operators alone -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoneOperator:
    """A node of an engine, alone.

    Attributes:
        node: The node.
        engine: An engine of it alone; None where it takes sizes, or converts only beside others.
        operands: Names of the tensors that the engine takes.
        layers: What its converter makes of it, `name (type)`.
    """

    node: fx.Node
    engine: nn.Module | None
    operands: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    @classmethod
    def build(cls, node: fx.Node, case: EngineCase, lowered: LoweredModel) -> LoneOperator:
        """Builds the engine of a node; `case` tells which of its operands are tensors."""
        block = _block_of(node, case)
        if block is None:
            return cls(node, None)
        operands = tuple(item.name for item in block.graph.nodes if item.op == "placeholder")
        try:
            return cls(node, lowered.engine(block, "alone"), operands, _layers_of(block, lowered))
        except TrtError:  # it converts in its block, and not alone
            return cls(node, None)

    def error(self, case: EngineCase) -> float | None:
        """Returns the scaled error of its result, given PyTorch's operands; None where there is no engine."""
        if self.engine is None:
            return None
        with torch.no_grad():
            found = self.engine(*(case.values[name] for name in self.operands))
        return measure_error(found, case.values[self.node.name]).scaled


def _layers_of(block: fx.GraphModule, lowered: LoweredModel) -> tuple[str, ...]:
    found = layers_of(block, lowered.settings, lowered.ranges, lowered.registry)
    return tuple(f"{name} ({kind})" for name, kind in found)


def _block_of(node: fx.Node, case: EngineCase) -> fx.GraphModule | None:
    """A block of one node, which takes the tensors that the node takes; weights stay constants."""
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for operand in node.all_input_nodes:
        if operand.op == "get_attr":
            copies[operand] = graph.node_copy(operand)
        elif operand.name in case.values:
            copies[operand] = graph.placeholder(operand.name)
        else:
            return None
        copies[operand].meta = copy.copy(operand.meta)
    copied = graph.node_copy(node, copies.__getitem__)
    copied.meta, copied.name = copy.copy(node.meta), node.name
    graph.output(copied)
    return fx.GraphModule(case.graph, graph, class_name="alone")
