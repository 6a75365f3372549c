"""Removes operators that return what they are given: dropout at inference, casts to the same type, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.internals import OpOverload
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import same_layout, same_shape
from trt_lowering.operator_traits import (
    argument,
    is_kept_in_torch,
    may_alias,
    mutated_arguments,
    tensor_value,
)
from trt_lowering.results import base_of, result_bases

Test = Callable[[fx.Node, torch.Tensor, torch.Tensor], bool]


class RemoveIdentities(GraphPass):
    """Removes nodes whose result equals an argument for every input: the first one, of copies the one that is copied.

    Requires: no in-place operator but write backs, so that a copy and what was copied can never differ later.
    Ensures: values on nodes.

    Args:
        settings: Operators in `torch_executed_ops` stay.
    """

    name = "remove_identities"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings

    def requires(self, gm: fx.GraphModule) -> None:
        """Checks that values are immutable."""
        self.require_values(gm)
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.copy_.default or not isinstance(node.target, OpOverload):
                continue
            if mutated_arguments(node.target):
                self.fail(node, "the graph still has in-place operators")

    def call(self, gm: fx.GraphModule) -> int:
        """Redirects uses of identities to their argument."""
        changes = 0
        written, bases = _written(gm.graph), result_bases(gm.graph)
        for node in list(gm.graph.nodes):
            if not is_identity(node) or is_kept_in_torch(node.target, self._settings):
                continue
            source = node.args[_place(node)]
            assert isinstance(source, fx.Node) and isinstance(node.target, OpOverload)
            if base_of(source) in written:
                continue  # a snapshot of state that the graph overwrites when it ends
            if node in bases and not may_alias(node.target) and _is_seen(base_of(source), bases):
                continue  # callers may write to a result, and must not reach inputs, parameters or another result by it
            if _is_another_object(node, source):
                continue  # callers may resize a result or ask for its gradient, and must not reach an input by it
            if node in bases:
                bases.add(base_of(source))
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
            changes += 1
        return changes


def is_identity(node: fx.Node) -> bool:
    """Whether the node's result equals what it takes in value, shape and type, for every input."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or len(node.args) <= _place(node):
        return False
    test = _TESTS.get(node.target._schema.name)
    source = node.args[_place(node)]
    if test is None or not isinstance(source, fx.Node):
        return False
    before, after = tensor_value(source), tensor_value(node)
    if before is None or after is None or before.dtype != after.dtype or before.device != after.device:
        return False
    return same_shape(before, after) and test(node, before, after)


def _place(node: fx.Node) -> int:
    """Position of the argument that an identity returns."""
    return int(node.target is torch.ops.aten.copy.default)


def _written(graph: fx.Graph) -> frozenset[fx.Node]:
    copies = (node for node in graph.nodes if node.target is torch.ops.aten.copy_.default)
    return frozenset(node.args[0] for node in copies if isinstance(node.args[0], fx.Node))


def _is_seen(base: fx.Node, bases: set[fx.Node]) -> bool:
    return base.op != "call_function" or base in bases


def _is_another_object(node: fx.Node, source: fx.Node) -> bool:
    """Whether callers can tell a result from the input, or the other result, that it lies in the memory of."""
    assert isinstance(node.target, OpOverload)
    if node.target._schema.name not in _MAKES_OBJECT or not _is_result(node):
        return False
    return source.op != "call_function" or _is_result(source)


def _is_result(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _always(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    return True


def _is_inference(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    flag: Any = argument(node, "train")
    return flag is False or argument(node, "p") == 0


def _keeps_layout(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    return same_layout(before, after)


def _is_scattered(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a copy keeps the layout, or its values are all that anybody takes of it."""
    scatters = (torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default)
    takers = [user.target in scatters and user.args[1] is node and user.args[0] is not node for user in node.users]
    return all(takers) or same_layout(before, after)


_MAKES_OBJECT: Final = frozenset(
    f"aten::{name}" for name in ("alias", "detach", "expand", "expand_as", "reshape", "view", "_unsafe_view")
)
"""Operators that return another tensor for the same memory, where `contiguous` and `to` return what they are given."""

_TESTS: Final[dict[str, Test]] = {
    "aten::alias": _always,
    "aten::alpha_dropout": _is_inference,
    "aten::clone": _keeps_layout,
    "aten::contiguous": _keeps_layout,
    "aten::copy": _is_scattered,
    "aten::detach": _always,
    "aten::detach_copy": _always,
    "aten::dropout": _is_inference,
    "aten::expand": _keeps_layout,
    "aten::expand_as": _keeps_layout,
    "aten::feature_alpha_dropout": _is_inference,
    "aten::feature_dropout": _is_inference,
    "aten::flatten": _keeps_layout,
    "aten::lift": _always,
    "aten::lift_fresh": _always,
    "aten::lift_fresh_copy": _always,
    "aten::_to_copy": _keeps_layout,
    "aten::to": _keeps_layout,
    "aten::type_as": _keeps_layout,
    "aten::reshape": _keeps_layout,
    "aten::view": _keeps_layout,
    "aten::_unsafe_view": _keeps_layout,
}
