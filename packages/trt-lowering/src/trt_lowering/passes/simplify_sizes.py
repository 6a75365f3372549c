"""Sizes and strides in fewer nodes: equal sizes are one, and strided views are taken of the memory that they lie in."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_core.sizes.expressions import Extent, extent_of
from trt_core.sizes.functions import FUNCTIONS
from trt_lowering.contract import GraphPass
from trt_lowering.expansion import replace_result
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import argument, is_size_query, is_symbolic_function, tensor_value
from trt_lowering.results import viewed_by

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
