"""Turns in-place operators into functional ones, node by node, where that is enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.aliasing import AliasClasses
from trt_lowering.contract import GraphPass
from trt_lowering.functional_counterpart import insert_functional
from trt_lowering.operator_traits import mutated_arguments, tensor_value

aten = torch.ops.aten


class Functionalize(GraphPass):
    """Replaces in-place operators by their functional counterparts and redirects later uses.

    A value that is written to must have no other view that is used later: then the new value simply takes over.
    Writes to inputs, parameters and buffers become `aten.copy_` write backs at the end of the graph, and a result that
    is what was written to stays the input, parameter or buffer itself. Where a view is
    used after its base was written to, or the other way round, the write is *entangled*: the graph is left as it is
    from there on, `entangled` names the node, and lowering traces the whole program instead.

    Requires: values on nodes.
    Ensures: unless `entangled` is set, no in-place operator is left but write backs at the end (with
        `write_back=False`, none but those on inputs and attributes).

    Args:
        write_back: Whether writes to inputs and attributes become write backs; otherwise they stay as they are.

    Attributes:
        entangled: The first in-place node that could not be rewritten, None when all could.
    """

    name = "functionalize"

    def __init__(self, *, write_back: bool = True) -> None:
        self.write_back = write_back
        self.entangled: fx.Node | None = None

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites in-place operators in the order of the graph."""
        return self.rewrite(gm.graph)

    def rewrite(self, graph: fx.Graph) -> int:
        """Rewrites a graph that has no module yet; see the class."""
        self.entangled = None
        if not any(_writes(node) for node in graph.nodes):
            return 0
        order = {node: index for index, node in enumerate(graph.nodes)}
        aliases = AliasClasses()
        written: dict[fx.Node, fx.Node] = {}
        changes = 0
        for node in list(graph.nodes):
            if node.target is aten.detach_.default:  # which export puts behind every constant; it writes nothing
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
                changes += 1
                continue
            if not _writes(node):
                aliases.add(node)
                continue
            if not self._rewrite_node(graph, node, aliases, order, written):
                if self.entangled is not None:
                    return changes
                aliases.add(node)
                continue
            changes += 1
        changes += _insert_write_backs(graph, written)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that in-place operators are gone."""
        self.require_values(gm)
        if self.entangled is not None:
            return
        for node in gm.graph.nodes:
            if _writes(node) and self.write_back and node.target is not aten.copy_.default:
                self.fail(node, f"the in-place operator {node.target} is left")

    def _rewrite_node(
        self,
        graph: fx.Graph,
        node: fx.Node,
        aliases: AliasClasses,
        order: dict[fx.Node, int],
        written: dict[fx.Node, fx.Node],
    ) -> bool:
        """Replaces one in-place node; False when it stays (`entangled` says whether that is a problem)."""
        positions = mutated_arguments(node.target)
        target = node.args[0] if positions == (0,) and node.args else None
        if not isinstance(target, fx.Node) or tensor_value(target) is None:
            self.entangled = node
            return False
        state = aliases.state_of(target)
        if state is not None and not self.write_back:
            return False
        now = order[node]
        same = aliases.same_tensor(target)
        if state is not None and state not in same:
            self.entangled = node  # a write through a view of state
            return False
        for member in aliases.members(target):
            if member not in same and _used_after(member, node, order, now):
                self.entangled = node
                return False
        replacement = insert_functional(graph, node, target)
        if replacement is None:
            self.entangled = node
            return False
        order[replacement] = now
        for member in same:
            for user in list(member.users):
                if user is not node and order.get(user, -1) > now:
                    user.replace_input_with(member, replacement)
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)
        aliases.take_over(replacement, target)
        if state is not None:
            written[state] = replacement
        return True


def _writes(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, OpOverload) and bool(mutated_arguments(node.target))


def _used_after(member: fx.Node, node: fx.Node, order: dict[fx.Node, int], now: int) -> bool:
    return any(user is not node and order.get(user, -1) > now for user in member.users)


def _insert_write_backs(graph: fx.Graph, written: dict[fx.Node, fx.Node]) -> int:
    if not written:
        return 0
    output = graph.output_node()
    with graph.inserting_before(output):
        for state, value in written.items():
            copy: fx.Node = graph.call_function(aten.copy_.default, (state, value))
            meta: dict[str, Any] = {key: item for key, item in value.meta.items() if key != "val"}
            copy.meta.update(meta)
            copy.meta["val"] = state.meta["val"]
    states = {value: state for state, value in written.items()}
    output.args = fx.map_arg(output.args, lambda node: states.get(node, node))
    return len(written)
