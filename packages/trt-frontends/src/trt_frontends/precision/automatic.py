"""Chooses what to reduce so that the output stays within an error, and proves it on the engines."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import CompilationSettings, InputError, logger, operator_name
from trt_core.dtypes import dtype_name
from trt_core.operators import draws_random_numbers
from trt_core.provenance import module_path, node_location
from trt_frontends.comparison.output_error import run_wide, tensors_of
from trt_frontends.entry_point import outside_autocast
from trt_frontends.pipeline import (
    BuiltModel,
    CapturedModel,
    LoweredModel,
    Progress,
    capture_model,
    no_progress,
    settings_to_build,
)
from trt_frontends.precision.exclusions import has_weights
from trt_frontends.precision.graph_run import GraphRun, PrecisionTrials, worst_error
from trt_frontends.precision.report import GroupPrecision, PrecisionReport
from trt_lowering.precision_rules import reduced_type
from trt_partition.costs import counts_as_computation, estimate_flops


@dataclass(frozen=True)
class _Candidate:
    """A reduced type, with what was found to be reducible to it."""

    settings: CompilationSettings
    groups: tuple[OperatorGroup, ...]
    selection: Selection

    @property
    def work(self) -> int:
        return sum(self.groups[index].flops for index in self.selection.reduced)

    @property
    def dtype(self) -> str:
        return dtype_name(reduced_type(self.settings) or torch.float32)


class AutomaticPrecision:
    """A choice of precision for a model, made by measuring errors group by group.

    The reference is the graph in float64. Each question reduces some groups of operators and runs the graph in PyTorch;
    no engine is built for it. See `selection` for the algorithm, and for the number of questions.

    Args:
        captured: The model; its settings have a `max_error`. It is left as it is.

    Raises:
        InputError: The model has no weights, or there are no inputs to measure on, or they cannot be used.
    """

    def __init__(self, captured: CapturedModel) -> None:
        allowed = captured.settings.max_error
        assert allowed is not None
        if not has_weights(captured.decomposed.graph):
            raise InputError(
                "precision cannot be chosen: the model has no weights to measure errors with",
                hint="load the weights, or give precision by name in place of max_error",
            )
        self._captured = captured
        self._allowed = allowed
        self._cases = list(captured.calibration().cases())
        reader = captured.reader(captured.decomposed.graph.graph)
        self._flat = [reader.read(case.args, case.kwargs) for case in self._cases]
        self._expected, self._reference = _reference(captured.decomposed.graph, self._flat)
        plain = (GraphRun(captured.decomposed.graph).results(flat) for flat in self._flat)
        self._plain_error = worst_error(plain, self._expected)
        self._rules = dataclasses.replace(
            captured, decomposed=captured.decomposed.with_settings(self._wanted()[0])
        ).rules()
        self._tried: list[tuple[str, float]] = []
        self._runs = 0
        self._engines = 0
        self._backed_off = False
        self._choice = self._choose()

    @property
    def settings(self) -> CompilationSettings:
        """The choice as settings: a type, and the nodes that are excluded."""
        if self._choice is None or not self._choice.selection.reduced:
            return self._captured.settings.replace(precision=torch.float32, enable_autocast=False)
        kept = {f"^{name}$" for group in self._kept(self._choice) for name in group.nodes}
        settings = self._choice.settings
        return settings.replace(autocast_excluded_nodes=settings.autocast_excluded_nodes | kept)

    def lower(self) -> LoweredModel:
        """Lowers the model in the types that were chosen."""
        sensitive = {}
        if self._choice is not None:
            for group, why in zip(self._choice.groups, self._reasons(self._choice), strict=True):
                sensitive.update(dict.fromkeys(group.nodes, why) if why else {})
        rules = dataclasses.replace(self._rules, sensitive=sensitive)
        return self._captured.with_settings(self.settings).lower(rules)

    def build(self) -> BuiltModel:
        """Builds engines of the choice, and runs them. Where they are beyond the error, less is reduced, and so on.

        Returns:
            The model with the engines of the last choice.

        Raises:
            TrtError: What building raises.
        """
        while True:
            built = self.lower().build()
            if self._is_proved_by(built.module):
                return built

    def _is_proved_by(self, compiled: fx.GraphModule) -> bool:
        """Whether the choice stands; else there is another one now."""
        self._engines += 1
        with torch.no_grad():
            results = [tensors_of(case.call(compiled)) for case in self._cases]
        self._error = worst_error(results, self._expected)
        if self._error <= self._allowed or self._choice is None or not self._choice.selection.reduced:
            return True
        logger.warning(
            "engines with %d groups of operators in %s make an error of %.3g, where %.3g is allowed: fewer are reduced",
            len(self._choice.selection.reduced),
            self._choice.dtype,
            self._error,
            self._allowed,
        )
        share = 1 / 2 if self._backed_off else 3 / 4  # most often they are a little beyond it
        self._backed_off = True
        self._choice = dataclasses.replace(self._choice, selection=self._choice.selection.smaller(share))
        return False

    def report(self, *, built: bool) -> PrecisionReport:
        """Returns what was measured and chosen.

        Args:
            built: Whether the engines of the choice were run.
        """
        choice = self._choice
        reduced = choice is not None and bool(choice.selection.reduced)
        expected = choice.selection.error if choice is not None and reduced else self._plain_error
        return PrecisionReport(
            max_error=self._allowed,
            dtype=choice.dtype if choice is not None and reduced else dtype_name(torch.float32),
            error=self._error if built else None,
            expected_error=expected,
            error_in_float32=self._plain_error,
            errors_when_all_reduced=tuple(self._tried),
            reference=self._reference,
            inputs=tuple(case.name for case in self._cases),
            groups=() if choice is None else self._described(choice),
            measurements=self._runs + self._engines,
            engines_tried=self._engines,
            conclusion=self._conclusion(),
            setting=_as_text(self.settings),
            setting_of_graphs=_as_text(self._settings_of_graphs()),
        )

    def _settings_of_graphs(self) -> CompilationSettings:
        """The choice with patterns that fit whatever part of the model a graph holds, and however it numbers nodes."""
        if self._choice is None or not self._choice.selection.reduced:
            return self.settings
        kept = {name for group in self._kept(self._choice) for name in group.nodes}
        nodes = [node for node in self._captured.decomposed.graph.graph.nodes if node.name in kept]
        settings = self._choice.settings
        patterns = frozenset(map(_pattern_of_kind, nodes))
        return settings.replace(autocast_excluded_nodes=settings.autocast_excluded_nodes | patterns)

    def _wanted(self) -> list[CompilationSettings]:
        """The settings that may be chosen: the type that was named, else every reduced one, the finest first."""
        settings = self._captured.settings
        if reduced_type(settings) is not None:
            return [settings]
        return [settings.replace(precision=dtype) for dtype in (torch.float16, torch.bfloat16)]

    def _choose(self) -> _Candidate | None:
        """Returns the candidate that reduces most; None where float32 itself is beyond the error."""
        if not self._plain_error <= self._allowed:
            return None
        best: _Candidate | None = None
        trials = [self._trials(settings) for settings in self._wanted()]
        for one in trials:  # cheap to ask first, and where one passes nothing else is needed
            self._tried.append((one.dtype, one.error_of_all()))
            if one.error_of_all() <= self._allowed:
                trials = [one]
                break
        for one in trials:
            found = one.select(self._allowed)
            if best is None or found.work > best.work:
                best = found
        self._runs = sum(one.trials.runs for one in trials)
        return best

    def _trials(self, settings: CompilationSettings) -> _CandidateTrials:
        trials = PrecisionTrials(self._captured.decomposed, settings, self._rules, self._flat, self._expected)
        ranges = self._captured.ranges
        groups = group_operators(trials.nodes, lambda node: estimate_flops(node, lambda size: ranges.bounds(size)[1]))
        return _CandidateTrials(settings, trials, groups, self._captured.progress)

    def _kept(self, choice: _Candidate) -> list[OperatorGroup]:
        return [group for index, group in enumerate(choice.groups) if index not in choice.selection.reduced]

    def _reasons(self, choice: _Candidate) -> list[str]:
        """Why each group stays in float32; empty for those that do not."""
        reasons = []
        for index in range(len(choice.groups)):
            if index in choice.selection.reduced:
                reasons.append("")
                continue
            alone = choice.selection.alone[index] if choice.selection.alone else None
            if alone is None:
                reasons.append("engines make a larger error than PyTorch does")
            elif alone <= self._allowed:
                reasons.append(f"{choice.dtype} here alone makes an error of {alone:.3g}, too much beside the others")
            elif alone == float("inf"):
                reasons.append(f"{choice.dtype} here alone makes the output infinite, or no number")
            else:
                reasons.append(f"{choice.dtype} here alone makes an error of {alone:.3g}")
        return reasons

    def _described(self, choice: _Candidate) -> tuple[GroupPrecision, ...]:
        alone = choice.selection.alone or (None,) * len(choice.groups)
        return tuple(
            GroupPrecision(
                group.name, group.nodes, group.flops, dtype_name(torch.float32) if why else choice.dtype, error, why
            )
            for group, error, why in zip(choice.groups, alone, self._reasons(choice), strict=True)
        )

    def _conclusion(self) -> str:
        choice = self._choice
        if choice is None:
            return f"everything stays in float32, whose own error of {self._plain_error:.3g} is beyond what is allowed"
        if not choice.groups:
            what = "computes nothing" if choice.settings.precision != torch.float32 else "has no products"
            return f"everything stays as it is: the model {what} in float32"
        if not choice.selection.reduced:
            return "everything stays in float32: no group of operators fits in a reduced type"
        if len(choice.selection.reduced) == len(choice.groups):
            what = "everything computes" if choice.settings.precision != torch.float32 else "products compute"
            return f"{what} in {choice.dtype}"
        half = ", after the engines were found to make larger errors than PyTorch" if self._backed_off else ""
        return (
            f"{len(choice.selection.reduced)} of {len(choice.groups)} groups of operators compute in "
            f"{choice.dtype}, the others in float32{half}"
        )


class _CandidateTrials:
    """The questions about one reduced type."""

    def __init__(
        self, settings: CompilationSettings, trials: PrecisionTrials, groups: tuple[OperatorGroup, ...], progress: Any
    ) -> None:
        self.trials = trials
        self.dtype = dtype_name(reduced_type(settings) or torch.float32)
        self._settings = settings
        self._groups = groups
        self._progress = progress

    def error_of_all(self) -> float:
        return self._error(frozenset(range(len(self._groups))))

    def select(self, allowed: float) -> _Candidate:
        selection = select([group.flops for group in self._groups], self._error, allowed)
        return _Candidate(self._settings, self._groups, selection)

    def _error(self, reduced: frozenset[int]) -> float:
        self._progress(f"measuring {self.dtype}", min(self.trials.runs, len(self._groups)), len(self._groups))
        kept = (group.nodes for index, group in enumerate(self._groups) if index not in reduced)
        return self.trials.error(name for names in kept for name in names)


@outside_autocast
def choose_precision(
    model: Any,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    engines: bool = True,
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Any,
) -> PrecisionReport:
    """Chooses precision for a model, and returns how.

    Args:
        model, arg_inputs, kwarg_inputs, progress, registry: See `compile`.
        engines: Whether to build engines and hold them to the error, too.
        settings: Compilation settings with a `max_error`.

    Raises:
        InputError: See `AutomaticPrecision`.
        SettingsError: A setting cannot be read, or is `dryrun`.
        TrtError: What compiling raises.
    """
    settings_to_build(settings)
    captured = capture_model(model, None, arg_inputs, kwarg_inputs, settings, progress, registry, needs_weights=True)
    automatic = AutomaticPrecision(captured)
    if engines:
        automatic.build()
    return automatic.report(built=engines)


def _reference(gm: fx.GraphModule, flats: Sequence[Sequence[Any]]) -> tuple[list[list[torch.Tensor]], str]:
    """Returns what a graph computes in float64, where it can, and what to call that."""
    why = "it draws random numbers" if any(map(draws_random_numbers, gm.graph.nodes)) else ""
    if not why:
        try:
            return [run_wide(GraphRun(gm).results, flat) for flat in flats], "float64"
        except Exception as error:  # whatever a kernel has against float64
            first_line = str(error).partition("\n")[0]
            why = f"{type(error).__name__}: {first_line:.80}"
    return [GraphRun(gm).results(flat) for flat in flats], f"float32 ({why})"


def _pattern_of_kind(node: fx.Node) -> str:
    """The pattern of a node's kind in its module, whatever number its name ends with."""
    kind, path = re.sub(r"_\d+$", "", node.name), module_path(node)
    return f"^{re.escape(path)}/{kind}(_\\d+)?$" if path else f"^{kind}(_\\d+)?$"


