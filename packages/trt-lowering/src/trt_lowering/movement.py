"""Operators that compute no numbers: each element of their results is one of an operand, or a constant."""

from __future__ import annotations

import operator
from typing import Final

from torch import fx
from torch._ops import OpOverload

MOVEMENT: Final = frozenset(
    f"aten::{name}"
    for name in (
        "_unsafe_index_put",
        "alias",
        "as_strided",
        "as_strided_scatter",
        "cat",
        "clone",
        "constant_pad_nd",
        "copy",
        "detach",
        "diagonal",
        "diagonal_scatter",
        "expand",
        "fill",
        "flip",
        "gather",
        "index",
        "index_copy",
        "index_fill",
        "index_put",
        "index_select",
        "lift_fresh_copy",
        "masked_fill",
        "masked_scatter",
        "movedim",
        "permute",
        "repeat",
        "reshape",
        "roll",
        "scatter",
        "select",
        "select_scatter",
        "slice",
        "slice_scatter",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
        "_unsafe_view",
        "where",
    )
)


def moves(node: fx.Node) -> bool:
    """Whether a node does nothing but move elements, or takes an item of what an operator returned."""
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, OpOverload) and node.target._schema.name in MOVEMENT
