"""Estimates of the work of a node, and which nodes compute at all.

Floating-point operations are counted as in papers: a multiply-add is two. An engine pays for itself through arithmetic.
Views, casts, copies, unpacking of tuples and arithmetic on sizes come along with an engine for free, so they do not
count as operators that make a block worthwhile.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload, schema_name
from trt_core.nesting import tensors_in

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
    target = node.target
    if isinstance(target, OpOverload):
        formula = _FORMULAS.get(target._schema.name.split("::")[-1])
        operands = [_shape(argument, extent) for argument in node.args]
        shapes = [shape for shape in operands if shape is not None]
        if formula is not None and len(shapes) >= 2:
            return formula(node, shapes, [extent(size) for size in outputs[0].shape])
    elements = [math.prod(extent(size) for size in value.shape) for value in outputs]
    for operand in node.all_input_nodes:
        if isinstance(operand.meta.get("val"), torch.Tensor) and operand.op != "get_attr":
            elements.append(math.prod(extent(size) for size in operand.meta["val"].shape))
    return max(elements)


def _shape(argument: Any, extent: Extent) -> list[int] | None:
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    return [extent(size) for size in value.shape] if isinstance(value, torch.Tensor) else None


def _product(_: fx.Node, shapes: Sequence[list[int]], output: list[int]) -> int:
    """`output[..., m, n] += left[..., m, k] * right[..., k, n]`."""
    return 2 * math.prod(output) * (shapes[0][-1] if shapes[0] else 1)


def _biased_product(_: fx.Node, shapes: Sequence[list[int]], output: list[int]) -> int:
    return 2 * math.prod(output) * (shapes[1][-1] if len(shapes) > 1 and shapes[1] else 1)


def _convolution(node: fx.Node, shapes: Sequence[list[int]], output: list[int]) -> int:
    """Each output element takes one multiply-add per weight of its channel; transposed, each input element does."""
    image, weight = shapes[0], shapes[1]
    name = getattr(node.target, "__name__", str(node.target))
    transposed = "transpose" in name or (len(node.args) > 6 and node.args[6] is True)
    per_element = math.prod(weight[1:])
    return 2 * (math.prod(image) if transposed else math.prod(output)) * per_element


def _attention(_: fx.Node, shapes: Sequence[list[int]], output: list[int]) -> int:
    """Scores `query @ key^T`, then `scores @ value`."""
    query, key = shapes[0], shapes[1]
    scores = math.prod(query[:-1]) * key[-2]
    return 2 * scores * query[-1] + 2 * scores * output[-1]


_FORMULAS: Final[dict[str, Callable[[fx.Node, Sequence[list[int]], list[int]], int]]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "linear", "_int_mm"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm"), _biased_product),
    **dict.fromkeys(
        (
            *("convolution", "_convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
            "conv_transpose3d",
        ),
        _convolution,
    ),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        _attention,
    ),
}


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


_MOVES: Final = frozenset(
    {
        *("aten::cat", "aten::concat", "aten::concatenate", "aten::stack", "aten::hstack", "aten::vstack"),
        *("aten::repeat", "aten::tile", "aten::repeat_interleave", "aten::flip", "aten::roll"),
    }
)
"""Operators that count as computation, but only put elements elsewhere."""


def only_moves(node: fx.Node) -> bool:
    """Whether a `call_function` node names, moves or casts elements, and computes none."""
    return not counts_as_computation(node) or schema_name(node.target) in _MOVES


def is_product(node: fx.Node) -> bool:
    """Whether a node multiplies matrices, convolves or attends."""
    return schema_name(node.target).split("::")[-1] in _FORMULAS


def _returns_view(schema: torch.FunctionSchema) -> bool:
    """A schema says `Tensor(a) self -> Tensor(a)` when the result is a view of the argument."""
    return any(_is_read_alias(item) for item in schema.returns) and any(
        _is_read_alias(item) for item in schema.arguments
    )


def _is_read_alias(item: torch.Argument) -> bool:
    return item.alias_info is not None and not item.alias_info.is_write
