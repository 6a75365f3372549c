"""`require_full_compilation`: what keeps a graph from running in engines alone."""

from __future__ import annotations

from typing import Final

from torch import fx

from trt_core import IncompleteCompilationError, Verdict, operator_name
from trt_core.provenance import node_location
from trt_partition.plan import BlockKind, PartitionPlan

_MOST_LISTED: Final = 50


def find_obstacles(plan: PartitionPlan) -> dict[str, Verdict]:
    """Returns why nodes run in PyTorch blocks, by node name; empty when engines run everything."""
    obstacles: dict[str, Verdict] = {}
    for block in plan.blocks:
        if block.kind is BlockKind.TORCH:
            for name in block.nodes:
                refusal = plan.refusal(name)
                if refusal is not None:
                    obstacles[name] = refusal
    return obstacles


def require_complete(graph_module: fx.GraphModule, plan: PartitionPlan) -> None:
    """Checks that engines run everything.

    Raises:
        IncompleteCompilationError: Nodes run in PyTorch; the message lists them with their reasons.
    """
    obstacles = find_obstacles(plan)
    if not obstacles:
        return
    nodes = {node.name: node for node in graph_module.graph.nodes}
    lines = [_describe(nodes[name], refusal) for name, refusal in obstacles.items()]
    if len(lines) > _MOST_LISTED:
        lines[_MOST_LISTED:] = [f"and {len(lines) - _MOST_LISTED} more"]
    raise IncompleteCompilationError(
        f"require_full_compilation is set, and {len(obstacles)} operators would run in PyTorch",
        why="".join(f"\n    {line}" for line in lines),
        hint="remove these obstacles, or compile without require_full_compilation",
    )


def _describe(node: fx.Node, refusal: Verdict) -> str:
    source = f" ({refusal.source})" if refusal.source else ""
    return f"{operator_name(node.target)} at {node_location(node)}: {refusal.code} {refusal.message}{source}"
