"""Runs matrix and convolution work in a reduced type, and the rest in float32."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.attributes import is_state, read_attribute
from trt_core.internals import OpOverload
from trt_core.precision import KEPT, exclusion_of
from trt_lowering.contract import GraphPass
from trt_lowering.narrowing import Narrowing, is_attention_mask, saturate
from trt_lowering.node_metadata import cast_value, insert_call
from trt_lowering.operator_traits import is_kept_in_torch, tensor_value

aten = torch.ops.aten

MATRIX_OPERATORS: Final = frozenset(
    {
        "aten::addbmm",
        "aten::addmm",
        "aten::addmv",
        "aten::baddbmm",
        "aten::bilinear",
        "aten::bmm",
        "aten::conv1d",
        "aten::conv2d",
        "aten::conv3d",
        "aten::conv_transpose1d",
        "aten::conv_transpose2d",
        "aten::conv_transpose3d",
        "aten::convolution",
        "aten::einsum",
        "aten::linear",
        "aten::matmul",
        "aten::mm",
        "aten::mv",
        "aten::scaled_dot_product_attention",
    }
)
"""Operators whose cost is products, and which accumulate in float32 whatever their inputs are."""


class Autocast(GraphPass):
    """Casts the float32 inputs of matrix and convolution operators, and casts their results back.

    Neighbours of that kind hand the reduced type on to each other without a cast in between. Numbers change within the
    accuracy of the reduced type.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: every matrix operator that worked in float32 works in the reduced type, unless it is marked as excluded,
    and what others read is float32.

    Args:
        settings: `enable_autocast` and `autocast_dtype`; operators in `torch_executed_ops` stay as they are.
    """

    name = "autocast"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings
        self._dtype = settings.autocast_dtype

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites matrix operators in the order of the graph."""
        if not self._settings.enable_autocast or self._dtype == torch.float32:
            return 0
        reduced: dict[fx.Node, fx.Node] = {}  # float32 node -> the same in the reduced type
        changes = 0
        for node in list(gm.graph.nodes):
            if not self._applies(node):
                continue
            exclusion = exclusion_of(node)
            if exclusion is None:
                self._rewrite(gm, node, reduced)
                changes += 1
            else:
                node.meta[KEPT] = exclusion
        for wide in reduced:
            if not wide.users and wide.target is aten._to_copy.default:
                gm.graph.erase_node(wide)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that no matrix operator is left in float32."""
        self.require_values(gm)
        for node in gm.graph.nodes:
            if self._applies(node) and exclusion_of(node) is None:
                self.fail(node, f"{node.target} still works in float32")

    def _applies(self, node: fx.Node) -> bool:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            return False
        if node.target._schema.name not in MATRIX_OPERATORS or is_kept_in_torch(node.target, self._settings):
            return False
        value = tensor_value(node)
        return value is not None and value.dtype == torch.float32

    def _rewrite(self, gm: fx.GraphModule, node: fx.Node, reduced: dict[fx.Node, fx.Node]) -> None:
        graph = gm.graph
        for operand in node.all_input_nodes:
            value = tensor_value(operand)
            if value is None or value.dtype != torch.float32:
                continue
            if operand not in reduced:
                with graph.inserting_before(node):
                    source = self._saturated(gm, operand, node)
                    reduced[operand] = self._cast(graph, source, value, self._dtype, node)
            node.replace_input_with(operand, reduced[operand])
        value = node.meta["val"]
        node.meta["val"] = cast_value(value, self._dtype)
        with graph.inserting_after(node):
            wide = self._cast(graph, node, node.meta["val"], torch.float32, node)
        node.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not wide)
        reduced[wide] = node

    def _saturated(self, gm: fx.GraphModule, operand: fx.Node, node: fx.Node) -> fx.Node:
        """Keeps what says "masked out" finite: in constants, and in the masks that attention adds.

        What was infinite before stays so.
        """
        limit: float | None = torch.finfo(self._dtype).max
        if operand.op == "get_attr":
            constant = None if is_state(operand) else read_attribute(gm, str(operand.target))
            limit = Narrowing(torch.float32, self._dtype).limit_of(constant, operand)
        elif not is_attention_mask(operand, node):
            return operand
        return operand if limit is None else saturate(gm.graph, operand, limit)

    def _cast(self, graph: fx.Graph, node: fx.Node, value: torch.Tensor, dtype: Any, origin: fx.Node) -> fx.Node:
        return insert_call(
            graph,
            aten._to_copy.default,
            (node,),
            {"dtype": dtype},
            value=cast_value(value, dtype),
            origin=origin,
        )
