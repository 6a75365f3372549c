"""Which tensors may say "masked out" by the largest negative number: those that are added to scores."""

from __future__ import annotations

from typing import Final

from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.movement import moves
from trt_lowering.operator_traits import argument

_ADDING: Final = frozenset({"aten::add", "aten::where"})


def may_mask(node: fx.Node) -> bool:
    """Whether a tensor is added to another one, taken for elements of one, or given to attention as a mask."""
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        for user in current.users:
            if not isinstance(user.target, OpOverload) or user in seen:
                continue
            seen.add(user)
            if user.target._schema.name in _ADDING or is_attention_mask(current, user):
                return True
            if moves(user):
                pending.append(user)
    return False


def is_attention_mask(operand: fx.Node, node: fx.Node) -> bool:
    """Whether an operand is what attention adds to its scores."""
    if not isinstance(node.target, OpOverload) or node.target._schema.name != "aten::scaled_dot_product_attention":
        return False
    return argument(node, "attn_mask") is operand
