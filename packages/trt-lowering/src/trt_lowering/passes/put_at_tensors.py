"""Writes to a place that is read out of a tensor, which no engine does: the tensor itself says where."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from trt_core.operators import argument
from trt_lowering.contract import OperatorPass
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import tensor_value

aten: Final = torch.ops.aten

_READS: Final = frozenset({aten.item.default, aten._local_scalar_dense.default})
_PLACES: Final = frozenset({torch.int64, torch.int32})


class PutAtTensors(OperatorPass):
    """Computes `cache.select(2, place).copy_(rows)`, `place` a tensor of one number, as `cache[:, :, place] = rows`.

    Capturing makes a number of such a tensor, and a size of the number, that no engine knows. As an index it stays on
    its device; places before the beginning count from the end, and those outside are errors, in both.

    Requires: values on nodes.
    Ensures: values on nodes.
    """

    name = "put_at_tensors"

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites each write; what read the number is left to whoever clears away what is unused."""
        changes = 0
        for node in gm.graph.find_nodes(op="call_function", target=aten.select_scatter.default):
            place = _read_tensor(node)
            if place is None or self.stays(node.target):
                continue
            value, read = tensor_value(node), tensor_value(place)
            assert value is not None and read is not None
            with gm.graph.inserting_before(node):
                if read.dim():
                    place = insert_call(gm.graph, aten.view.default, (place, []), value=read.view(()), origin=node)
                axis: Any = argument(node, "dim")
                where = [*[None] * (axis % value.dim()), place]
                args = (argument(node, "self"), where, argument(node, "src"))
                put = insert_call(gm.graph, aten.index_put.default, args, value=value, origin=node)
            node.replace_all_uses_with(put)
            gm.graph.erase_node(node)
            changes += 1
        return changes


def _read_tensor(node: fx.Node) -> fx.Node | None:
    """The tensor out of which the place of a write is read; None where it is another number."""
    index: Any = argument(node, "index")
    if not isinstance(index, fx.Node) or index.target not in _READS:
        return None
    place: Any = index.args[0]
    value, written = tensor_value(place), tensor_value(node)
    if value is None or written is None or value.dtype not in _PLACES or value.device != written.device:
        return None
    return place if all(type(extent) is int for extent in value.shape) else None  # all of them one
