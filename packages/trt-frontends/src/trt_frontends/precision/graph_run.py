"""Runs a lowered graph in PyTorch and leaves everything as it was: inputs, buffers, statistics, random state.

One question is asked many times: how large is the error when these nodes compute in float32 and the rest is reduced?
Answers come from the graph with the very casts that engines would get. No engine is built.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from trt_core import CompilationSettings, logger
from trt_core.attributes import has_hidden_state
from trt_core.internals import pytree
from trt_core.precision import PrecisionRule, kept_in_float32
from trt_core.temporary import seeded
from trt_frontends.comparison.output_error import measure_error, tensors_of
from trt_lowering import DecomposedGraph, PrecisionRules

aten = torch.ops.aten


class GraphRun(fx.Interpreter):
    """Runs a functional graph on flat inputs; what it would write back goes nowhere.

    Args:
        gm: The graph; its code need not be up to date.
        see: Called with every node and its value.
    """

    def __init__(self, gm: fx.GraphModule, see: Callable[[fx.Node, Any], None] = lambda node, value: None) -> None:
        super().__init__(gm)
        self._see = see

    def results(self, flat: Sequence[Any]) -> list[torch.Tensor]:
        """Returns the flat outputs, see `tensors_of`; random operators draw the same numbers each time."""
        with torch.no_grad(), seeded(0, (leaf.device for leaf in flat if isinstance(leaf, torch.Tensor))):
            results = self.run(*flat, enable_io_processing=False)
        return tensors_of(results)

    def run_node(self, n: fx.Node) -> Any:
        """Runs one node and shows its value."""
        value = super().run_node(n)
        self._see(n, value)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operator; a write back gives what would be written."""
        if target is aten.copy_.default:
            state, value = args[:2]
            return value.to(state.dtype).expand_as(state)
        return super().call_function(target, args, kwargs)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Gives copies to operators that update running statistics in place."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if not has_hidden_state(n):
            return args, kwargs
        copied: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
            torch.Tensor, torch.clone, (tuple(args), dict(kwargs))
        )
        return copied


class PrecisionTrials:
    """Runs a decomposed graph in reduced types, and compares with what it should return.

    Args:
        decomposed: The graph; not changed.
        settings: Settings that reduce precision, and what they exclude.
        rules: What the settings keep in float32, measured.
        inputs: Flat inputs.
        expected: Results for them: tensors, in order.

    Attributes:
        runs: How many times the graph was run with other types, over all inputs each time.
    """

    def __init__(
        self,
        decomposed: DecomposedGraph,
        settings: CompilationSettings,
        rules: PrecisionRules,
        inputs: Sequence[Sequence[Any]],
        expected: Sequence[Sequence[torch.Tensor]],
    ) -> None:
        self.runs = 0
        self._twin = decomposed.with_settings(settings)
        self._rules = rules
        self._inputs = inputs
        self._expected = expected
        self._known: dict[frozenset[str], float] = {}
        self.nodes = self._reducible()

    def error(self, kept: Iterable[str]) -> float:
        """Returns the worst scaled error of any output on any input, with the nodes of these names in float32."""
        names = frozenset(kept)
        if names not in self._known:
            self.runs += 1
            gm = self._settled(names)
            self._known[names] = self._measured(gm)
        return self._known[names]

    def _measured(self, gm: fx.GraphModule) -> float:
        try:
            return worst_error((GraphRun(gm).results(flat) for flat in self._inputs), self._expected)
        except (RuntimeError, NotImplementedError) as error:  # such as an operator without a kernel for the type
            logger.debug("a choice of types cannot be run in PyTorch, so it is none: %s", error)
            return math.inf

    def _settled(self, kept: frozenset[str]) -> fx.GraphModule:
        rules = dataclasses.replace(self._rules, sensitive=dict.fromkeys(kept, "tried"))
        return self._twin.copy().settle_types(rules)

    def _reducible(self) -> tuple[fx.Node, ...]:
        """The nodes that are reduced, unless they are kept: those of the given graph, in its order."""
        everything = frozenset(node.name for node in self._twin.graph.graph.nodes)
        kept = {
            node.name
            for node in self._settled(everything).graph.nodes
            if (found := kept_in_float32(node)) is not None and found.rule is PrecisionRule.SENSITIVITY
        }
        return tuple(node for node in self._twin.graph.graph.nodes if node.name in kept)


def worst_error(found: Iterable[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]]) -> float:
    """Returns the worst scaled error of any output on any input."""
    return max(
        (
            measure_error(left, right).scaled
            for results, wanted in zip(found, expected, strict=True)
            for left, right in zip(results, wanted, strict=True)
        ),
        default=0.0,
    )