def _as_text(settings: CompilationSettings) -> str:
    """The settings that precision comes from, as they are written in a call."""
    dtype = reduced_type(settings)
    if dtype is None:
        return "precision=torch.float32"
    parts = [f"precision=torch.{dtype_name(dtype)}"]
    if settings.precision == torch.float32:
        parts = ["enable_autocast=True", f"autocast_dtype=torch.{dtype_name(dtype)}"]
    for name in ("autocast_excluded_ops", "autocast_excluded_nodes"):
        names = sorted(getattr(settings, name))
        if names:
            parts.append(f"{name}={{{', '.join(map(repr, names))}}}")
    for name in ("autocast_max_output_threshold", "autocast_max_depth_of_reduction"):
        if getattr(settings, name) is not None:
            parts.append(f"{name}={getattr(settings, name)}")
    return ", ".join(parts)


# Groups of operators whose precision is decided together -------------------------------------------------------------


MOST_GROUPS: Final = 48
"""Groups at most: the number of measurements is linear in them."""

Key = Callable[[fx.Node], str]


@dataclass(frozen=True)
class OperatorGroup:
    """Operators whose precision is decided together.

    Attributes:
        name: What they have in common: a node's place, `linear in encoder.0`, a module, or first and last node.
        nodes: Their names, in the order of the graph.
        flops: Floating-point operations of all of them.
    """

    name: str
    nodes: tuple[str, ...]
    flops: int


