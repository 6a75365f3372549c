"""Computes at compile time what depends on constants only."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.attributes import add_constant, read_attribute, written_targets
from trt_core.internals import FakeTensor, FakeTensorMode, OpOverload
from trt_core.process_groups import is_collective
from trt_core.quantization import dequantize, is_dequantization, is_scale, quantize
from trt_core.weight_recipes import RECIPE, Literal, apply_operator
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import insert_call, provenance_of
from trt_lowering.operator_traits import is_data_dependent, is_kept_in_torch, is_pure, tensor_value
from trt_lowering.results import base_of, views_of_results

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
        foldable = self._find(gm)
        if self._only_quantized:
            foldable &= _operands_of_quantization(gm.graph)
        if not foldable:
            return 0
        remaining = {node: sum(user in foldable for user in node.users) for node in foldable}
        values: dict[fx.Node, Any] = {}
        recipes: dict[fx.Node, Any] = {}
        views = views_of_results(gm.graph)
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

    def _find(self, gm: fx.GraphModule) -> set[fx.Node]:
        written = written_targets(gm.graph)
        sources: dict[fx.Node, int] = {}  # constant node -> bytes of the attributes it comes from
        foldable: set[fx.Node] = set()
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                if str(node.target) not in written and self._is_constant(gm, node):
                    sources[node] = _bytes(node)
            elif self._is_foldable(node) and all(operand in sources for operand in node.all_input_nodes):
                origin = sum(sources[operand] for operand in node.all_input_nodes)
                if _bytes(node) <= max(origin, self._small_bytes):
                    sources[node] = max(origin, _bytes(node)) if node.all_input_nodes else 0
                    foldable.add(node)
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
    value = node.meta.get("val")
    items = value if isinstance(value, (tuple, list)) else (value,)
    return sum(
        math.prod(item.shape) * item.element_size()
        for item in items
        if isinstance(item, torch.Tensor) and all(isinstance(extent, int) for extent in item.shape)
    )
