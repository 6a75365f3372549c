"""Brings dequantization next to what reads it: casts and transpositions move to where they cost nothing."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.dtypes import FLOATS
from trt_core.internals import FakeTensor
from trt_core.quantization import dequantize
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import CASTS, cast_value, insert_call
from trt_lowering.operator_traits import argument, is_kept_in_torch, tensor_value
from trt_lowering.passes.normalize_quantization import is_known

aten = torch.ops.aten

_ATTENTION: Final = aten.scaled_dot_product_attention.default
_TRANSPOSITIONS: Final = frozenset({aten.t.default, aten.transpose.int, aten.permute.default, aten.numpy_T.default})


class MergeDequantization(GraphPass):
    """Lets a product read what `trt::dequantize` makes: a float type of its own, and a weight as it is stored.

    A cast of the result becomes the type of the result; a transposition of a dequantized weight becomes one of the
    weight, which is computed ahead. Values are rounded once where they were rounded twice. Every reader of a weight
    gets a dequantization of its own: readers may be in different blocks, and what passes between them would be floats.
    The query of an attention is dequantized to what the scores are made of, so that nothing scales it in between.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: values on nodes.

    Args:
        settings: Operators in `torch_executed_ops` stay.
    """

    name = "merge_dequantization"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings

    def call(self, gm: fx.GraphModule) -> int:
        """Looks at every node that reads a dequantized value once, in the order of the graph."""
        changes = 0
        for node in list(gm.graph.nodes):
            source = node.args[0] if node.args else None
            if not isinstance(source, fx.Node) or source.target is not dequantize:
                continue
            if is_kept_in_torch(node.target, self._settings):
                continue
            merged = self._merged(gm.graph, node, source)
            if merged is not None:
                node.replace_all_uses_with(merged)
                gm.graph.erase_node(node)
                if not source.users:
                    gm.graph.erase_node(source)
                changes += 1
        for node in gm.graph.find_nodes(op="call_function", target=_ATTENTION):
            changes += not is_kept_in_torch(node.target, self._settings) and _scale_query(gm.graph, node)
        return changes + sum(
            _part(gm.graph, node) for node in gm.graph.find_nodes(op="call_function", target=dequantize)
        )

    def _merged(self, graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node | None:
        value = tensor_value(node)
        if value is None:
            return None
        input, scale = source.args[0], source.args[1]
        assert isinstance(input, fx.Node)
        bits, axis, outer = (argument(source, name) for name in ("bits", "axis", "outer"))
        if node.target in CASTS:
            if value.dtype not in FLOATS or value.device != source.meta["val"].device:
                return None
            with graph.inserting_before(node):
                return _insert(graph, (input, scale, value.dtype, bits, axis, outer), value, node)
        if node.target not in _TRANSPOSITIONS or not is_known(input):
            return None
        order = _order(node)
        per_block = scale.meta["val"].dim() > 1  # type: ignore[union-attr]
        with graph.inserting_before(node):
            moved = _permute(graph, input, order, node)
            if per_block:
                scale = _permute(graph, scale, order, node)
            place = order.index(axis) if axis >= 0 else axis
            return _insert(graph, (moved, scale, value.dtype, bits, place, outer), value, node)


def _scale_query(graph: fx.Graph, node: fx.Node) -> int:
    """Lets the scale of a quantized query scale the scores of an attention too, which are scaled by nothing then.

    The layer scales nothing itself, and what would stand between it and the dequantized query keeps a provider from
    seeing that the product is one of quantized values.
    """
    query, value = node.args[0], tensor_value(node)
    if not isinstance(query, fx.Node) or query.target is not dequantize or value is None:
        return 0
    input, scale, *rest = query.args
    assert isinstance(scale, fx.Node)
    held, width = tensor_value(scale), query.meta["val"].shape[-1]
    given = argument(node, "scale")
    if not is_known(scale) or held is None or held.numel() != 1:
        return 0
    if given == 1.0 or (given is None and not isinstance(width, int)):
        return 0
    factor = 1.0 / math.sqrt(width) if given is None else float(given)
    if not factor > 0 or held.dtype is not torch.float32:
        return 0
    with graph.inserting_before(node):
        scaled = insert_call(graph, aten.mul.Tensor, (scale, factor), value=held, origin=node)
        own = insert_call(
            graph, dequantize, (input, scaled, *rest), dict(query.kwargs), value=query.meta["val"], origin=query
        )
    node.update_arg(0, own)  # keys may be the same tensor, and are not scaled
    node.update_kwarg("scale", 1.0)
    if not query.users:
        graph.erase_node(query)
    return 1


def _part(graph: fx.Graph, node: fx.Node) -> int:
    """Gives all readers of a dequantized weight but the first one a copy of the node."""
    if not is_known(node.args[0]):
        return 0
    others = list(node.users)[1:]
    for reader in others:
        if reader.op == "output":
            continue
        with graph.inserting_before(reader):
            own = graph.node_copy(node)
        reader.replace_input_with(node, own)
    return len(others)


def _insert(graph: fx.Graph, args: tuple[Any, ...], value: torch.Tensor, origin: fx.Node) -> fx.Node:
    given = args if args[-1] is not None else args[:-1]
    return insert_call(graph, dequantize, given, value=cast_value(value, args[2]), origin=origin)


def _permute(graph: fx.Graph, operand: Any, order: list[int], origin: fx.Node) -> fx.Node:
    value = operand.meta["val"]
    assert isinstance(value, FakeTensor)
    with value.fake_mode, torch.no_grad():
        moved = value.permute(order)
    return insert_call(graph, aten.permute.default, (operand, order), value=moved, origin=origin)


def _order(node: fx.Node) -> list[int]:
    """Returns where each axis of a transposition's result comes from."""
    rank = node.meta["val"].dim()
    order = list(range(rank))
    if node.target is aten.permute.default:
        return [axis % rank for axis in argument(node, "dims")]
    if node.target is aten.transpose.int:
        first, second = argument(node, "dim0") % rank, argument(node, "dim1") % rank
        order[first], order[second] = order[second], order[first]
        return order
    return order[::-1]
