"""The form of graph that lowering hands on, checked."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import fx

from trt_core import LoweringError
from trt_core.internals import HigherOrderOperator, OpOverload
from trt_core.provenance import node_location
from trt_lowering.operator_traits import is_symbolic_function, mutated_arguments

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
                _fail(
                    node,
                    f"a node follows the write back {writing.name!r}; write backs stay at the end",
                )
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
        _fail(
            node,
            f"the target {target!r} is neither an operator overload nor a function on symbolic integers",
        )


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
    found: Any = gm
    for part in str(node.target).split("."):
        if not hasattr(found, part):
            _fail(node, f"the module has no attribute {node.target!r}")
        found = getattr(found, part)
    return found


def _fail(node: fx.Node, rule: str) -> NoReturn:
    raise LoweringError(
        f"the graph does not have the form that lowering promises: {rule}",
        where=node_location(node),
        hint="this is a defect of lowering: report it with the model",
    )
