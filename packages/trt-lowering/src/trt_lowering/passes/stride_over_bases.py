"""Takes strides over the memory that views lie in, so that no view has to lie where it lay when it was captured."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import argument, tensor_value
from trt_lowering.results import viewed_by

aten = torch.ops.aten

_STRIDING: Final = frozenset({aten.as_strided.default, aten.as_strided_copy.default})
_MAY_COPY: Final = frozenset(
    {"aten::contiguous", "aten::flatten", "aten::ravel", "aten::reshape", "aten::reshape_as", "aten::to"}
)
"""Operators that return a view of their argument, or a copy where there is none."""


class StrideOverBases(GraphPass):
    """Makes `as_strided` of a view one of the tensor that owns the memory.

    An operator that names strides reads memory, and may read more of it than its argument shows. A view that an engine
    made has memory of its own, without what lies between and around its elements.

    Requires: values on nodes.
    Ensures: no strided view is one of a view of a tensor that the graph makes.
    """

    name = "stride_over_bases"

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites in one walk."""
        changes = 0
        for node in _strided(gm.graph):
            base = _owner(node.args[0])
            if base is node.args[0]:
                continue
            changes += 1
            offset = argument(node, "storage_offset")
            if offset is None:
                offset = _offset_of(node)
            node.args = (base, argument(node, "size"), argument(node, "stride"), offset)
            node.kwargs = {}
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that the memory is named by its owner."""
        self.require_values(gm)
        for node in _strided(gm.graph):
            if _owner(node.args[0]) is not node.args[0]:
                self.fail(node, "strides are taken over a view")


def _strided(graph: fx.Graph) -> list[fx.Node]:
    return [node for target in _STRIDING for node in graph.find_nodes(op="call_function", target=target)]


def _owner(node: Any) -> fx.Node:
    """The node that made the memory of a tensor; the tensor itself where that is an input, whose start may differ."""
    named: fx.Node = node
    owner = named
    while (source := _viewed(owner)) is not None:
        owner = source
    return owner if owner.op == "call_function" else named


def _viewed(node: fx.Node) -> fx.Node | None:
    target, source = node.target, viewed_by(node)
    if source is None or (isinstance(target, OpOverload) and target._schema.name in _MAY_COPY):
        return None
    mine, other = tensor_value(node), tensor_value(source)
    return None if mine is None or (other is not None and mine.dtype != other.dtype) else source


def _offset_of(node: fx.Node) -> int | fx.Node:
    """Where the argument starts in its memory; a symbolic number is computed from sizes by a pass that follows."""
    view: Any = node.args[0]
    value = tensor_value(view)
    assert value is not None
    offset = value.storage_offset()
    if isinstance(offset, int):
        return offset
    with node.graph.inserting_before(node):
        return insert_call(node.graph, aten.sym_storage_offset.default, (view,), value=offset, origin=node)
