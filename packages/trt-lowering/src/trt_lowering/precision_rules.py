"""Decides which nodes compute in float32 where the rest is reduced: the one place that does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.internals import OpOverload
from trt_core.operators import operator_name, packet_name
from trt_core.precision import KeptInFloat32, PrecisionRule
from trt_core.provenance import module_paths, node_location
from trt_core.sizes.ranges import ShapeRanges
from trt_lowering.reduction_depth import reduction_depth


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
    items = [item for value in values for item in (value if isinstance(value, (tuple, list)) else (value,))]
    return any(isinstance(item, torch.Tensor) and item.dtype == torch.float32 for item in items)


def reduced_type(settings: CompilationSettings) -> torch.dtype | None:
    """Returns the type that settings reduce computation to, None where they leave the model's types alone."""
    if settings.precision != torch.float32:
        return settings.precision
    if settings.enable_autocast and settings.autocast_dtype != torch.float32:
        return settings.autocast_dtype
    return None
