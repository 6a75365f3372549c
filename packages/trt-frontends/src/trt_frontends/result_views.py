"""Lets what a model returns lie in the memory that it lies in for eager calls.

A block returns tensors of its own. Where the model returns a view of an input, or of another of its results, the graph
around the blocks makes that view itself, from what it was given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from trt_lowering.node_metadata import graph_results
from trt_lowering.operator_traits import is_size_query, is_symbolic_function
from trt_lowering.results import base_of, views_of_results


def restore_result_views(split: fx.GraphModule, lowered: fx.GraphModule) -> None:
    """Replaces results that blocks return by the views that they are for eager calls.

    Args:
        split: A graph that calls blocks, rewritten in place.
        lowered: The graph that it was split from.
    """
    output = split.graph.output_node()
    results = list(graph_results(split.graph))
    originals = list(graph_results(lowered.graph))
    known = dict(zip(_inputs(lowered.graph), _inputs(split.graph), strict=True))
    for original, result in zip(originals, results, strict=True):
        if isinstance(original, fx.Node) and isinstance(result, fx.Node):
            known.setdefault(original, result)
    chains = views_of_results(lowered.graph)
    changed = False
    for position, original in enumerate(originals):
        chain = chains.get(original, []) if isinstance(original, fx.Node) else []
        if not chain or base_of(chain[0]) not in known:
            continue
        copies = {base_of(chain[0]): known[base_of(chain[0])]}
        copies.update({node: known[node] for node in _inputs(lowered.graph)})
        with split.graph.inserting_before(output):
            if all(_copy(split.graph, view, copies) for view in chain):
                results[position], changed = copies[chain[-1]], True
    if changed:
        output.args = (tuple(results),)
        split.graph.eliminate_dead_code()
        split.recompile()


def _inputs(graph: fx.Graph) -> list[fx.Node]:
    return list(graph.find_nodes(op="placeholder"))


def _copy(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> bool:
    """Copies a node behind the sizes that it reads; False where one of them follows from more than inputs."""
    if node in copies:
        return True
    if node.op != "call_function":
        return False
    for operand in node.all_input_nodes:
        if operand in copies:
            continue
        if not _is_size(operand) or not _copy(graph, operand, copies):
            return False
    copied: Any = graph.node_copy(node, copies.__getitem__)
    copies[node] = copied
    return True


def _is_size(node: fx.Node) -> bool:
    if not isinstance(node.meta.get("val"), (int, torch.SymInt)):
        return False
    return is_size_query(node.target) if isinstance(node.target, OpOverload) else is_symbolic_function(node.target)
