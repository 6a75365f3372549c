"""Marks the nodes that stay in float32 where the rest is reduced."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from trt_core.precision import EXCLUDED, KeptInFloat32, exclusion_of
from trt_lowering.contract import GraphPass
from trt_lowering.precision_rules import is_reducible


class ExcludeFromReduction(GraphPass):
    """Notes on nodes that they are not to be reduced, for the passes that change types. Changes no computation.

    It runs twice: before decomposition, where operators and names are those of the model, so that the pieces of an
    excluded operator inherit the mark; and after it, where operators and names are those of engines and reports.

    Requires: values on nodes.
    Ensures: every node that a rule holds for is marked.

    Args:
        rule: Why a node stays in float32; None where nothing is against reducing it.
    """

    name = "exclude_from_reduction"

    def __init__(self, rule: Callable[[fx.Node], KeptInFloat32 | None]) -> None:
        self._rule = rule

    def call(self, gm: fx.GraphModule) -> int:
        """Applies the rule to every node that has to do with float32 tensors."""
        marked = 0
        for node in gm.graph.nodes:
            if exclusion_of(node) is None and is_reducible(node):
                found = self._rule(node)
                if found is not None:
                    node.meta[EXCLUDED] = found
                    marked += 1
        return marked
