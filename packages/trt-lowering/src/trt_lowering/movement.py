"""Operators that compute no numbers: each element of their results is one of an operand, or a constant."""

from __future__ import annotations

import operator
from typing import Final

from torch import fx
from torch._ops import OpOverload

REARRANGEMENT: Final = frozenset(
    f"aten::{name}"
    for name in (
        "_unsafe_view",
        "alias",
        "cat",
        "clone",
        "detach",
        "diagonal",
        "expand",
        "flatten",
        "flip",
        "movedim",
        "permute",
        "repeat",
        "reshape",
        "roll",
        "select",
        "slice",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "unflatten",
        "unsqueeze",
        "view",
    )
)
"""Operators, by the names of their schemas, that move elements to places which follow from shapes and arguments."""

MOVEMENT: Final = REARRANGEMENT | frozenset(
    f"aten::{name}"
    for name in (
        "_unsafe_index_put",
        "as_strided",
        "as_strided_scatter",
        "constant_pad_nd",
        "copy",
        "diagonal_scatter",
        "fill",
        "gather",
        "index",
        "index_copy",
        "index_fill",
        "index_put",
        "index_select",
        "lift_fresh_copy",
        "masked_fill",
        "masked_scatter",
        "scatter",
        "select_scatter",
        "slice_scatter",
        "split",
        "split_with_sizes",
        "unbind",
        "where",
    )
)
"""These, and what looks elements up by numbers, writes to parts, or makes several tensors."""


def moves(node: fx.Node) -> bool:
    """Whether a node does nothing but move elements, or takes an item of what an operator returned."""
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, OpOverload) and node.target._schema.name in MOVEMENT
