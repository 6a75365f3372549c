"""Estimates of the work of a node, and which nodes compute at all.

Floating-point operations are counted as in papers: a multiply-add is two. An engine pays for itself through arithmetic.
Views, casts, copies, unpacking of tuples and arithmetic on sizes come along with an engine for free, so they do not
count as operators that make a block worthwhile.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload, schema_name
from trt_core.nesting import tensors_in
from trt_core.operator_counts import is_product, operands_at, work_of
from trt_core.operators import COPYING

Extent = Callable[[Any], int]
"""Turns an extent, symbolic or not, into the int that engines are tuned for."""


def estimate_traffic(node: fx.Node, extent: Extent, ranks: int) -> int:
    """Returns the bytes that each rank sends in a collective where the group forms a ring, as NCCL's large ones do.

    Args:
        node: A collective with `meta["val"]`.
        extent: How symbolic extents are evaluated.
        ranks: Size of its group; 0 where it is unknown, which counts as nothing sent.
    """
    given = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], fx.Node) else None
    if not isinstance(given, torch.Tensor) or ranks < 2:
        return 0
    size = math.prod(map(extent, given.shape)) * given.element_size()
    others = ranks - 1
    name = schema_name(node.target).split("::")[-1]
    if name == "all_reduce":
        return 2 * size * others // ranks
    if name == "all_gather_into_tensor":
        return size * others
    if name == "broadcast":
        return size
    return size * others // ranks


def estimate_flops(node: fx.Node, extent: Extent) -> int:
    """Returns the floating-point operations of a `call_function` node.

    Products, convolutions and attention are counted exactly; what else computes counts one operation for each element
    that it reads or returns, whichever are more.

    Args:
        node: A node with `meta["val"]`.
        extent: How symbolic extents are evaluated.
    """
    if not counts_as_computation(node):
        return 0
    outputs = list(tensors_in(node.meta.get("val")))
    if not outputs:
        return 0
    if isinstance(node.target, OpOverload) and is_product(node.target):
        made = math.prod(extent(size) for size in outputs[0].shape)
        return int(2 * work_of(node.target, operands_at(node, extent), made))
    elements = [math.prod(extent(size) for size in value.shape) for value in outputs]
    for operand in node.all_input_nodes:
        if isinstance(operand.meta.get("val"), torch.Tensor) and operand.op != "get_attr":
            elements.append(math.prod(extent(size) for size in operand.meta["val"].shape))
    return max(elements)


RULE: Final = (
    "min_block_size counts operators that compute: views, casts, copies, tuple unpacking and arithmetic on sizes "
    "do not count"
)
"""How block sizes are counted, as a sentence for reports."""

_COPIES: Final = frozenset(
    {
        *("aten::_to_copy", "aten::clone", "aten::copy", "aten::lift_fresh_copy", "aten::_reshape_copy"),
        *("prims::convert_element_type", "prims::view_of", "prims::clone", "prims::broadcast_in_dim"),
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


def only_moves(node: fx.Node) -> bool:
    """Whether a `call_function` node names, moves or casts elements, and computes none."""
    return not counts_as_computation(node) or schema_name(node.target) in COPYING


def _returns_view(schema: torch.FunctionSchema) -> bool:
    """A schema says `Tensor(a) self -> Tensor(a)` when the result is a view of the argument."""
    return any(_is_read_alias(item) for item in schema.returns) and any(
        _is_read_alias(item) for item in schema.arguments
    )


def _is_read_alias(item: torch.Argument) -> bool:
    return item.alias_info is not None and not item.alias_info.is_write
