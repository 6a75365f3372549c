"""Computes symbolic integers from the graph's inputs, not from intermediate tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trt_core.sizes.expressions import Extent, extent_of
from trt_core.sizes.functions import FUNCTIONS
from trt_lowering.contract import GraphPass
from trt_lowering.inlining import replace_result
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import is_size_query, is_symbolic_function

aten = torch.ops.aten


class SimplifySizes(GraphPass):
    """Recomputes sizes from the dimensions of the graph's inputs, and makes constant sizes numbers.

    A size that hangs off an intermediate tensor would keep that tensor alive across blocks, and be computed again for
    each tensor of the same shape. Here every expression of symbols is computed once, right after the inputs. Sizes
    that depend on data, and expressions that cannot be written as arithmetic on input dimensions, stay.

    Requires: values on nodes.
    Ensures: no symbolic integer whose value is a constant or a dimension of an input is read off another tensor.
    """

    name = "simplify_sizes"

    def call(self, gm: fx.GraphModule) -> int:
        """Replaces nodes with integer values."""
        builder = _SizeBuilder(gm.graph)
        changes = 0
        for node in list(gm.graph.nodes):
            if not _is_size(node) or node in builder.own:
                continue
            value = node.meta["val"]
            extent = _extent(value)
            if extent is None:
                continue
            replacement = extent if isinstance(extent, int) else builder.build(extent, value)
            if replacement is None or replacement is node:
                continue
            changes += 1
            replace_result(node, replacement)
            gm.graph.erase_node(node)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that input dimensions are read off inputs."""
        self.require_values(gm)
        inputs = {
            str(extent_of(extent))
            for node in gm.graph.find_nodes(op="placeholder")
            if isinstance(node.meta["val"], torch.Tensor)
            for extent in node.meta["val"].shape
            if not isinstance(extent, int)
        }
        for node in gm.graph.nodes:
            if not is_size_query(node.target) or not isinstance(node.meta["val"], torch.SymInt):
                continue
            source = node.args[0]
            if str(extent_of(node.meta["val"])) in inputs and source.op != "placeholder":
                self.fail(node, "a dimension of an input is read off another tensor")


class _SizeBuilder:
    """Builds expressions of symbols right after the inputs, each once."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._sources: dict[str, tuple[fx.Node, int | None, Any]] = {}
        self._built: dict[str, fx.Node] = {}
        self.own: set[fx.Node] = set()
        self._last: fx.Node | None = None
        for node in graph.nodes:
            if node.op == "placeholder":
                self._last = node
                self._add_sources(node)

    def build(self, extent: Extent, value: Any) -> fx.Node | None:
        """Returns a node with the extent's value, None when the inputs do not determine it."""
        key = str(extent)
        if key in self._built:
            return self._built[key]
        if key in self._sources:
            return self._read(key)
        if isinstance(extent, list) and extent[0] == "ceildiv":  # ceil(a / b) = -floor(-a / b)
            extent = ["mul", ["floordiv", ["mul", extent[1], -1], extent[2]], -1]
        if not isinstance(extent, list):
            return None
        operands: list[Any] = []
        for part in extent[1:]:
            operand = part if isinstance(part, int) else self.build(part, None)
            if operand is None:
                return None
            operands.append(operand)
        function = FUNCTIONS[extent[0]].targets[0]
        result = operands[0]
        for position, operand in enumerate(operands[1:], start=2):
            partial = function(_number(result), _number(operand))
            if position == len(operands) and value is not None:
                partial = value
            result = self._insert(function, (result, operand), partial)
        self._built[key] = result
        return result  # type: ignore[no-any-return]

    def _add_sources(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self._sources.setdefault(str(extent_of(value)), (node, None, value))
        if not isinstance(value, torch.Tensor):
            return
        for axis, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                extent = extent_of(size)
                if extent is not None:
                    self._sources.setdefault(str(extent), (node, axis, size))

    def _read(self, key: str) -> fx.Node:
        node, axis, value = self._sources[key]
        built = node if axis is None else self._insert(aten.sym_size.int, (node, axis), value)
        self._built[key] = built
        return built

    def _insert(self, target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        assert self._last is not None
        with self._graph.inserting_after(self._last):
            node = insert_call(self._graph, target, args, value=value, origin=None)
        self._last = node
        self.own.add(node)
        return node


def _is_size(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (int, torch.SymInt)):
        return False
    if isinstance(node.meta["val"], bool):
        return False
    return is_size_query(node.target) or is_symbolic_function(node.target)


def _extent(value: int | torch.SymInt) -> Extent:
    if isinstance(value, torch.SymInt) and value.node.expr.is_Integer:
        return int(value.node.expr)
    return extent_of(value)


def _number(item: Any) -> Any:
    return item.meta["val"] if isinstance(item, fx.Node) else item
