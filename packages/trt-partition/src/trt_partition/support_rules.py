"""The rules of ours around a support check.

A support check stays one function on one node. What holds for all of them (settings that keep operators in PyTorch,
nodes that no engine may hold, exceptions that must not escape) is composed around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from trt_core import (
    CompilationSettings,
    OperatorSupport,
    PartitionError,
    Reason,
    SettingsError,
    Verdict,
    operator_name,
    total_verdict,
)
from trt_core.cache_updates import why_not_updated
from trt_core.control_flow import bodies_of, closed_bodies, is_control_flow
from trt_core.held_arguments import held_to_signature
from trt_core.internals import HigherOrderOperator
from trt_core.operators import draws_random_numbers, packet_name
from trt_core.process_groups import is_unread
from trt_core.provenance import PLACEHOLDER_MODULE, plain_path, source_line
from trt_core.wording import did_you_mean, kind_of
from trt_partition.effects import Effect, effect_of
from trt_partition.sizes import SizeTable, find_sizes, is_constant, is_number, placeholder_sizes


@dataclass
class VerdictPass:
    """Asks the support check once for every `call_function` node, in graph order.

    An engine computes sizes itself, from the shapes of its inputs. So a node is refused when it takes a number that
    an engine cannot compute: one that comes from the values of a tensor, from an input of the model that no shape
    tells, or from a function that the support check refuses.

    Attributes:
        support: The composed support check.
        sizes: Nodes that compute sizes.
        inputs: Sizes that can be read from inputs of the graph.
    """

    support: OperatorSupport
    sizes: Set[fx.Node]
    inputs: SizeTable

    def __post_init__(self) -> None:
        self._obstacles: dict[fx.Node, str] = {}

    def run(self, graph: fx.Graph) -> dict[fx.Node, Verdict]:
        """Returns the verdicts by node.

        Raises:
            PartitionError: The graph is not flat: it calls modules or methods.
        """
        verdicts: dict[fx.Node, Verdict] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                self._note_input(node)
            elif node.op == "call_function":
                verdicts[node] = self._verdict(node)
            elif node.op not in ("get_attr", "output"):
                raise PartitionError(
                    f"the graph has a {node.op} node",
                    where=node.name,
                    hint="partition what lowering returns: a flat graph of call_function nodes",
                )
        return verdicts

    def _note_input(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if is_number(value) and not is_constant(value) and self.inputs.find(value) is None:
            self._obstacles[node] = f"`{node.name}` is an input of the model that no tensor's shape tells"

    def _verdict(self, node: fx.Node) -> Verdict:
        verdict = self.support.verdict(node)
        if node in self.sizes:
            self._note_size(node, verdict)
            return verdict
        value = node.meta.get("val")
        if is_number(value):
            self._obstacles[node] = f"`{node.name}` is computed from the values of a tensor"
            if verdict.supported:
                message = "it turns the values of a tensor into a number, and engines return tensors"
                return Verdict.refuse(Reason.UNSUPPORTED_VALUE, message, source_line(node))
            return verdict
        if not verdict.supported:
            return verdict
        obstacle = self._obstacle_before(node)
        return verdict if obstacle is None else Verdict.refuse(Reason.NOT_CONSTANT, obstacle, source_line(node))

    def _obstacle_before(self, node: fx.Node) -> str | None:
        return next(filter(None, map(self._obstacles.get, node.all_input_nodes)), None)

    def _note_size(self, node: fx.Node, verdict: Verdict) -> None:
        if is_constant(node.meta.get("val")):
            return
        if not verdict.supported:
            self._obstacles[node] = f"the number `{node.name}` cannot be computed in an engine: {verdict.message}"
        elif (obstacle := self._obstacle_before(node)) is not None:
            self._obstacles[node] = obstacle


Rule: TypeAlias = Callable[[fx.Node], "Verdict | None"]
"""Refuses a node, or leaves the decision to others."""


@dataclass(frozen=True)
class RuledSupport:
    """A support check behind rules: the first one that refuses a node decides.

    Attributes:
        support: The check.
        rules: In order.
    """

    support: OperatorSupport
    rules: tuple[Rule, ...]

    def verdict(self, node: fx.Node) -> Verdict:
        """Returns the refusal of a rule, else what the check says; an exception becomes `Reason.CHECK_FAILED`.

        A branch or a loop is refused where it runs anything which is refused itself.
        """
        return total_verdict(self._verdict, node)

    def _verdict(self, node: fx.Node) -> Verdict:
        refusal = next((found for rule in self.rules if (found := rule(node)) is not None), None)
        if refusal is not None:
            return refusal
        found = self.support.verdict(node)
        for body in closed_bodies(node) if found.supported and is_control_flow(node.target) else ():
            for item in (item for item in body.graph.nodes if item.op == "call_function"):
                inside = self._verdict(item)
                if not inside.supported:
                    why = f"it runs {operator_name(item.target)}: {inside.message}"
                    return Verdict.refuse(Reason.HIGHER_ORDER, why)
        return found


@held_to_signature
def compose_support(support: OperatorSupport, settings: CompilationSettings) -> OperatorSupport:
    """Puts the rules of the settings and of engines around a support check.

    The order decides which reason a node gets: what the user asked for comes first, then what no engine may hold, then
    the check itself.
    """
    rules: list[Rule] = []
    if settings.torch_executed_ops:
        rules.append(partial(_forced_operator, settings.torch_executed_ops))
    if settings.torch_executed_modules:
        rules.append(partial(_forced_module, settings.torch_executed_modules))
    if settings.check_indices:
        rules.append(_computed_indices)
    return RuledSupport(support, (*rules, _unfit_for_engines))


def _forced_operator(names: frozenset[str], node: fx.Node) -> Verdict | None:
    """Refuses the operators that `torch_executed_ops` names, by overload or by packet."""
    name = operator_name(node.target)
    for spelling in (name, packet_name(name)):
        if spelling in names:
            return Verdict.refuse(Reason.FORCED_OPERATOR, f"torch_executed_ops lists {spelling}")
    return None


def _forced_module(names: frozenset[str], node: fx.Node) -> Verdict | None:
    """Refuses nodes of the modules that `torch_executed_modules` names, by path or by class."""
    name = matching_module(node, names)
    return Verdict.refuse(Reason.FORCED_MODULE, f"torch_executed_modules lists {name}") if name else None


def _act_of(node: fx.Node) -> str:
    if is_unread(node):
        return "only other ranks read what it makes"
    return "it draws random numbers" if draws_random_numbers(node) else "it acts without returning a result"


def _unfit_for_engines(node: fx.Node) -> Verdict | None:
    """Refuses what no engine may hold: mutations, side effects, randomness, control flow, results that are not data."""
    graphs = {holder for holder, _ in bodies_of(node)}
    if isinstance(node.target, HigherOrderOperator) and not graphs:
        return Verdict.refuse(Reason.HIGHER_ORDER)
    effect = effect_of(node)
    if effect is Effect.MUTATION:
        return Verdict.refuse(Reason.MUTATION, why_not_updated(node))
    if effect is Effect.ORDERED:
        return Verdict.refuse(Reason.SIDE_EFFECT, _act_of(node))
    value = node.meta.get("val")
    if not _is_data(value):
        return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"it returns {_describe(value)}")
    for operand in node.all_input_nodes:
        if operand not in graphs and not _is_data(operand.meta.get("val")):
            described = _describe(operand.meta.get("val"))
            return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"its operand `{operand.name}` is {described}")
    return None


def _is_data(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(item is None or _is_data(item) for item in value)
    return isinstance(value, torch.Tensor) or is_number(value)


def _describe(value: Any) -> str:
    return "nothing that is known" if value is None else kind_of(value)


_PARAMETERS: Final = frozenset({"index", "indices", "target"})
"""Schema parameters that hold places of another tensor, as in `gather`, `embedding` and `nll_loss_forward`."""

_PLACES: Final = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def _computed_indices(node: fx.Node) -> Verdict | None:
    """Refuses operators that take indices which are known at run time only; an engine would not check them."""
    schema = getattr(node.target, "_schema", None)
    for position, parameter in enumerate(schema.arguments if schema is not None else ()):
        if parameter.name not in _PARAMETERS:
            continue
        given = node.args[position] if position < len(node.args) else node.kwargs.get(parameter.name)
        if any(_is_computed(item) for item in (given if isinstance(given, (list, tuple)) else [given])):
            message = (
                f"check_indices: {parameter.name} may be out of range, which PyTorch checks and an engine does not"
            )
            return Verdict.refuse(Reason.FORCED_OPERATOR, message)
    return None


def _is_computed(value: Any) -> bool:
    """Whether a value is a tensor of integers that no constant of the graph holds; masks select, and point nowhere."""
    if not isinstance(value, fx.Node) or value.op == "get_attr":
        return False
    meta = value.meta.get("val")
    return isinstance(meta, torch.Tensor) and meta.dtype in _PLACES


@held_to_signature
def get_graph_converter_support(
    graph_module: fx.GraphModule, support: OperatorSupport, settings: CompilationSettings | None = None
) -> tuple[int, int]:
    """Counts what engines could run.

    Args:
        graph_module: A flat graph whose nodes have `meta["val"]`.
        support: The support check.
        settings: Settings whose `torch_executed_ops` and `torch_executed_modules` apply; by default none do.

    Returns:
        The number of `call_function` nodes that are supported, and the number of all of them.

    Raises:
        PartitionError: The graph calls modules or methods.
    """
    graph = graph_module.graph
    composed = compose_support(support, settings or CompilationSettings())
    verdicts = VerdictPass(composed, find_sizes(graph), placeholder_sizes(graph)).run(graph)
    return sum(verdict.supported for verdict in verdicts.values()), len(verdicts)


_CALL: Final = re.compile(r"@\d+")


def module_names(node: fx.Node) -> tuple[str, ...]:
    """Returns what the modules around a node are called, outermost first: path, class, class without its module.

    `nn_module_stack` holds (path, class) pairs; a class is a type or a dotted name, and a module that is called twice
    has `@1` behind its path the second time.
    """
    names: list[str] = []
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        if path == PLACEHOLDER_MODULE:
            continue
        cleaned = plain_path(_CALL.sub("", str(path)))
        full = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)
        names.extend(name for name in (cleaned, full, full.rpartition(".")[2]) if name)
    return tuple(names)


def matching_module(node: fx.Node, names: frozenset[str]) -> str:
    """Returns the name among `names` that a module around the node has, or an empty string."""
    for name in module_names(node):
        if name in names:
            return name
    return ""


@held_to_signature
def modules_in(graph_module: fx.GraphModule) -> frozenset[str]:
    """Returns what the modules around the nodes of a graph are called; see `module_names`."""
    return frozenset(name for node in graph_module.graph.nodes for name in module_names(node))


@held_to_signature
def require_known_modules(
    graph_module: fx.GraphModule, settings: CompilationSettings, elsewhere: Collection[str] = ()
) -> None:
    """Checks that every name in `torch_executed_modules` names a module of the graph.

    For graphs that hold a whole model. `torch.compile` may cut a model into graphs that each hold some modules only,
    so a name that is missing from one of those is no mistake.

    Args:
        graph_module: A graph.
        settings: Compilation settings.
        elsewhere: What modules of other graphs of the model are called.

    Raises:
        SettingsError: A name matches no module; the message suggests the nearest one.
    """
    if not settings.torch_executed_modules:
        return
    known = modules_in(graph_module).union(elsewhere)
    for name in sorted(settings.torch_executed_modules - known):
        raise SettingsError(
            f"unknown module {name!r}",
            where="torch_executed_modules",
            why="no node of the graph belongs to a module with that path or class",
            hint=did_you_mean(name, known) or "write a path such as encoder.layer.0, or a class name",
        )
