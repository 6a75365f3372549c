"""Puts a traced module in the place of a call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from trt_core.attributes import add_constant, read_attribute
from trt_core.weight_recipes import RECIPE, Literal
from trt_lowering.node_metadata import provenance_of


def inline_module(gm: fx.GraphModule, call: fx.Node, body: fx.GraphModule) -> None:
    """Replaces a call by the nodes of a traced module, and erases it.

    Args:
        gm: Module that holds the call; constants of the body become its buffers.
        call: The call.
        body: The trace. Its placeholders stand for `call.all_input_nodes`.
    """
    replace_result(call, copy_module(gm, call, body, call.all_input_nodes))
    gm.graph.erase_node(call)


def copy_module(gm: fx.GraphModule, call: fx.Node, body: fx.GraphModule, operands: Sequence[fx.Node]) -> Any:
    """Copies the nodes of a traced module before a call, and returns what stands for the trace's result.

    Args:
        gm: Module that holds the call; constants of the body become its buffers.
        call: The call; the copies tell where they come from as it does.
        body: The trace.
        operands: What its placeholders stand for.
    """
    origin = provenance_of(call)
    given = iter(operands)
    inside: dict[fx.Node, Any] = {}
    result: Any = None
    with gm.graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "placeholder":
                inside[node] = next(given)
                continue
            if node.op == "output":
                result = fx.map_arg(node.args[0], inside.__getitem__)
                continue
            copied = gm.graph.node_copy(node, inside.__getitem__)
            copied.meta = {**origin, "val": node.meta["val"]}
            if node.op == "get_attr":
                value = read_attribute(body, str(node.target))
                copied.target = add_constant(gm, value)
                copied.meta[RECIPE] = Literal(value)
            inside[node] = copied
    return result


def replace_result(call: fx.Node, result: Any) -> None:
    """Redirects the uses of a call to `result`: a node, a number, or a sequence of them."""
    if isinstance(result, fx.Node):
        call.replace_all_uses_with(result)
        return
    for user in list(call.users):
        if user.target is operator.getitem and isinstance(result, (tuple, list)):
            replace_result(user, result[_index(user)])
            user.graph.erase_node(user)
        else:
            user.args = fx.map_arg(user.args, lambda node: result if node is call else node)
            user.kwargs = fx.map_arg(user.kwargs, lambda node: result if node is call else node)


def _index(getitem: fx.Node) -> int:
    index = getitem.args[1]
    assert isinstance(index, int)
    return index
