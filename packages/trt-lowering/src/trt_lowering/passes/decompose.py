"""Decomposes the operators that have no converter, each where it stands."""

from __future__ import annotations

from torch import fx

from trt_lowering.contract import GraphPass
from trt_lowering.decomposition_table import DecompositionRules
from trt_lowering.expansion import Expander
from trt_lowering.inlining import inline_module


class Decompose(GraphPass):
    """Replaces calls without a converter by what PyTorch's tables say they are made of, as far as the tables go.

    The rest of the graph is not touched or traced again. A call stays whole when it has a converter, when a setting
    keeps it in PyTorch, when it is random or depends on the values of tensors, when no decomposition exists, or when
    its decomposition would assume something about a dynamic shape.

    Requires: values on nodes.
    Ensures: values on nodes.

    Args:
        rules: Which operators stay whole.
    """

    name = "decompose"

    def __init__(self, rules: DecompositionRules) -> None:
        self.expander = Expander(rules)

    def call(self, gm: fx.GraphModule) -> int:
        """Inlines the expansion of every call that has one."""
        changes = 0
        for node in list(gm.graph.nodes):
            expansion = self.expander.expand(node)
            if expansion is not None:
                inline_module(gm, node, expansion.module)
                changes += 1
        return changes
