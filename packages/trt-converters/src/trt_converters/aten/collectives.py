"""Collectives among processes: each becomes a layer, which names the ranks of its process group.

A collective is recorded as two operators, one that starts it and one that waits. A layer is done when its result is
read, so the second one is the first one's result. TensorRT has the layer since 10.16, and what exchanges parts among
all of them since 11.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_converters.call import Call
from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, Size
from trt_converters.layers import reshape
from trt_converters.registry import converter
from trt_core import Provider, Reason, Verdict, current_provider, trt
from trt_core.process_groups import (
    GroupMembers,
    group_members,
    group_of,
    groups_in,
    has_communicators,
    is_collective,
    is_wait,
)

collectives = torch.ops._c10d_functional

_SINCE: Final = ((10, 16), None)
_EXCHANGE_SINCE: Final = ((11, 0), None)
_TYPES: Final = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64})
_REDUCTIONS: Final = {"sum": "SUM", "avg": "AVG", "product": "PROD", "max": "MAX", "min": "MIN"}


def _known_group(call: Call) -> Verdict | None:
    """Refuses process groups that this process does not know."""
    if group_members(call["group_name"]) is not None:
        return None
    return Verdict.refuse(
        Reason.UNSUPPORTED_ARGUMENT,
        f"this process knows no process group {call['group_name']!r}, so its ranks are unknown",
    )


def _has_communicator(call: Call) -> Verdict | None:
    """Execution contexts of TensorRT take the communicator of one process group, from PyTorch."""
    if current_provider() is not Provider.TENSORRT:
        return None
    if not has_communicators():
        return Verdict.refuse(
            Reason.PROVIDER_VERSION,
            f"engines of TensorRT need communicators of NCCL, which PyTorch {torch.__version__} does not hand out",
        )
    group = group_of(call.node)
    if group is None or len(group.ranks) == 1:
        return None
    (chosen, _), *_ = Counter(groups_in(call.node.graph)).most_common(1)
    if group == chosen:
        return None
    return Verdict.refuse(
        Reason.UNSUPPORTED_ARGUMENT,
        f"engines of TensorRT communicate in one process group: in {chosen.name!r}, which most collectives of the "
        f"model use, not in {group.name!r}",
    )


def _movable(call: Call) -> Verdict | None:
    """Refuses types that collectives do not move."""
    dtype = call.tensor("input").dtype
    if dtype in _TYPES:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"collectives have no {dtype}")


def _has_axis(call: Call) -> Verdict | None:
    """Refuses 0-d tensors, which have no axis to gather or scatter along."""
    if call.tensor("input").dim():
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_RANK, "it has no dimension to gather or scatter along")


def _reduces(call: Call) -> Verdict | None:
    """Refuses reductions that no layer has."""
    if str(call["reduce_op"]).lower() in _REDUCTIONS:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"no layer reduces by {call['reduce_op']!r}")


def _even(call: Call) -> Verdict | None:
    """Layers exchange parts of one size; PyTorch exchanges any."""
    parts = {str(part) for name in ("output_split_sizes", "input_split_sizes") for part in call[name]}
    if len(parts) == 1:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "its parts differ in size")


def _started_here(call: Call) -> Verdict | None:
    """Refuses to wait for what another graph has started."""
    if is_wait(call.node):
        return None
    return Verdict.refuse(Reason.SIDE_EFFECT, "it waits for a collective that another graph has started")


_CHECKS: Final = (computable, _known_group, _has_communicator, _movable)
_ALONG_AXIS: Final = (*_CHECKS, _has_axis)


@converter(collectives.all_reduce.default, checks=(*_CHECKS, _reduces), versions=_SINCE, fold=False)
def c10d_all_reduce(ctx: ConversionContext, input: Operand, reduce_op: str, group_name: Any) -> Any:
    """all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor"""
    if ctx.symbolic_shape("input"):
        return _collective(ctx, input, "ALL_REDUCE", group_name, reduce_op)
    whole = _collective(ctx, reshape(ctx, input, (1,)), "ALL_REDUCE", group_name, reduce_op)
    return reshape(ctx, whole, ())


@converter(collectives.all_gather_into_tensor.default, checks=_CHECKS, versions=_SINCE, fold=False)
def c10d_all_gather_into_tensor(ctx: ConversionContext, input: Operand, group_size: int, group_name: Any) -> Any:
    """all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor"""
    parts = input if ctx.symbolic_shape("input") else reshape(ctx, input, (1,))
    return _collective(ctx, parts, "ALL_GATHER", group_name)


@converter(collectives.reduce_scatter_tensor.default, checks=(*_ALONG_AXIS, _reduces), versions=_SINCE, fold=False)
def c10d_reduce_scatter_tensor(
    ctx: ConversionContext, input: Operand, reduce_op: str, group_size: int, group_name: Any
) -> Any:
    """reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor"""
    return _collective(ctx, input, "REDUCE_SCATTER", group_name, reduce_op)


@converter(collectives.all_to_all_single.default, checks=(*_ALONG_AXIS, _even), versions=_EXCHANGE_SINCE, fold=False)
def c10d_all_to_all_single(
    ctx: ConversionContext,
    input: Operand,
    output_split_sizes: Sequence[Size],
    input_split_sizes: Sequence[Size],
    group_name: Any,
) -> Any:
    """all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, str group_name) -> Tensor"""  # noqa: E501 - the schema
    return _collective(ctx, input, "ALL_TO_ALL", group_name)


@converter(collectives.broadcast.default, checks=_ALONG_AXIS, versions=_SINCE, fold=False)
def c10d_broadcast(ctx: ConversionContext, input: Operand, src: int, group_name: Any) -> Any:
    """broadcast(Tensor input, int src, str group_name) -> Tensor"""
    return _collective(ctx, input, "BROADCAST", group_name, root=src)


@converter(collectives.wait_tensor.default, checks=(_started_here,), fold=False)
def c10d_wait_tensor(ctx: ConversionContext, tensor: Operand) -> Any:
    """wait_tensor(Tensor tensor) -> Tensor"""
    return tensor


def _collective(
    ctx: ConversionContext, value: Operand, operation: str, group_name: Any, reduce_op: str = "", root: int = -1
) -> Any:
    """Adds the layer of a collective; a group of one rank leaves a value as it is.

    Args:
        ctx: The conversion.
        value: What this rank gives.
        operation: Name of a `CollectiveOperation`.
        group_name: PyTorch's name of the group.
        reduce_op: PyTorch's name of the reduction, empty where nothing is reduced.
        root: The rank within the group that gives, -1 for none.
    """
    group = group_members(group_name)
    if group is None:
        raise ctx.fail(f"this process knows no process group {group_name!r}")
    if len(group.ranks) == 1:
        return value
    tensor = ctx.tensor(value)
    reduction = getattr(trt.ReduceOperation, _REDUCTIONS[reduce_op.lower()] if reduce_op else "NONE")
    # TensorRT counts ranks within the communicator, which is the group's; the portable provider looks groups up by them
    ranks = range(len(group.ranks)) if current_provider() is Provider.TENSORRT else group.ranks
    layer = ctx.network.add_dist_collective(
        tensor, getattr(trt.CollectiveOperation, operation), reduction, ranks[root] if root >= 0 else -1, list(ranks)
    )
    result = ctx.output(layer, num_ranks=len(group.ranks))
    assert ctx.node is not None
    layer.metadata = _metadata(layer.metadata, group, ctx.node.graph)
    return result


def _metadata(location: str, group: GroupMembers, graph: fx.Graph) -> str:
    """Says which group a layer means, for readers and for providers that know groups by name, and how sizes come."""
    named = f"process group '{group.name}'{'' if _is_told_sizes(group, graph) else ' of ranks with own sizes'}"
    return f"{location}, {named}" if location else named


def _is_told_sizes(group: GroupMembers, graph: fx.Graph) -> bool:
    """Whether all sizes that vary show in what a group exchanges, so that its ranks have the same ones in each call.

    What ranks exchange has one shape on all of them. Weights in parts, and sums over rows, say nothing of the rows that
    a rank was called with.
    """
    unknown = set().union(*(symbols for node in graph.find_nodes(op="placeholder") for symbols in _symbols_of(node)))
    exchanged = [
        symbols
        for node in graph.nodes
        if is_collective(node) and group_of(node) == group
        for symbols in _symbols_of(node.args[0])
    ]
    while told := next((symbols & unknown for symbols in exchanged if len(symbols & unknown) == 1), None):
        unknown -= told
    return not unknown


def _symbols_of(node: Any) -> list[set[Any]]:
    """The symbols in each extent of a tensor."""
    extents = getattr(node.meta.get("val"), "shape", ())
    return [extent.node.expr.free_symbols for extent in extents if isinstance(extent, torch.SymInt)]
