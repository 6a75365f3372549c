"""What an operator's schema and tags say about it: mutation, aliasing, effects, settings that hold on to it."""

from __future__ import annotations

import functools
import operator
from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings, operator_name
from trt_core.attributes import has_hidden_state
from trt_core.internals import HigherOrderOperator, OpOverload, schema_name
from trt_core.operators import COPYING, argument, draws_random_numbers, packet_name
from trt_core.sizes.functions import BY_TARGET

# Operators that can return their input, or views of it, without their schema saying so.
SILENT_ALIASES = frozenset(
    {
        *("aten::unsafe_chunk", "aten::unsafe_split", "aten::unsafe_split_with_sizes"),
        *("aten::alpha_dropout", "aten::atleast_1d", "aten::atleast_2d", "aten::atleast_3d"),
        *("aten::broadcast_tensors", "aten::dropout", "aten::einsum", "aten::feature_alpha_dropout"),
        *("aten::feature_dropout", "aten::meshgrid", "aten::type_as"),
    }
)


MAY_COPY: Final = frozenset(
    {"aten::contiguous", "aten::flatten", "aten::ravel", "aten::reshape", "aten::reshape_as", "aten::to"}
)
"""Operators that return a view of their argument, or a copy where there is none."""


@functools.cache
def mutated_arguments(target: OpOverload) -> tuple[int, ...]:
    """Returns the positions of the arguments that an operator writes to, by its schema."""
    return tuple(
        index
        for index, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@functools.cache
def may_alias(target: OpOverload) -> bool:
    """Whether a result can share memory with an argument: a view, or an operator that copies only when it must."""
    if target._schema.name in SILENT_ALIASES:
        return True
    return any(result.alias_info is not None for result in target._schema.returns)


def may_view(node: fx.Node) -> bool:
    """Whether what an operator returns in a call can share memory with an argument: dropout that is on copies."""
    return may_alias(node.target) and not draws_random_numbers(node)


def copies_as_it_lies(node: fx.Node) -> bool:
    """Whether a node returns its operand, a view of it, or a copy, as that lies in memory."""
    if schema_name(node.target) == "aten::to":
        return argument(node, "memory_format") not in (None, torch.preserve_format)
    return schema_name(node.target) in MAY_COPY


@functools.cache
def is_data_dependent(target: OpOverload) -> bool:
    """Whether a shape or a number among the results depends on the values of a tensor."""
    return torch.Tag.dynamic_output_shape in target.tags or torch.Tag.data_dependent_output in target.tags


def is_symbolic_function(target: Any) -> bool:
    """Whether the target is a Python function on symbolic integers, or `getitem`."""
    if isinstance(target, (OpOverload, HigherOrderOperator)):
        return False
    if target in BY_TARGET or target is operator.getitem:
        return True
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", "")
    return module == "math" or name.startswith(("sym_", "_sym_"))


def is_pure(node: fx.Node) -> bool:
    """Whether the node can be removed when unused and shared when repeated: no effect, no randomness, no sub-graph."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    target = node.target
    if isinstance(target, OpOverload):
        if mutated_arguments(target) or draws_random_numbers(node) or has_hidden_state(node):
            return False
        return not _is_effectful(target)
    return is_symbolic_function(target)


@functools.cache
def _is_effectful(target: OpOverload) -> bool:
    name = target._schema.name
    if name.startswith(("aten::_assert", "aten::sym_constrain", "aten::_print")):
        return True
    if not target._schema.returns:
        return True
    # custom operators with opaque state say so through an effect registration; objects are the usual carrier
    return any("ScriptObject" in str(argument.type) for argument in target._schema.arguments)


def is_kept_in_torch(target: Any, settings: CompilationSettings) -> bool:
    """Whether `torch_executed_ops` names the operator, with or without its overload."""
    if not settings.torch_executed_ops:
        return False
    name = operator_name(target)
    return name in settings.torch_executed_ops or packet_name(name) in settings.torch_executed_ops


def is_float32(node: fx.Node) -> bool:
    """Whether a node stands for a tensor of float32, which reduced precision is about."""
    value = tensor_value(node)
    return value is not None and value.dtype is torch.float32


def tensor_value(node: fx.Node) -> torch.Tensor | None:
    """Returns the fake tensor that a node stands for, None when it stands for something else."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


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
    return node.target._schema.name in COPYING or (_is_view(node.target) and _keeps_type(node))


def moves(node: fx.Node) -> bool:
    """Whether a node does nothing but move elements, or takes an item of what an operator returned."""
    if node.target is operator.getitem:
        return True
    return rearranges(node) or schema_name(node.target) in _CHOOSING


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


def axis_order(view: fx.Node) -> list[int]:
    """Returns where each axis of a view's result comes from: others than transpositions move none.

    Args:
        view: A view of as many axes as what it is made of.
    """
    rank = view.meta["val"].dim()
    order = list(range(rank))
    if view.target is torch.ops.aten.permute.default:
        return [axis % rank for axis in argument(view, "dims")]
    if view.target is torch.ops.aten.transpose.int:
        first, second = argument(view, "dim0") % rank, argument(view, "dim1") % rank
        order[first], order[second] = order[second], order[first]
    return order[::-1] if view.target in (torch.ops.aten.t.default, torch.ops.aten.numpy_T.default) else order
