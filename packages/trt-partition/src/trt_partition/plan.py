"""The plan that a partitioner makes: which node runs in which block, why not in an engine, and what that obstructs."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from torch import fx

from trt_core import IncompleteCompilationError, Verdict, operator_name
from trt_core.held_arguments import held_to_signature
from trt_core.provenance import node_location
from trt_core.wording import counted
from trt_partition.sweep import Sweep


class BlockKind(enum.Enum):
    """Where a block runs."""

    ENGINE = "engine"
    TORCH = "torch"

    @property
    def prefix(self) -> str:
        """Start of the names of such blocks."""
        return "_run_on_acc_" if self is BlockKind.ENGINE else "_run_on_gpu_"


@dataclass(frozen=True)
class Block:
    """A part of the graph that runs as one engine, or as one PyTorch module.

    Attributes:
        name: Name of the submodule, `_run_on_acc_0`; the number counts blocks of both kinds in order.
        kind: Where it runs.
        nodes: Names of its `call_function` nodes, in graph order.
        computations: Operators in it that `min_block_size` counts.
    """

    name: str
    kind: BlockKind
    nodes: tuple[str, ...]
    computations: int


@dataclass(frozen=True)
class PartitionPlan:
    """What a partitioner decided. Immutable; the graph is untouched.

    Attributes:
        verdicts: The verdict of every `call_function` node, by name: can it run in an engine?
        fallbacks: Why nodes that could run in an engine run in PyTorch all the same, by name.
        blocks: The blocks, in topological order: each uses results of earlier ones only.
        outside: Names of nodes that compute numbers for the outputs of the model alone; they stay in the root graph.
        sweep: What every other `min_block_size` would give.
    """

    verdicts: Mapping[str, Verdict]
    fallbacks: Mapping[str, Verdict]
    blocks: tuple[Block, ...]
    outside: tuple[str, ...]
    sweep: Sweep

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdicts", MappingProxyType(dict(self.verdicts)))
        object.__setattr__(self, "fallbacks", MappingProxyType(dict(self.fallbacks)))

    @property
    def engines(self) -> tuple[Block, ...]:
        """The blocks that become engines."""
        return tuple(block for block in self.blocks if block.kind is BlockKind.ENGINE)

    def refusal(self, name: str) -> Verdict | None:
        """Returns why a node runs in PyTorch, or None when it runs in an engine."""
        verdict = self.verdicts[name]
        return self.fallbacks.get(name) if verdict.supported else verdict


_MOST_LISTED: Final = 50


@held_to_signature
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
        f"require_full_compilation is set, and {counted(len(obstacles), 'operator')} would run in PyTorch",
        why="".join(f"\n    {line}" for line in lines),
        hint="remove these obstacles, or compile without require_full_compilation",
    )


def _describe(node: fx.Node, refusal: Verdict) -> str:
    source = f" ({refusal.source})" if refusal.source else ""
    return f"{operator_name(node.target)} at {node_location(node)}: {refusal.code} {refusal.message}{source}"