def group_operators(
    nodes: Sequence[fx.Node], flops: Callable[[fx.Node], int], most: int = MOST_GROUPS
) -> tuple[OperatorGroup, ...]:
    """Groups nodes as finely as a number of groups allows.

    Each operator that computes is a group of its own; where these are too many, operators of one kind in one module
    are, then modules, then modules around modules, then stretches of the graph. Views, casts and copies, which round
    nothing of their own, belong to the group of what they read.

    Args:
        nodes: The nodes, in the order of the graph.
        flops: Work of a node.
        most: How many groups there may be, at least 1.
    """
    for key in (*_keys(nodes), _stretch_of(nodes, most)):
        found = _grouped(nodes, key)
        if len(found) <= most:
            break
    return tuple(
        OperatorGroup(name, tuple(node.name for node in members), sum(map(flops, members)))
        for name, members in found.items()
    )


def _keys(nodes: Sequence[fx.Node]) -> Iterator[Key]:
    """Yields what nodes of a group have in common, from the finest."""
    yield node_location
    yield lambda node: f"{operator_name(node.target).rpartition('aten.')[2]} in {module_path(node) or 'the model'}"
    deepest = max((module_path(node).count(".") + 1 for node in nodes), default=1)
    for depth in range(deepest, 0, -1):
        yield lambda node, depth=depth: ".".join(module_path(node).split(".")[:depth]) or "the model"  # type: ignore[misc]


