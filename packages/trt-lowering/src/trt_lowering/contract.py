"""The contract of a lowering pass, and the form of graph that lowering hands on, checked."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx

from trt_core import CompilationSettings, LoweringError
from trt_core.attributes import read_attribute
from trt_core.held_arguments import held_to_signature
from trt_core.internals import HigherOrderOperator, OpOverload
from trt_core.provenance import node_location, source_line
from trt_core.wording import kind_of
from trt_lowering.operator_traits import is_kept_in_torch, is_symbolic_function, mutated_arguments


@dataclass(frozen=True)
class PassResult:
    """What a pass did.

    Attributes:
        name: Name of the pass.
        changes: How many nodes it added, replaced or removed, counted as the pass sees fit; 0 when it did nothing.
    """

    name: str
    changes: int

    @property
    def changed(self) -> bool:
        """Whether the graph is another one than before."""
        return self.changes > 0


Observer = Callable[[str, fx.GraphModule], None]
"""Called after a pass with its name and the graph; it may compile and run the graph, and must not change it."""


class GraphPass(abc.ABC):
    """A rewrite of a graph module in place, with a checked contract.

    A pass keeps the numbers that the graph computes, its inputs and its outputs, unless its docstring says
    otherwise. It does not recompile the module: `run_passes` does that once.
    """

    name: str

    def requires(self, gm: fx.GraphModule) -> None:
        """Checks what the pass needs of its input; `fail` says what is missing."""
        self.require_values(gm)

    @abc.abstractmethod
    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites the graph, and returns the number of changes."""

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks what the pass promises of its output; runs only when the graph changed."""
        self.require_values(gm)

    def __call__(self, gm: fx.GraphModule) -> PassResult:
        """Checks, rewrites, checks.

        Raises:
            LoweringError: The graph does not fulfil what the pass requires, or the pass broke its promise. The error
                names the pass, the node and the condition.
        """
        self.requires(gm)
        changes: Any = self.call(gm)
        if not isinstance(changes, int):
            raise LoweringError(
                f"lowering pass {self.name!r}: call returned {kind_of(changes)}",
                hint="return the number of changes to the graph, 0 for none",
            )
        result = PassResult(self.name, changes)
        if result.changed:
            self.ensures(gm)
        return result

    def require_values(self, gm: fx.GraphModule) -> None:
        """Checks that every node that carries a value says which (`meta["val"]`)."""
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "call_function") and "val" not in node.meta:
                self.fail(node, 'the node has no meta["val"]')

    def fail(self, node: fx.Node, condition: str) -> NoReturn:
        """Raises the error for a condition that a node breaks."""
        where = node_location(node)
        line = source_line(node)
        raise LoweringError(
            f"lowering pass {self.name!r}: {condition}",
            where=f"{where} ({line})" if line else where,
            hint="this is a defect of lowering unless the graph was edited by hand: report it with the model",
        )


class OperatorPass(GraphPass):
    """A rewrite of calls, but for those that are to run in PyTorch.

    Args:
        settings: Operators in `torch_executed_ops` stay as they are.
    """

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings

    def stays(self, target: Any) -> bool:
        """Whether settings keep an operator in PyTorch."""
        return is_kept_in_torch(target, self._settings)


@held_to_signature
def run_passes(
    gm: fx.GraphModule, passes: Iterable[GraphPass], *, recompile: bool = True, observe: Observer | None = None
) -> list[PassResult]:
    """Runs passes in order.

    Args:
        gm: The module, rewritten in place.
        passes: The passes.
        recompile: Whether to compile the module's code once when any pass changed the graph. Compiling costs more
            than most passes, so a caller that goes on rewriting leaves it for later.
        observe: Called after every pass.

    Raises:
        LoweringError: A pass broke its contract.
    """
    results = []
    for step in passes:
        results.append(step(gm))
        if observe is not None:
            observe(step.name, gm)
    if recompile and any(result.changed for result in results):
        gm.recompile()
    return results


_COPY = torch.ops.aten.copy_.default


def check_graph_form(gm: fx.GraphModule) -> None:
    """Checks that a graph has the form that everything after lowering relies on.

    The form: `placeholder`, `get_attr`, `call_function` and `output` nodes only; targets of calls are operator
    overloads, higher-order operators, or Python functions on symbolic integers; every node but `output` carries
    `meta["val"]` (`get_attr` nodes that name a sub-graph of control flow carry none); attributes exist; nothing is
    written in place, except by `aten.copy_.default` to inputs and attributes at the end of the graph; the output is
    one flat tuple.

    Raises:
        LoweringError: The graph breaks a rule; the error names the node and the rule.
    """
    writing: fx.Node | None = None
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            _require_value(node)
        elif node.op == "get_attr":
            if not isinstance(_attribute(gm, node), torch.nn.Module):
                _require_value(node)
        elif node.op == "call_function":
            _check_call(node)
            _require_value(node)
            if node.target is _COPY:
                writing = node
            elif writing is not None:
                _fail(node, f"a node follows the write back {writing.name!r}; write backs stay at the end")
        elif node.op == "output":
            _check_output(node)
        else:
            _fail(node, f"nodes of kind {node.op!r} are not part of the form")


def _check_call(node: fx.Node) -> None:
    target = node.target
    if isinstance(target, OpOverload):
        if target is _COPY:
            destination = node.args[0]
            if not (isinstance(destination, fx.Node) and destination.op in ("placeholder", "get_attr")):
                _fail(node, "a write back must go to an input or an attribute")
        elif mutated_arguments(target):
            _fail(node, f"the operator {target} writes in place")
    elif not isinstance(target, HigherOrderOperator) and not is_symbolic_function(target):
        _fail(node, f"the target {target!r} is neither an operator overload nor a function on symbolic integers")


def _check_output(node: fx.Node) -> None:
    (result,) = node.args
    if not isinstance(result, (tuple, list)):
        _fail(node, "the output is not a flat tuple")
    for item in result:
        if isinstance(item, (tuple, list, dict)):
            _fail(node, "the output is nested")


def _require_value(node: fx.Node) -> None:
    if "val" not in node.meta:
        _fail(node, 'the node has no meta["val"]')


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    try:
        return read_attribute(gm, str(node.target))
    except AttributeError:
        _fail(node, f"the module has no attribute {node.target!r}")


def _fail(node: fx.Node, rule: str) -> NoReturn:
    raise LoweringError(
        f"the graph does not have the form that lowering promises: {rule}",
        where=node_location(node),
        hint="this is a defect of lowering: report it with the model",
    )
