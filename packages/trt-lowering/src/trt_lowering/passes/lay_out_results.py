"""Lets results lie in memory as they did when the program was captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from trt_core.sizes.expressions import depends_on_data
from trt_lowering.contract import GraphPass
from trt_lowering.memory_order import lies_in, memory_order
from trt_lowering.node_metadata import graph_results, insert_call, same_shape
from trt_lowering.operator_traits import tensor_value
from trt_lowering.results import base_of

aten = torch.ops.aten


class LayOutResults(GraphPass):
    """Gives results the order in memory that they had in the captured program; what replaces operators has its own.

    Results that share memory with each other, an input or an attribute stay as they are, and so do those with gaps.

    Requires: values on nodes.
    Ensures: values on nodes.

    Args:
        captured: What `captured_results` returned.
    """

    name = "lay_out_results"

    def __init__(self, captured: Sequence[torch.Tensor | None]) -> None:
        self._captured = captured

    def call(self, gm: fx.GraphModule) -> int:
        """Copies results that lie otherwise; returns how many do."""
        changes = 0
        output = gm.graph.output_node()
        own = captured_results(gm.graph)
        for item, made, wanted in zip(graph_results(gm.graph), own, self._captured, strict=True):
            if made is None or wanted is None or not same_shape(made, wanted):
                continue
            order = memory_order(wanted)
            if order is None:
                continue
            if lies_in(made, order):
                if base_of(item) is item:
                    item.meta["val"] = wanted  # strides of axes of extent 1 may differ
                continue
            with gm.graph.inserting_before(output):
                output.replace_input_with(item, _laid_out(gm.graph, item, order))
            changes += 1
        return changes


def captured_results(graph: fx.Graph) -> list[torch.Tensor | None]:
    """Returns the results of a graph that alone lie in memory which the graph made; None in the places of others."""
    results = graph_results(graph)
    uses = Counter(base_of(item) for item in results if isinstance(item, fx.Node))
    return [
        tensor_value(item) if isinstance(item, fx.Node) and uses[base_of(item)] == 1 and _is_made(item) else None
        for item in results
    ]


def _is_made(item: fx.Node) -> bool:
    value = tensor_value(item)
    if base_of(item).op in ("placeholder", "get_attr") or value is None or value.layout is not torch.strided:
        return False
    return not any(isinstance(extent, torch.SymInt) and depends_on_data(extent) for extent in value.shape)


def _laid_out(graph: fx.Graph, item: fx.Node, order: list[int]) -> fx.Node:
    """Adds what copies a tensor into memory in which its axes lie in some order."""

    def call(target: Any, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        with torch.no_grad():
            value = target(node.meta["val"], *args, **kwargs)
        return insert_call(graph, target, (node, *args), kwargs, value=value, origin=item)

    if order == sorted(order):
        return call(aten.clone.default, item, memory_format=torch.contiguous_format)
    moved = call(aten.permute.default, item, order)
    dense = call(aten.clone.default, moved, memory_format=torch.contiguous_format)
    return call(aten.permute.default, dense, [order.index(axis) for axis in range(len(order))])
