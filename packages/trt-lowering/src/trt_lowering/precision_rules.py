"""Decides which nodes compute in float32 where the rest is reduced: the one place that does.

Errors of rounding grow with the number of elements that an operator adds up for one element of its result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.graph_search import reachable
from trt_core.internals import OpOverload, schema_name
from trt_core.nesting import tensors_in
from trt_core.operator_counts import Count, Operands, depth_of, is_product, labels_of, operands_at, window
from trt_core.operators import operator_name, packet_name
from trt_core.precision import EXCLUDED, KeptInFloat32, PrecisionRule, exclusion_of
from trt_core.provenance import module_paths, node_location
from trt_core.sizes.ranges import ShapeRanges
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import STATE, graph_results, same_shape
from trt_lowering.operator_traits import is_float32, moves, rearranges, tensor_value


@dataclass(frozen=True)
class PrecisionRules:
    """What keeps a node in float32. The first rule that holds gives the reason.

    Attributes:
        operators: Names of operators, with or without overload.
        patterns: Regular expressions, matched from the start of a node's name, of the path of every module around it,
            and of `module/node`.
        max_magnitude: Largest magnitude of operands and results in the reduced type; None for any.
        max_depth: Most elements that are added up in the reduced type; None for any number.
        magnitudes: Largest finite magnitude of each node's value, by name; nodes that are missing pass.
        sensitive: Names of nodes that were found to lose too much, with what was measured.
    """

    operators: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    max_magnitude: float | None = None
    max_depth: int | None = None
    magnitudes: Mapping[str, float] = field(default_factory=dict)
    sensitive: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        settings: CompilationSettings,
        magnitudes: Mapping[str, float] | None = None,
        sensitive: Mapping[str, str] | None = None,
    ) -> PrecisionRules:
        """Returns the rules that settings ask for.

        Args:
            settings: The settings.
            magnitudes: What was measured, where `autocast_max_output_threshold` is set.
            sensitive: What was found by measuring errors.
        """
        return cls(
            operators=settings.autocast_excluded_ops,
            patterns=tuple(sorted(settings.autocast_excluded_nodes)),
            max_magnitude=settings.autocast_max_output_threshold,
            max_depth=settings.autocast_max_depth_of_reduction,
            magnitudes=magnitudes or {},
            sensitive=sensitive or {},
        )

    def by_name(self, node: fx.Node) -> KeptInFloat32 | None:
        """Applies the rules that need no values: these hold for the operators that the model was written with, too."""
        operator = next((name for name in _names_of_operator(node) if name in self.operators), "")
        if operator:
            return KeptInFloat32(PrecisionRule.OPERATOR, operator)
        pattern = next(self._matching(node), "")
        return KeptInFloat32(PrecisionRule.NODE, pattern) if pattern else None

    def matched_exclusions(self, gm: fx.GraphModule) -> frozenset[str]:
        """Returns the operators and patterns that fit a node of a graph."""
        found: set[str] = set()
        for node in gm.graph.nodes if self.operators or self.patterns else ():
            if node.op == "call_function":
                found.update(self.operators.intersection(_names_of_operator(node)), self._matching(node))
        return frozenset(found)

    def _matching(self, node: fx.Node) -> Iterator[str]:
        """Yields the patterns that match a node."""
        names = (node.name, node_location(node), *module_paths(node)) if self.patterns else ()
        return (one for one in self.patterns if any(re.match(one, name) for name in names))

    def by_value(self, node: fx.Node, ranges: ShapeRanges) -> KeptInFloat32 | None:
        """Applies the rules on measurements and extents: these hold for the operators that an engine runs."""
        if node.name in self.sensitive:
            return KeptInFloat32(PrecisionRule.SENSITIVITY, self.sensitive[node.name])
        if self.max_magnitude is not None:
            largest, name = self._largest(node)
            if largest > self.max_magnitude:
                return KeptInFloat32(PrecisionRule.MAGNITUDE, f"{name} reaches {largest:.4g}")
        if self.max_depth is not None:
            depth = reduction_depth(node, lambda extent: ranges.bounds(extent)[2])
            if depth > self.max_depth:
                return KeptInFloat32(PrecisionRule.DEPTH, f"adds up {depth} elements")
        return None

    def _largest(self, node: fx.Node) -> tuple[float, str]:
        """The largest magnitude among the result and the operands, and whose it is."""
        known = [(self.magnitudes.get(item.name, 0.0), item.name) for item in (node, *node.all_input_nodes)]
        return max(known, key=lambda pair: pair[0])


def _names_of_operator(node: fx.Node) -> tuple[str, ...]:
    """The name of an operator with and without its overload."""
    if not isinstance(node.target, OpOverload):
        return ()
    name = operator_name(node.target)
    return name, packet_name(name)


def is_reducible(node: fx.Node) -> bool:
    """Whether a node has to do with float32 tensors."""
    if node.op != "call_function":
        return False
    values = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    return any(tensor.dtype == torch.float32 for tensor in tensors_in(values))


def reduced_type(settings: CompilationSettings) -> torch.dtype | None:
    """Returns the type that settings reduce computation to, None where they leave the model's types alone."""
    if settings.precision != torch.float32:
        return settings.precision
    if settings.enable_autocast and settings.autocast_dtype != torch.float32:
        return settings.autocast_dtype
    return None


