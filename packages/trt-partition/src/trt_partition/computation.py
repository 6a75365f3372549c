"""What counts as computation when a block is held against `min_block_size`.

An engine pays for itself through arithmetic. Views, casts, copies, unpacking of tuples and arithmetic on sizes come
along with an engine for free, so they do not count as operators that make a block worthwhile.
"""

from __future__ import annotations

import functools
import operator
from typing import Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_partition.internals import Argument, FunctionSchema

RULE: Final = (
    "min_block_size counts operators that compute: views, casts, copies, tuple unpacking and arithmetic on sizes "
    "do not count"
)
"""How block sizes are counted, as a sentence for reports."""

_COPIES: Final = frozenset(
    {
        "aten::_to_copy",
        "aten::clone",
        "aten::copy",
        "aten::lift_fresh_copy",
        "aten::_reshape_copy",
        "prims::convert_element_type",
        "prims::view_of",
        "prims::clone",
        "prims::broadcast_in_dim",
    }
)


def counts_as_computation(node: fx.Node) -> bool:
    """Whether a `call_function` node computes values, as opposed to naming, moving or casting them."""
    target = node.target
    if target is operator.getitem:
        return False
    if not isinstance(target, OpOverload):
        return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
    return _computes(target)


@functools.cache
def _computes(target: OpOverload) -> bool:
    schema = target._schema
    if schema.name in _COPIES or torch.Tag.view_copy in target.tags:
        return False
    return not _returns_view(schema)


def _returns_view(schema: FunctionSchema) -> bool:
    """A schema says `Tensor(a) self -> Tensor(a)` when the result is a view of the argument."""
    return any(_is_read_alias(item) for item in schema.returns) and any(
        _is_read_alias(item) for item in schema.arguments
    )


def _is_read_alias(item: Argument) -> bool:
    return item.alias_info is not None and not item.alias_info.is_write
