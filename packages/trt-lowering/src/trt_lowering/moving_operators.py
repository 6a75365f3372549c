"""Operators that compute no numbers: each element of their results is one of an operand, or a constant."""

from __future__ import annotations

import functools
import operator
from typing import Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.operator_traits import tensor_value

_COPYING: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("_pad_circular", "_pad_enum", "constant_pad_nd", "pad"),
        *(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)),
        *("_unsafe_view", "clone", "lift_fresh_copy", "repeat", "repeat_interleave", "tile"),
        *("block_diag", "cat", "column_stack", "concat", "concatenate", "dstack", "hstack", "row_stack"),
        *("stack", "vstack"),
        *("channel_shuffle", "flip", "fliplr", "flipud", "pixel_shuffle", "pixel_unshuffle", "roll", "rot90"),
        *("diag", "diag_embed", "narrow_copy", "tril", "triu"),
    )
)
"""Operators, by the names of their schemas, that copy elements to places which follow from shapes and arguments."""

_CHOOSING: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("as_strided_scatter", "copy", "diagonal_scatter", "fill", "select_scatter", "slice_scatter"),
        *("_unsafe_index_put", "index_copy", "index_fill", "index_put", "put", "scatter"),
        *("gather", "index", "index_select", "take", "take_along_dim"),
        *("masked_fill", "masked_scatter", "masked_select", "where"),
        *("amax", "amin", "cummax", "cummin", "kthvalue", "max", "min", "msort", "sort", "topk"),
        *("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"),
    )
)
"""Operators that look elements up or choose them by numbers, write to parts, or make several tensors."""


def rearranges(node: fx.Node) -> bool:
    """Whether a node views elements, or copies them to places that follow from shapes and arguments."""
    if not isinstance(node.target, OpOverload):
        return False
    return node.target._schema.name in _COPYING or (_is_view(node.target) and _keeps_type(node))


def moves(node: fx.Node) -> bool:
    """Whether a node does nothing but move elements, or takes an item of what an operator returned."""
    if node.target is operator.getitem:
        return True
    return rearranges(node) or (isinstance(node.target, OpOverload) and node.target._schema.name in _CHOOSING)


@functools.cache
def _is_view(target: OpOverload) -> bool:
    """Whether results lie in the memory of an operand, by the schema, and nothing is written."""
    marks = [item.alias_info for item in (*target._schema.arguments, *target._schema.returns)]
    is_written = any(mark is not None and mark.is_write for mark in marks)
    return not is_written and any(item.alias_info is not None for item in target._schema.returns)


def _keeps_type(node: fx.Node) -> bool:
    """Whether results have the type of what they are made of: casts, and views of bits, have another."""
    before = tensor_value(node.all_input_nodes[0]) if node.all_input_nodes else None
    made = node.meta.get("val")
    results = made if isinstance(made, (tuple, list)) else (made,)
    return before is not None and all(
        isinstance(result, torch.Tensor) and result.dtype == before.dtype for result in results
    )
