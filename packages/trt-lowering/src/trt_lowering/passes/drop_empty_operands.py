"""Drops operands without elements, which no engine can hold, where they change nothing."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.internals import OpOverload
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import argument, is_kept_in_torch, tensor_value

_JOINING: Final = frozenset({"aten::cat", "aten::concat", "aten::concatenate"})
_WRITING: Final = frozenset({"aten::slice_scatter"})


class DropEmptyOperands(GraphPass):
    """Takes tensors without elements out of concatenations, and makes copies of writes of nothing.

    Models slice their tensors by configuration: a rotary embedding that covers the whole head leaves an empty rest,
    which is joined again at the end. What computed the empty tensors is dead afterwards.

    Requires: values on nodes.
    Ensures: no concatenation has an operand that is known to be empty, unless all of them are.

    Args:
        settings: Operators in `torch_executed_ops` stay as they are.
    """

    name = "drop_empty_operands"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites in one walk."""
        changes = 0
        for node in list(gm.graph.nodes):
            if not isinstance(node.target, OpOverload) or is_kept_in_torch(node.target, self._settings):
                continue
            name = node.target._schema.name
            if name in _JOINING:
                changes += self._shorten(node)
            elif name in _WRITING and _writes_nothing(node):
                _copy_instead(node)
                changes += 1
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that the walk left nothing to drop."""
        self.require_values(gm)
        for node in gm.graph.nodes:
            if not isinstance(node.target, OpOverload) or is_kept_in_torch(node.target, self._settings):
                continue
            if node.target._schema.name in _JOINING and _filled(node) is not None:
                self.fail(node, "a concatenation still has an empty operand")

    @staticmethod
    def _shorten(node: fx.Node) -> bool:
        filled = _filled(node)
        if filled is None:
            return False
        node.update_arg(0, filled)
        return True


def _filled(node: fx.Node) -> list[fx.Node] | None:
    """Returns the operands with elements, None when there is nothing to drop: types take part in what is joined."""
    operands: Any = node.args[0] if node.args else None
    result = tensor_value(node)
    if not isinstance(operands, (list, tuple)) or result is None:
        return None
    filled = [operand for operand in operands if not _is_empty(tensor_value(operand))]
    if not filled or len(filled) == len(operands):
        return None
    values = [tensor_value(operand) for operand in filled]
    return filled if any(value is not None and value.dtype == result.dtype for value in values) else None


def _copy_instead(node: fx.Node) -> None:
    """Keeps that the node makes a tensor of its own, which matters where it is a result."""
    source = argument(node, "self")
    with node.graph.inserting_before(node):
        copied = insert_call(node.graph, torch.ops.aten.clone.default, (source,), value=node.meta["val"], origin=node)
    node.replace_all_uses_with(copied)
    node.graph.erase_node(node)


def _writes_nothing(node: fx.Node) -> bool:
    source = argument(node, "src")
    return isinstance(source, fx.Node) and _is_empty(tensor_value(source))


def _is_empty(value: torch.Tensor | None) -> bool:
    """Whether a tensor is known to have no elements."""
    return value is not None and any(isinstance(extent, int) and extent == 0 for extent in value.shape)
