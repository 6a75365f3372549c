"""Finds the operators that make a compiled model's output wrong, and proves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import operator_name
from trt_core.provenance import module_path, source_line
from trt_frontends.accuracy.bisect_report import BisectReport, Culprit, EngineError, Remedy, Stage, describe_tensor
from trt_frontends.accuracy.blocks import EngineCase, run_engines
from trt_frontends.accuracy.culprit_search import CulpritSearch
from trt_frontends.accuracy.eager_model import Model, eager_only, require_no_engines, without_wrapper
from trt_frontends.accuracy.experiment import Experiment
from trt_frontends.accuracy.lone_operator import LoneOperator
from trt_frontends.accuracy.lowering_fault import find_lowering_passes
from trt_frontends.accuracy.precision_fault import PrecisionFault, exclusions_of
from trt_frontends.accuracy.subject import Subject
from trt_frontends.accuracy.verify import cases_of, require_tolerance, run_case, tolerance_of
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.pipeline import BuiltModel, Progress, no_progress
from trt_frontends.result_tensors import tensors_of
from trt_lowering.precision_rules import reduced_type


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
    **settings: Any,
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
        InputError: There are no inputs, the model has engines already, or `state` belongs to another search.
        TrtError: What compiling raises.
    """
    model = without_wrapper(model)
    require_no_engines(model)
    subject = Subject(model, arg_inputs, kwarg_inputs, registry, settings)
    require_tolerance(tolerance)
    cases = cases_of(subject, inputs, samples, seed)
    eager = subject.eager
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
        for remedy in remedies:
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
