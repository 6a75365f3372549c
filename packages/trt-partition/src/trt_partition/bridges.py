"""Which operator, if engines could run it, would merge the most engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from torch import fx

from trt_core import CompilationSettings, Reason, operator_name
from trt_partition.dependence import Dependences, read_dependences
from trt_partition.effects import Effect
from trt_partition.plan import PartitionPlan
from trt_partition.planner import Leveling

_LASTING: Final = frozenset(
    {
        *(Reason.FORCED_MODULE, Reason.NOT_CONSTANT, Reason.UNSUPPORTED_VALUE, Reason.MUTATION, Reason.SIDE_EFFECT),
        Reason.HIGHER_ORDER,
    }
)
"""Reasons that a converter for the operator would not remove."""

_WORK: Final = 400_000
"""Node visits that the search may take besides a fixed multiple of the graph's own size."""


@dataclass(frozen=True)
class Bridge:
    """An operator that keeps engines apart.

    Attributes:
        operator: Its name, `torch.ops.aten.sort.default`.
        nodes: How many nodes of it run in PyTorch now.
        engines_before: Engines that there are now.
        engines_after: Engines that there would be.
    """

    operator: str
    nodes: int
    engines_before: int
    engines_after: int

    @property
    def merged(self) -> int:
        """How many engines fewer there would be."""
        return self.engines_before - self.engines_after


def find_bridge(graph_module: fx.GraphModule, plan: PartitionPlan, settings: CompilationSettings) -> Bridge | None:
    """Finds the operator whose support would leave the fewest engines, computing no less.

    Tries operators by how often they are refused, as many as a linear budget of work allows, each with one pass over
    the graph.

    Returns:
        The best operator, None when none would merge engines.
    """
    refused = Counter[str]()
    dependences = read_dependences(graph_module.graph)
    flips = _flips(dependences, plan)
    for name in flips:
        if name:
            refused[name] += 1
    engines_before = len(plan.engines)
    if engines_before < 2 or not refused:
        return None
    supported = [plan.verdicts[node.name].supported for node in dependences.nodes]
    affordable = 4 + _WORK // (len(dependences) + dependences.edges)
    best: Bridge | None = None
    for name, count in sorted(refused.items(), key=lambda item: (-item[1], item[0]))[:affordable]:
        able = [now or flip == name for now, flip in zip(supported, flips, strict=True)]
        after = Leveling.earliest(dependences, able).sweep.at(settings.min_block_size).engines
        if 0 < after < (best.engines_after if best else engines_before):
            best = Bridge(name, count, engines_before, after)
    return best


def _flips(dependences: Dependences, plan: PartitionPlan) -> list[str]:
    """Returns the name of the operator by node where a converter would change the verdict, else an empty string."""
    names: list[str] = []
    for position, node in enumerate(dependences.nodes):
        verdict = plan.verdicts[node.name]
        lasting = verdict.supported or verdict.reason in _LASTING or dependences.is_size[position]
        names.append("" if lasting or dependences.effects[position] is not Effect.NONE else operator_name(node.target))
    return names