Extent = Callable[[Any], int]
"""Turns an extent, symbolic or not, into the largest int that it may be."""


def reduction_depth(node: fx.Node, extent: Extent) -> int:
    """Returns how many elements are added up, or multiplied, for one element of the result; 1 where none are.

    Products count their common dimension, convolutions the taps of their kernel over all channels, attention the
    longer of its two sums, softmax and norms what they normalize over, and reductions what they reduce. Operators that
    only pick elements (`amax`, `max_pool2d`) add up nothing.

    Args:
        node: A node with `meta["val"]`.
        extent: How symbolic extents are evaluated.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        return 1
    rule = _RULES.get(target._schema.name.removeprefix("aten::"))
    if rule is None and not is_product(target):
        return 1
    operands = operands_at(node, extent)
    return max(int(depth_of(target, operands) if rule is None else rule(operands)), 1)


def _attention(operands: Operands) -> float:
    return float(max(operands["query"][-1], operands["key"][-2]))


def _einsum(operands: Operands) -> float:
    """Labels that the result lacks are summed over; an ellipsis is kept, so its axes count nothing."""
    extents, kept, _ = labels_of(operands["equation"], operands["tensors"])
    return float(math.prod(size for label, size in extents.items() if label not in kept))


def _over_dim(operands: Operands) -> float:
    """Reductions over the axes that `dim` names; all axes where it names none."""
    shape, axes = operands["self"], operands.get("dim", ())
    chosen = [axes] if isinstance(axes, int) else axes
    return float(math.prod(shape[axis] for axis in chosen) if chosen and shape else math.prod(shape))


def _adaptive_pool(operands: Operands) -> float:
    """Every element of the result averages at most one more than its share of each axis."""
    wanted = operands["output_size"]
    shares = zip(operands["self"][-len(wanted) :], wanted, strict=True)
    return float(math.prod(-(-size // target) for size, target in shares))


_RULES: Final[dict[str, Count]] = {
    "bilinear": lambda o: o["input1"][-1] * o["input2"][-1],
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(
        (
            *("sum", "nansum", "mean", "nanmean", "var", "std", "var_mean", "std_mean", "prod", "norm"),
            *("linalg_vector_norm", "logsumexp", "softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum"),
            *("cumprod", "logcumsumexp"),
        ),
        _over_dim,
    ),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm"), lambda o: float(math.prod(o["normalized_shape"]))),
    "group_norm": lambda o: float(math.prod(o["input"][1:]) // o["num_groups"]),
    "native_group_norm": lambda o: float(o["C"] * o["HxW"] // o["group"]),
    "instance_norm": lambda o: float(math.prod(o["input"][2:])),
    **{f"avg_pool{axes}d": window(axes) for axes in (1, 2, 3)},
    **dict.fromkeys((f"adaptive_avg_pool{axes}d" for axes in (1, 2, 3)), _adaptive_pool),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _adaptive_pool),
}
"""Elements that are added up for one of the result, beside those of products."""


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
                if schema_name(node.target) in _SOURCES or _is_position(node, operands, positions, constants):
                    positions.add(node)
                elif _keeps_kind(node) and constants.issuperset(operands):
                    constants.add(node)
        wanted: set[fx.Node] = set()
        kept = positions | constants
        marked = 0
        for node in reversed(gm.graph.nodes):
            if node.op != "call_function":
                continue
            if (
                node in wanted
                or (node in positions and schema_name(node.target) in _ANGLES | _STEPS)
                or _reads(node, positions)
            ):
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
    return torch.Tag.pointwise in node.target.tags or rearranges(node) or schema_name(node.target) in _KEEPERS


def _reads(node: fx.Node, positions: set[fx.Node]) -> bool:
    """Whether a node makes integers or booleans of positions alone."""
    value = tensor_value(node)
    if value is None or value.is_floating_point() or value.is_complex() or not _keeps_kind(node):
        return False
    operands = [item for item in node.all_input_nodes if tensor_value(item) is not None]
    floats = [item for item in operands if is_float32(item) and item.op != "get_attr"]
    return bool(floats) and positions.issuperset(floats)


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
            follows = reachable(_carried(state), _carried).keys() | moved
            found.update(_reached_back(values, follows))
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


def _reached_back(nodes: Iterable[fx.Node], within: set[fx.Node]) -> Iterable[fx.Node]:
    return reachable(within.intersection(nodes), lambda node: within.intersection(node.all_input_nodes))


def _carried(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if _carries(user)]


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
