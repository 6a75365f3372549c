"""Which memory the results of a graph lie in.

A model may return a tensor that it made, an input or a parameter, or a view of any of them. Callers may write to what
they get, so lowering must neither make two of these one, nor one of them two.
"""

from __future__ import annotations

import operator

from torch import fx

from trt_core.internals import OpOverload, schema_name
from trt_core.operators import argument
from trt_lowering.node_metadata import graph_results
from trt_lowering.operator_traits import may_view, tensor_value


def viewed_by(node: fx.Node) -> fx.Node | None:
    """Returns the node that a node may be a view of, None for one that has memory of its own."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return source if viewed_by(source) is not None else None
    if not isinstance(node.target, OpOverload) or not may_view(node):
        return None
    return node.args[0] if can_share(node, node.args[0]) else None


def can_share(node: fx.Node, source: fx.Node) -> bool:
    """Rules out casts and moves, which copy unless bits are taken for another type."""
    if schema_name(node.target) == "aten::to" and argument(node, "copy"):
        return False
    mine, other = tensor_value(node), tensor_value(source)
    if mine is None or other is None or (mine.dtype == other.dtype and mine.device == other.device):
        return True
    kinds = ("aten::view", "aten::real", "aten::imag")
    return not isinstance(node.target, OpOverload) or schema_name(node.target).startswith(kinds)


def base_of(node: fx.Node) -> fx.Node:
    """Returns the node that made the memory which a node may lie in."""
    source = viewed_by(node)
    while source is not None:
        node, source = source, viewed_by(source)
    return node


def views_of_results(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Returns, for every result, the views that lead to it from its base, in order; empty when it is its own base."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for item in graph_results(graph):
        if not isinstance(item, fx.Node) or item in found:
            continue
        chain = [item]
        while (source := viewed_by(chain[-1])) is not None:
            chain.append(source)
        found[item] = chain[-2::-1]
    return found


def result_bases(graph: fx.Graph) -> set[fx.Node]:
    """Returns the nodes whose memory the results may lie in."""
    return {base_of(item) for item in graph_results(graph) if isinstance(item, fx.Node)}
