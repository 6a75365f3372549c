"""The functional operator that computes what an in-place operator writes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.node_metadata import cast_value, insert_call, same_shape
from trt_lowering.operator_traits import tensor_value

aten = torch.ops.aten


def insert_functional(graph: fx.Graph, node: fx.Node, target: fx.Node) -> fx.Node | None:
    """Inserts, before an in-place node, the functional computation of the value that it writes.

    Args:
        graph: The graph.
        node: The in-place call.
        target: Its first argument, the tensor that is written.

    Returns:
        The node whose value has the written tensor's shape and type, or None when there is no counterpart.
    """
    with graph.inserting_before(node):
        if node.target is aten.copy_.default:
            return _copy(graph, node, target, node.args[1])
        if node.target is aten.zero_.default:
            return _fill(graph, node, target, 0)
        if node.target is aten.fill_.Scalar:
            return _fill(graph, node, target, node.args[1])
        if node.target is aten.fill_.Tensor:
            return _copy(graph, node, target, node.args[1])
        counterpart = functional_operator(node.target)
        if counterpart is None:
            return None
        written = node.meta["val"]
        dtype = _promoted_dtype(node, counterpart, written)
        if dtype is None:
            return None
        if dtype == written.dtype:
            return insert_call(graph, counterpart, node.args, dict(node.kwargs), value=written, origin=node)
        wide = insert_call(
            graph,
            counterpart,
            node.args,
            dict(node.kwargs),
            value=cast_value(written, dtype),
            origin=node,
        )
        return _cast(graph, wide, written, node)


@functools.cache
def functional_operator(target: OpOverload) -> OpOverload | None:
    """Returns the functional overload of an in-place one: `aten.relu.default` for `aten.relu_.default`.

    None for operators without one, and for those that change a tensor's metadata instead of its contents.
    """
    if torch.Tag.inplace_view in target.tags:
        return None
    namespace, _, name = target._schema.name.partition("::")
    if not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
    if packet is None or target._overloadname not in packet.overloads():
        return None
    found: OpOverload = getattr(packet, target._overloadname)
    given = [(item.name, str(item.type)) for item in target._schema.arguments]
    taken = [(item.name, str(item.type)) for item in found._schema.arguments]
    writes = any(item.alias_info is not None and item.alias_info.is_write for item in found._schema.arguments)
    return found if given == taken and not writes and len(found._schema.returns) == 1 else None


def _promoted_dtype(node: fx.Node, counterpart: OpOverload, written: torch.Tensor) -> torch.dtype | None:
    """Type of the functional result: in-place operators keep their tensor's type, functional ones promote."""
    others = [tensor_value(operand) for operand in node.all_input_nodes[1:]]
    plain = all(other is None or other.dtype == written.dtype for other in others)
    if plain and (written.is_floating_point() or written.is_complex()):
        return written.dtype
    mode = getattr(written, "fake_mode", None)
    if mode is None:
        return None
    args = fx.map_arg(node.args, lambda operand: operand.meta["val"])
    kwargs = fx.map_arg(node.kwargs, lambda operand: operand.meta["val"])
    with mode, torch.no_grad():
        result: torch.Tensor = counterpart(*args, **kwargs)
    return result.dtype


def _copy(graph: fx.Graph, node: fx.Node, target: fx.Node, source: Any) -> fx.Node | None:
    value = tensor_value(source) if isinstance(source, fx.Node) else None
    written = tensor_value(target)
    if value is None or written is None:
        return None
    result: fx.Node = source
    if value.dtype != written.dtype or value.device != written.device:
        result = _cast(graph, source, written, node, shape_like=value)
    if not same_shape(value, written):
        sizes = [_extent(graph, target, axis, node) for axis in range(written.dim())]
        return insert_call(graph, aten.expand.default, (result, sizes), value=_expanded(written), origin=node)
    if result is source:
        return insert_call(graph, aten.clone.default, (source,), value=_expanded(written), origin=node)
    return result


def _fill(graph: fx.Graph, node: fx.Node, target: fx.Node, value: Any) -> fx.Node:
    written = node.meta["val"]
    return insert_call(graph, aten.full_like.default, (target, value), value=_expanded(written), origin=node)


def _cast(
    graph: fx.Graph,
    source: fx.Node,
    like: torch.Tensor,
    origin: fx.Node,
    shape_like: torch.Tensor | None = None,
) -> fx.Node:
    kwargs: dict[str, Any] = {"dtype": like.dtype}
    value = source.meta["val"]
    if value.device != like.device:
        kwargs["device"] = like.device
    shaped = like if shape_like is None else shape_like
    with value.fake_mode, torch.no_grad():
        result = torch.empty_strided(shaped.shape, shaped.stride(), dtype=like.dtype, device=like.device)
    return insert_call(graph, aten._to_copy.default, (source,), kwargs, value=result, origin=origin)


def _extent(graph: fx.Graph, tensor: fx.Node, axis: int, origin: fx.Node) -> Any:
    extent = tensor.meta["val"].shape[axis]
    if isinstance(extent, int):
        return extent
    return insert_call(graph, aten.sym_size.int, (tensor, axis), value=extent, origin=origin)


def _expanded(written: torch.Tensor) -> torch.Tensor:
    mode = getattr(written, "fake_mode", None)
    assert mode is not None
    with mode, torch.no_grad():
        return torch.empty_strided(written.shape, written.stride(), dtype=written.dtype, device=written.device)
