"""Constants and sizes: what depends on constants only is computed now, equal sizes are one, views are of memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.attributes import add_constant, read_attribute, written_targets
from trt_core.internals import FakeTensor, FakeTensorMode, OpOverload, schema_name
from trt_core.nesting import tensors_in
from trt_core.operators import argument, is_size_query
from trt_core.process_groups import is_collective
from trt_core.quantization import dequantize, is_dequantization, is_scale, quantize
from trt_core.sizes.expressions import Expression, Extent, extent_of
from trt_core.sizes.functions import FUNCTIONS
from trt_core.weight_recipes import RECIPE, Literal, apply_operator
from trt_lowering.contract import GraphPass
from trt_lowering.expansion import replace_result
from trt_lowering.node_metadata import insert_call, provenance_of
from trt_lowering.operator_traits import (
    MAY_COPY,
    is_data_dependent,
    is_kept_in_torch,
    is_pure,
    is_symbolic_function,
    tensor_value,
)
from trt_lowering.results import base_of, viewed_by, views_of_results

aten = torch.ops.aten

SMALL_BYTES = 1 << 20
"""Results up to this size are always folded; larger ones only when they are no larger than what they come from."""


class FoldConstants(GraphPass):
    """Replaces nodes that depend on parameters, buffers and numbers alone by a constant buffer with their value.

    Only what the rest of the graph reads becomes a buffer, intermediate results are dropped. What the model makes and
    returns is copied at every call, because callers may write to it. State that the graph
    writes to is not constant. A view of a parameter is folded to a view: no memory is copied. Of fake tensors, and
    those on the `meta` device, the results are such tensors again, so a model without weights lowers as with them.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: values on nodes.

    Args:
        settings: Operators in `torch_executed_ops` stay. With `refit`, each constant that is computed from weights
            of the model keeps the recipe that makes it again from other weights.
        small_bytes: Size in bytes up to which results are folded whatever they come from.
        only_quantized: Fold nothing but scales and weights that are quantized.
    """

    name = "fold_constants"

    def __init__(
        self, settings: CompilationSettings, *, small_bytes: int = SMALL_BYTES, only_quantized: bool = False
    ) -> None:
        self._settings = settings
        self._only_quantized = only_quantized
        self._small_bytes = small_bytes

    def call(self, gm: fx.GraphModule) -> int:
        """Finds the foldable nodes, computes them in order, and attaches what is read from outside."""
        views = views_of_results(gm.graph)
        foldable = self._find(gm, views)
        if self._only_quantized:
            foldable &= _operands_of_quantization(gm.graph)
        if not foldable:
            return 0
        remaining = {node: sum(user in foldable for user in node.users) for node in foldable}
        values: dict[fx.Node, Any] = {}
        recipes: dict[fx.Node, Any] = {}
        returned = {gm.graph.output_node()}.union(*views.values())
        changes = 0
        with torch.no_grad():
            for node in list(gm.graph.nodes):
                if node not in foldable:
                    continue
                value = _compute(gm, node, values)
                if self._settings.refit:
                    recipes[node] = _recipe(gm, node, value, recipes)
                for operand in node.all_input_nodes:
                    if operand in remaining:
                        remaining[operand] -= 1
                        if not remaining[operand]:
                            values.pop(operand, None)
                if remaining[node]:
                    values[node] = value
                if isinstance(value, torch.Tensor) and any(user not in foldable for user in node.users):
                    constant = _attach(gm, node, value, foldable, returned)
                    if node in recipes:
                        constant.meta[RECIPE] = recipes[node]
                    changes += 1
        for node in reversed(gm.graph.nodes):
            if node in foldable and not node.users:
                gm.graph.erase_node(node)
        return changes

    def _find(self, gm: fx.GraphModule, views: Mapping[fx.Node, Sequence[fx.Node]]) -> set[fx.Node]:
        written = written_targets(gm.graph)
        sources: dict[fx.Node, int] = {}  # constant node -> bytes of the attributes it comes from
        foldable: set[fx.Node] = set()
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                if str(node.target) not in written and self._is_constant(gm, node):
                    sources[node] = _bytes(node)
            elif sources.keys() >= {*(operands := node.all_input_nodes)} and self._is_foldable(node):
                origin = sum(sources[operand] for operand in operands)
                if _bytes(node) <= max(origin, self._small_bytes):
                    sources[node] = max(origin, _bytes(node)) if operands else 0
                    foldable.add(node)
        for chain in views.values():
            if chain and base_of(chain[0]) in foldable:  # what is made anew is one tensor for all of its views
                for view in chain:
                    foldable.discard(view)
                    _discard_users(view, foldable)
        return _without_list_readers(foldable)

    def _is_constant(self, gm: fx.GraphModule, node: fx.Node) -> bool:
        return isinstance(read_attribute(gm, str(node.target)), torch.Tensor)

    def _is_foldable(self, node: fx.Node) -> bool:
        if node.op != "call_function" or not is_pure(node) or is_kept_in_torch(node.target, self._settings):
            return False
        if is_collective(node):  # other processes have a say, and weights in parts shall stay in parts
            return False
        if isinstance(node.target, OpOverload):
            if is_dequantization(node.target):
                return False  # a weight stays quantized
            is_lookup = node.target is aten.index.Tensor  # of masks too, whose results have no static extents
            return (is_lookup or not is_data_dependent(node.target)) and _is_static(node.meta["val"])
        return bool(node.all_input_nodes) and _is_static(node.meta["val"])


def _operands_of_quantization(graph: fx.Graph) -> set[fx.Node]:
    """Returns what quantized weights and scales are computed from, themselves included."""
    wanted: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.target is quantize or node in wanted:
            wanted.update((node, *node.all_input_nodes))
        elif node.target is dequantize:
            wanted.update(node.all_input_nodes)
        else:
            wanted.update(operand for operand in node.all_input_nodes if is_scale(node, operand))
    return wanted


def _without_list_readers(foldable: set[fx.Node]) -> set[fx.Node]:
    """Drops nodes that return lists to readers outside: only tensors can become buffers."""
    kept = set(foldable)
    pending = list(foldable)
    while pending:
        node = pending.pop()
        if node in kept and tensor_value(node) is None and any(user not in kept for user in node.users):
            kept.discard(node)
            # whoever reads the node can no longer be computed either
            pending.extend(_discard_users(node, kept))
    return kept


def _discard_users(node: fx.Node, kept: set[fx.Node]) -> list[fx.Node]:
    touched: list[fx.Node] = []
    pending = [user for user in node.users if user in kept]
    while pending:
        user = pending.pop()
        if user not in kept:
            continue
        kept.discard(user)
        touched.extend(operand for operand in user.all_input_nodes if operand in kept)
        pending.extend(other for other in user.users if other in kept)
    return touched


def _compute(gm: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    def read(operand: fx.Node) -> Any:
        return values[operand] if operand in values else read_attribute(gm, str(operand.target))

    assert callable(node.target)
    operands = {operand: read(operand) for operand in node.all_input_nodes}
    fake = next((value for value in operands.values() if isinstance(value, FakeTensor)), None)
    if fake is not None:  # one mode for all of them: fake tensors and real ones do not mix
        operands = {operand: _as_fake(value, fake.fake_mode) for operand, value in operands.items()}
    args: Any = fx.map_arg(node.args, operands.__getitem__)
    kwargs: Any = fx.map_arg(node.kwargs, operands.__getitem__)
    return node.target(*args, **kwargs)


def _as_fake(value: Any, mode: FakeTensorMode) -> Any:
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return mode.from_tensor(value) if is_real else value


def _recipe(gm: fx.GraphModule, node: fx.Node, value: Any, recipes: Mapping[fx.Node, Any]) -> Any:
    """Returns how a value is made; the value itself where it is a number, a list where there are several."""

    def describe(operand: fx.Node) -> Any:
        if operand in recipes:
            return recipes[operand]
        known = operand.meta.get(RECIPE)
        return Literal(read_attribute(gm, str(operand.target))) if known is None else known

    operands = {operand: describe(operand) for operand in node.all_input_nodes}
    args: Any = fx.map_arg(node.args, operands.__getitem__)
    kwargs: Any = fx.map_arg(node.kwargs, operands.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    if isinstance(value, torch.Tensor):
        return apply_operator(node.target, args, kwargs)
    if isinstance(value, (list, tuple)):
        return [apply_operator(node.target, args, kwargs, item=index) for index in range(len(value))]
    return value


def _attach(
    gm: fx.GraphModule, node: fx.Node, value: torch.Tensor, foldable: set[fx.Node], returned: set[fx.Node]
) -> fx.Node:
    name = add_constant(gm, value)
    with gm.graph.inserting_before(node):
        constant = gm.graph.get_attr(name)
    constant.meta.update(provenance_of(node))
    constant.meta["val"] = node.meta["val"]
    outside = [user for user in node.users if user not in foldable]
    if not _is_part_of_attribute(gm, node, value) and any(user in returned for user in outside):
        with gm.graph.inserting_before(node):
            copied = insert_call(gm.graph, aten.clone.default, (constant,), value=node.meta["val"], origin=node)
        for user in outside:
            user.replace_input_with(node, copied if user in returned else constant)
        return constant
    for user in outside:
        user.replace_input_with(node, constant)
    return constant


def _is_part_of_attribute(gm: fx.GraphModule, node: fx.Node, value: torch.Tensor) -> bool:
    base = base_of(node)
    owner = read_attribute(gm, str(base.target)) if base.op == "get_attr" else None
    return isinstance(owner, torch.Tensor) and owner.untyped_storage()._cdata == value.untyped_storage()._cdata


def _is_static(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_static, value))
    if isinstance(value, torch.Tensor):
        return all(isinstance(extent, int) for extent in value.shape)
    return isinstance(value, (int, float, bool, complex))


def _bytes(node: fx.Node) -> int:
    return sum(
        math.prod(item.shape) * item.element_size()
        for item in tensors_in(node.meta.get("val"))
        if all(isinstance(extent, int) for extent in item.shape)
    )


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

    def build(self, extent: Expression, value: Any) -> fx.Node | None:
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
            operand = part if isinstance(part, (int, float)) else self.build(part, None)
            if operand is None:
                return None
            operands.append(operand)
        function = FUNCTIONS[extent[0]].targets[0]
        result = operands[0]
        if len(operands) == 1:
            result = self._insert(function, (result,), function(_number(result)) if value is None else value)
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
    if source is None or schema_name(target) in MAY_COPY:
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
