"""Removes run-time assertions: input guards, shape and value checks, range constraints."""

from __future__ import annotations

from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.contract import GraphPass

_CHECKS = (
    "aten::_assert",
    "aten::sym_constrain_range",
    "aten::_functional_sym_constrain",
    "aten::_functional_assert",
)


class RemoveAssertions(GraphPass):
    """Removes nodes that only check.

    Engines check their inputs against their profile, so a second check in the graph costs time and cuts blocks apart.

    Requires: nothing.
    Ensures: no assertion and no call of a guard module is left.
    """

    name = "remove_assertions"

    def requires(self, gm: fx.GraphModule) -> None:
        """Accepts every graph."""

    def call(self, gm: fx.GraphModule) -> int:
        """Erases the checks, the last first, since tokens chain them."""
        changes = 0
        for node in reversed(gm.graph.nodes):
            if not is_assertion(node):
                continue
            if node.users:
                self.fail(node, "the result of an assertion is used")
            gm.graph.erase_node(node)
            if node.op == "call_module" and hasattr(gm, str(node.target)):
                delattr(gm, str(node.target))
            changes += 1
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that no assertion is left."""
        for node in gm.graph.nodes:
            if is_assertion(node):
                self.fail(node, "an assertion is left")


def is_assertion(node: fx.Node) -> bool:
    """Whether the node checks something and computes nothing that others use."""
    if node.op == "call_module":
        return str(node.target) == "_guards_fn"
    return isinstance(node.target, OpOverload) and node.target._schema.name.startswith(_CHECKS)
