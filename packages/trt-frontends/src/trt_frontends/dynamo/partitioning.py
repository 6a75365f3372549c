"""Partitioning: how much of a graph the converters support."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, ConverterSupport, require_registry
from trt_core import read_settings
from trt_partition import get_graph_converter_support as count_supported
from trt_partition import make_plan, make_report, split_into_blocks


def get_graph_converter_support(
    gm: fx.GraphModule,
    torch_executed_ops: Collection[Any] | None = None,
    *,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> tuple[int, int]:
    """Returns how many operators of a graph the converters support, and how many there are.

    Args:
        gm: A graph with metadata, such as `exported_program.module()` or a lowered one.
        torch_executed_ops: Operators to count as unsupported.
        registry: Where converters are looked up.

    Raises:
        SettingsError: An operator is unknown, or the registry is none.
    """
    require_registry(registry)
    settings = read_settings(torch_executed_ops=torch_executed_ops or set())
    return count_supported(_without_guards(gm), ConverterSupport(settings, registry), settings)


def _without_guards(gm: fx.GraphModule) -> fx.GraphModule:
    """`ExportedProgram.module()` adds a call that checks its inputs, which is no operator of the model."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op != "call_module" or node.users:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(gm, graph)


__all__ = ["get_graph_converter_support", "make_plan", "make_report", "split_into_blocks"]