def _stretch_of(nodes: Sequence[fx.Node], most: int) -> Key:
    length = max(math.ceil(len(nodes) / most), 1)
    names: dict[fx.Node, str] = {}
    for start in range(0, len(nodes), length):
        members = nodes[start : start + length]
        names.update(dict.fromkeys(members, f"{members[0].name} to {members[-1].name}"))
    return names.__getitem__


def _grouped(nodes: Sequence[fx.Node], key: Key) -> dict[str, list[fx.Node]]:
    homes: dict[fx.Node, str] = {}
    found: dict[str, list[fx.Node]] = {}
    for node in nodes:
        read = next((homes[operand] for operand in node.all_input_nodes if operand in homes), None)
        homes[node] = key(node) if read is None or counts_as_computation(node) else read
        found.setdefault(homes[node], []).append(node)
    return found


# The choice, of any question about sets of groups --------------------------------------------------------------------


MOST_FILLED: Final = 8
"""How many groups are tried that the first choice has no room for."""

ErrorOf = Callable[[frozenset[int]], float]
"""Returns the error with the groups of these positions reduced."""


@dataclass(frozen=True)
class Selection:
    """A choice of groups, by position.

    Attributes:
        reduced: The groups that are reduced, in the order in which they are given up: the last one goes first.
        alone: The error with one group reduced, for each; empty where everything may be.
        error: The error of the choice, measured.
        error_of_all: The error with every group reduced.
    """

    reduced: tuple[int, ...]
    error: float
    error_of_all: float
    alone: tuple[float, ...] = field(default=())

    def smaller(self, share: float) -> Selection:
        """Returns the first of the groups, a share of their number rounded down; the error is not measured."""
        return Selection(self.reduced[: int(len(self.reduced) * share)], math.nan, self.error_of_all, self.alone)


def select(work: Sequence[int], error: ErrorOf, allowed: float) -> Selection:
    """Reduces as much work as an error allows.

    Groups are ordered by the error that each makes alone, for the work that it saves; the longest beginning of that
    order is taken whose error, all taken together, is allowed, found by halving. Then the largest of the groups that
    are left are tried on top. So nothing rests on errors adding up in any way: what is chosen was measured as a whole.

    Args:
        work: What is saved by reducing each group.
        error: Measures; with nothing reduced the error must be allowed.
        allowed: The largest error.
    """
    everything = tuple(range(len(work)))
    error_of_all = error(frozenset(everything))
    if error_of_all <= allowed:
        return Selection(everything, error_of_all, error_of_all)
    alone = tuple(error(frozenset({group})) for group in everything)
    fitting = [group for group in everything if alone[group] <= allowed]
    fitting.sort(key=lambda group: (alone[group] / max(work[group], 1), group))
    low, high, known = 0, len(fitting) + 1, math.nan
    while high - low > 1:
        middle = (low + high) // 2
        found = error(frozenset(fitting[:middle]))
        if found <= allowed:
            low, known = middle, found
        else:
            high = middle
    chosen = fitting[:low]
    left = sorted(fitting[low + 1 :], key=lambda group: (-work[group], group))
    for group in left[:MOST_FILLED]:
        found = error(frozenset({*chosen, group}))
        if found <= allowed:
            chosen.append(group)
            known = found
    return Selection(tuple(chosen), known, error_of_all, alone)
