"""Keeps arithmetic on positions in float32: what follows from integers, and becomes angles, indices or conditions."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_core.precision import EXCLUDED, KeptInFloat32, PrecisionRule, exclusion_of
from trt_lowering.contract import GraphPass
from trt_lowering.moving_operators import rearranges
from trt_lowering.operator_traits import is_float32, tensor_value

_WHY: Final = "computed from integers, and read as an angle, an index or a condition"

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
                    node.meta[EXCLUDED] = KeptInFloat32(PrecisionRule.POSITION, _WHY)
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
