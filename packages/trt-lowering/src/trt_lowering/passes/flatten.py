"""Makes a captured graph flat: regions that higher-order operators wrap are inlined, run-time assertions removed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trt_core.attributes import read_attribute
from trt_core.internals import schema_name
from trt_core.sizes.expressions import depends_on_data
from trt_lowering.contract import GraphPass
from trt_lowering.expansion import replace_result

_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


class InlineWrappedRegions(GraphPass):
    """Makes the graph flat: the body of a wrapped region takes the place of its call.

    Whether gradients are recorded means nothing to inference, and disabled autocast is what happens anyway. A region
    with autocast enabled means casts that its body does not show yet; `find_autocast_region` finds those, and
    lowering traces such programs anew before it gets here.

    Requires: no region with autocast enabled.
    Ensures: no wrapped region is left.
    """

    name = "inline_wrapped_regions"

    def requires(self, gm: fx.GraphModule) -> None:
        """Checks that no autocast region needs tracing."""
        region = find_autocast_region(gm)
        if region is not None:
            self.fail(region, "the region runs under autocast, whose casts need tracing")

    def call(self, gm: fx.GraphModule) -> int:
        """Inlines regions, nested ones included."""
        changes = 0
        pending = list(gm.graph.nodes)
        while pending:
            node = pending.pop()
            region = wrapped_region(node)
            if region is not None:
                pending.extend(_inline(gm, node, *region))
                changes += 1
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that no region is left."""
        for node in gm.graph.nodes:
            if wrapped_region(node) is not None:
                self.fail(node, "a wrapped region is left")
        self.require_values(gm)


def find_autocast_region(gm: torch.nn.Module) -> fx.Node | None:
    """Returns a region that runs with autocast enabled, nested ones included, None when there is none."""
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        regions: list[fx.Node] = module.graph.find_nodes(op="call_function", target=_AUTOCAST)
        for region in regions:
            if region.args[2]:
                return region
    return None


def wrapped_region(node: fx.Node) -> tuple[fx.Node, tuple[Any, ...]] | None:
    """Returns the attribute that holds the body of a region, and what the body is given; None for any other node."""
    if node.op != "call_function" or node.target not in (_GRAD, _AUTOCAST):
        return None
    body_at = 1 if node.target is _GRAD else 4
    holder = node.args[body_at]
    assert isinstance(holder, fx.Node)
    return holder, node.args[body_at + 1 :]


def _inline(gm: fx.GraphModule, call: fx.Node, holder: fx.Node, given: tuple[Any, ...]) -> list[fx.Node]:
    """Puts the body of a region in the place of its call; returns what it consists of."""
    path = str(holder.target)
    body = read_attribute(gm, path)
    inside: dict[fx.Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), given, strict=True))
    with gm.graph.inserting_before(call):
        result = gm.graph.graph_copy(body.graph, inside)
    copies: list[fx.Node] = list(inside.values())[len(given) :]
    for copied in copies:
        if copied.op == "get_attr":
            copied.target = f"{path}.{copied.target}"
    replace_result(call, result)
    gm.graph.erase_node(call)
    if not holder.users:
        gm.graph.erase_node(holder)
    return copies


_CHECKS = (
    "aten::_assert",
    "aten::sym_constrain_range",
    "aten::_functional_sym_constrain",
    "aten::_functional_assert",
)
_CHECKS_OF_TENSORS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


class RemoveAssertions(GraphPass):
    """Removes nodes that only check.

    Engines check their inputs against their profile, so a second check in the graph costs time and cuts blocks apart.

    Requires: nothing.
    Ensures: no assertion and no call of a guard module is left, but for those that are kept.

    Args:
        keep_values: Whether checks of values stay (`assert (x > 0).all()`, `assert x.argmax().item() < 3`): no profile
            knows these.
    """

    name = "remove_assertions"

    def __init__(self, *, keep_values: bool = False) -> None:
        self._keep_values = keep_values

    def requires(self, gm: fx.GraphModule) -> None:
        """Accepts every graph."""

    def call(self, gm: fx.GraphModule) -> int:
        """Erases the checks, the last first, since tokens chain them."""
        changes = 0
        for node in reversed(gm.graph.nodes):
            if not self._goes(node):
                if is_assertion(node):
                    node.meta.setdefault("val", None)  # which AOTAutograd leaves out
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
            if self._goes(node):
                self.fail(node, "an assertion is left")

    def _goes(self, node: fx.Node) -> bool:
        return is_assertion(node) and not (self._keep_values and checks_values(node))


def checks_values(node: fx.Node) -> bool:
    """Whether the node checks values of tensors, or numbers that were read from them; guards check sizes of inputs."""
    if node.target is torch.ops.aten._assert_scalar.default:
        return isinstance(node.args[0], fx.Node) and depends_on_data(node.args[0].meta.get("val"))
    return node.target in _CHECKS_OF_TENSORS


def is_assertion(node: fx.Node) -> bool:
    """Whether the node checks something and computes nothing that others use."""
    if node.op == "call_module":
        return str(node.target) == "_guards_fn"
    return schema_name(node.target).startswith(_CHECKS)
