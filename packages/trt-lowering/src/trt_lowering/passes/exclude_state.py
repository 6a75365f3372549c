"""Keeps what carries a state on in float32: parts that are not written stay as they are, and counters count."""

from __future__ import annotations

from typing import Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_core.precision import EXCLUDED, KeptInFloat32, PrecisionRule, exclusion_of
from trt_lowering.contract import GraphPass
from trt_lowering.moving_operators import moves
from trt_lowering.node_metadata import STATE, graph_results, same_shape
from trt_lowering.operator_traits import is_float32, tensor_value

_WHY: Final = "carries a state on to its next value"

_ADDING: Final = frozenset({"aten::index_add", "aten::index_reduce", "aten::scatter_add", "aten::scatter_reduce"})
"""Operators that add to elements of a state, each by itself."""


class ExcludeState(GraphPass):
    """Marks what leads from the old value of a state to its new one by movement and elementwise arithmetic.

    A buffer or an input that a model writes to belongs to the caller. Where it is a cache, most of it is only moved,
    and would be rounded, or become infinite, without having been written; where it is a counter or an average, what is
    added would be lost in a narrow type. Other operators, such as a recurrent layer's product, are reduced as anywhere.

    A new value is what is written back, or, where states are noted (`STATE`), a result of the same shape.

    Requires: values on nodes.
    Ensures: every such node is marked.
    """

    name = "exclude_state"

    def call(self, gm: fx.GraphModule) -> int:
        """Finds what follows from a state along the graph, and marks against it from what is written."""
        next_values = _next_values(gm.graph)
        moved = _moved(gm.graph) if next_values else set()
        found: set[fx.Node] = set()
        for state, values in next_values.items():
            follows = _followers(state)
            marked: set[fx.Node] = set()
            pending = [value for value in values if value in follows or value in moved]
            while pending:
                node = pending.pop()
                if node not in marked:
                    marked.add(node)
                    pending.extend(item for item in node.all_input_nodes if item in follows or item in moved)
            found |= marked
        fresh = [node for node in found if exclusion_of(node) is None]
        for node in fresh:
            node.meta[EXCLUDED] = KeptInFloat32(PrecisionRule.STATE, _WHY)
        return len(fresh)


def _next_values(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Returns the states in float32 with what is, or may be, their next value."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        state, value = node.args[:2]
        if isinstance(state, fx.Node) and isinstance(value, fx.Node) and is_float32(state):
            found.setdefault(state, []).append(value)
    results = [item for item in graph_results(graph) if isinstance(item, fx.Node) and is_float32(item)]
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr") and node.meta.get(STATE) and is_float32(node):
            alike = [item for item in results if same_shape(item.meta["val"], node.meta["val"])]
            found.setdefault(node, []).extend(alike)
    return found


def _followers(state: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = [state]
    while pending:
        for user in pending.pop().users:
            if user not in found and _carries(user):
                found.add(user)
                pending.append(user)
    return found


def _moved(graph: fx.Graph) -> set[fx.Node]:
    """Returns what is nothing but elements of inputs and attributes: storing them in a state rounds nothing either."""
    given = {node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    moved: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and moves(node) and _holds_float32(node):
            sources = [item for item in node.all_input_nodes if _holds_float32(item)]
            if all(source in given or source in moved for source in sources):
                moved.add(node)
    return moved


def _carries(node: fx.Node) -> bool:
    """Whether an operator moves what it is given, or computes element by element; conditions on a state are of it."""
    value = tensor_value(node)
    if not (_holds_float32(node) or (value is not None and value.dtype is torch.bool)):
        return False
    if moves(node):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or node.target._schema.name in _ADDING


def _holds_float32(node: fx.Node) -> bool:
    """Whether a node stands for a tensor of float32, or for several tensors."""
    return is_float32(node) or isinstance(node.meta.get("val"), (tuple, list))
