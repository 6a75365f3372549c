"""Marks the nodes that stay in float32 where the rest is reduced: by rule, as positions, as state between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_core.precision import EXCLUDED, KeptInFloat32, PrecisionRule, exclusion_of
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import STATE, graph_results, same_shape
from trt_lowering.operator_traits import is_float32, moves, rearranges, tensor_value
from trt_lowering.precision_rules import is_reducible


class ExcludeFromReduction(GraphPass):
    """Notes on nodes that they are not to be reduced, for the passes that change types. Changes no computation.

    It runs twice: before decomposition, where operators and names are those of the model, so that the pieces of an
    excluded operator inherit the mark; and after it, where operators and names are those of engines and reports.

    Requires: values on nodes.
    Ensures: every node that a rule holds for is marked.

    Args:
        rule: Why a node stays in float32; None where nothing is against reducing it.
    """

    name = "exclude_from_reduction"

    def __init__(self, rule: Callable[[fx.Node], KeptInFloat32 | None]) -> None:
        self._rule = rule

    def call(self, gm: fx.GraphModule) -> int:
        """Applies the rule to every node that has to do with float32 tensors."""
        marked = 0
        for node in gm.graph.nodes:
            if exclusion_of(node) is None and is_reducible(node):
                found = self._rule(node)
                if found is not None:
                    node.meta[EXCLUDED] = found
                    marked += 1
        return marked


_POSITION: Final = "computed from integers, and read as an angle, an index or a condition"

_SOURCES: Final = frozenset({"aten::arange", "aten::range", "aten::linspace", "prims::iota"})
"""Operators that make positions of numbers."""

_ANGLES: Final = frozenset({"aten::cos", "aten::sin", "aten::tan"})
_STEPS: Final = frozenset(f"aten::{name}" for name in ("floor", "ceil", "round", "trunc", "remainder", "fmod"))

_PRODUCTS: Final = frozenset({"aten::mm", "aten::bmm", "aten::matmul", "aten::outer", "aten::ger"})
_CASTS: Final = frozenset({"aten::_to_copy", "aten::to", "prims::convert_element_type"})
_KEEPERS: Final = _PRODUCTS | _CASTS | {"aten::cumsum"}
"""Operators that make positions of positions, beside elementwise ones and those that move elements."""


class ExcludePositions(GraphPass):
    """Marks arithmetic on positions, which narrow types cannot count: bfloat16 has no 257, float16 no 2049.

    A position is what follows from integers, `arange` and constants alone, by elementwise arithmetic, movement and
    products: the angles of rotary embeddings, timesteps, buckets of distances. Where it ends up in a sine or cosine,
    in an integer or in a comparison, all of it stays in float32; the result is reduced where something else reads it.

    Requires: values on nodes.
    Ensures: every such node is marked.
    """

    name = "exclude_positions"

    def call(self, gm: fx.GraphModule) -> int:
        """Finds positions along the graph, and marks against it from where they end up."""
        positions: set[fx.Node] = set()
        constants: set[fx.Node] = set()
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                constants.add(node)
            elif node.op == "call_function" and is_float32(node):
                operands = [item for item in node.all_input_nodes if tensor_value(item) is not None]
                if _name(node) in _SOURCES or _is_position(node, operands, positions, constants):
                    positions.add(node)
                elif _keeps_kind(node) and constants.issuperset(operands):
                    constants.add(node)
        wanted: set[fx.Node] = set()
        kept = positions | constants
        marked = 0
        for node in reversed(gm.graph.nodes):
            if node.op != "call_function":
                continue
            if node in wanted or (node in positions and _name(node) in _ANGLES | _STEPS) or _reads(node, positions):
                # constants that positions meet as well, or they would be rounded before
                wanted.update(operand for operand in node.all_input_nodes if operand in kept)
                if exclusion_of(node) is None:
                    node.meta[EXCLUDED] = KeptInFloat32(PrecisionRule.POSITION, _POSITION)
                    marked += 1
        return marked


def _is_position(node: fx.Node, operands: list[fx.Node], positions: set[fx.Node], constants: set[fx.Node]) -> bool:
    """Whether a float result follows from positions or integers, and constants."""
    begins = any(operand in positions or not is_float32(operand) for operand in operands)
    fits = all(operand in positions or operand in constants or not is_float32(operand) for operand in operands)
    return begins and fits and _keeps_kind(node)


def _keeps_kind(node: fx.Node) -> bool:
    """Whether an operator makes positions of positions: no lookup, no reduction."""
    if not isinstance(node.target, OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or rearranges(node) or _name(node) in _KEEPERS


def _reads(node: fx.Node, positions: set[fx.Node]) -> bool:
    """Whether a node makes integers or booleans of positions alone."""
    value = tensor_value(node)
    if value is None or value.is_floating_point() or value.is_complex() or not _keeps_kind(node):
        return False
    operands = [item for item in node.all_input_nodes if tensor_value(item) is not None]
    floats = [item for item in operands if is_float32(item) and item.op != "get_attr"]
    return bool(floats) and positions.issuperset(floats)


def _name(node: Any) -> str:
    return str(node.target._schema.name) if isinstance(node.target, OpOverload) else ""


_STATE: Final = "carries a state on to its next value"

_ADDING: Final = frozenset({"aten::index_add", "aten::index_reduce", "aten::scatter_add", "aten::scatter_reduce"})
"""Operators that add to elements of a state, each by itself."""


class ExcludeState(GraphPass):
    """Marks what leads from the old value of a state to its new one by movement and elementwise arithmetic.

    A buffer or an input that a model writes to belongs to the caller. Where it is a cache, most of it is only moved,
    and would be rounded, or become infinite, without having been written; where it is a counter or an average, what is
    added would be lost in a narrow type. Other operators, such as a recurrent layer's product, are reduced as anywhere.

    A new value is what is written back, or, where states are noted (`STATE`), a result of the same shape.

    Requires: values on nodes.
    Ensures: every such node is marked.
    """

    name = "exclude_state"

    def call(self, gm: fx.GraphModule) -> int:
        """Finds what follows from a state along the graph, and marks against it from what is written."""
        next_values = _next_values(gm.graph)
        moved = _moved(gm.graph) if next_values else set()
        found: set[fx.Node] = set()
        for state, values in next_values.items():
            follows = _followers(state)
            marked: set[fx.Node] = set()
            pending = [value for value in values if value in follows or value in moved]
            while pending:
                node = pending.pop()
                if node not in marked:
                    marked.add(node)
                    pending.extend(item for item in node.all_input_nodes if item in follows or item in moved)
            found |= marked
        fresh = [node for node in found if exclusion_of(node) is None]
        for node in fresh:
            node.meta[EXCLUDED] = KeptInFloat32(PrecisionRule.STATE, _STATE)
        return len(fresh)


def _next_values(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Returns the states in float32 with what is, or may be, their next value."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        state, value = node.args[:2]
        if isinstance(state, fx.Node) and isinstance(value, fx.Node) and is_float32(state):
            found.setdefault(state, []).append(value)
    results = [item for item in graph_results(graph) if isinstance(item, fx.Node) and is_float32(item)]
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr") and node.meta.get(STATE) and is_float32(node):
            alike = [item for item in results if same_shape(item.meta["val"], node.meta["val"])]
            found.setdefault(node, []).extend(alike)
    return found


def _followers(state: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = [state]
    while pending:
        for user in pending.pop().users:
            if user not in found and _carries(user):
                found.add(user)
                pending.append(user)
    return found


def _moved(graph: fx.Graph) -> set[fx.Node]:
    """Returns what is nothing but elements of inputs and attributes: storing them in a state rounds nothing either."""
    given = {node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    moved: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and moves(node) and _holds_float32(node):
            sources = [item for item in node.all_input_nodes if _holds_float32(item)]
            if all(source in given or source in moved for source in sources):
                moved.add(node)
    return moved


def _carries(node: fx.Node) -> bool:
    """Whether an operator moves what it is given, or computes element by element; conditions on a state are of it."""
    value = tensor_value(node)
    if not (_holds_float32(node) or (value is not None and value.dtype is torch.bool)):
        return False
    if moves(node):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or node.target._schema.name in _ADDING


def _holds_float32(node: fx.Node) -> bool:
    """Whether a node stands for a tensor of float32, or for several tensors."""
    return is_float32(node) or isinstance(node.meta.get("val"), (tuple, list))
