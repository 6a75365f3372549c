"""Removes nodes that nothing uses."""

from __future__ import annotations

from torch import fx

from trt_core.process_groups import is_unread
from trt_lowering.contract import GraphPass
from trt_lowering.operator_traits import is_pure


class EliminateDeadCode(GraphPass):
    """Removes nodes without users that have no effect, on other processes either; inputs stay.

    Requires: nothing.
    Ensures: every node left is an input, the output, used, or has an effect.
    """

    name = "eliminate_dead_code"

    def requires(self, gm: fx.GraphModule) -> None:
        """Accepts every graph."""

    def call(self, gm: fx.GraphModule) -> int:
        """Erases in reverse order, so that one walk is enough."""
        changes = 0
        for node in reversed(gm.graph.nodes):
            if _is_dead(node):
                gm.graph.erase_node(node)
                changes += 1
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that nothing removable is left."""
        for node in gm.graph.nodes:
            if _is_dead(node):
                self.fail(node, "an unused node is left")


def _is_dead(node: fx.Node) -> bool:
    return not node.users and is_pure(node) and not is_unread(node)
