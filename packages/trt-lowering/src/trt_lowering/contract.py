"""The contract of a lowering pass: what it requires, what it does, what it ensures."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from torch import fx

from trt_core import LoweringError
from trt_core.provenance import node_location, source_line


@dataclass(frozen=True)
class PassResult:
    """What a pass did.

    Attributes:
        name: Name of the pass.
        changes: How many nodes it added, replaced or removed, counted as the pass sees fit; 0 when it did nothing.
    """

    name: str
    changes: int

    @property
    def changed(self) -> bool:
        """Whether the graph is another one than before."""
        return self.changes > 0


Observer = Callable[[str, fx.GraphModule], None]
"""Called after a pass with its name and the graph; it may compile and run the graph, and must not change it."""


class GraphPass(abc.ABC):
    """A rewrite of a graph module in place, with a checked contract.

    A pass keeps the numbers that the graph computes, its inputs and its outputs, unless its docstring says
    otherwise. It does not recompile the module: `run_passes` does that once.
    """

    name: str

    def requires(self, gm: fx.GraphModule) -> None:
        """Checks what the pass needs of its input; `fail` says what is missing."""
        self.require_values(gm)

    @abc.abstractmethod
    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites the graph, and returns the number of changes."""

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks what the pass promises of its output; runs only when the graph changed."""
        self.require_values(gm)

    def __call__(self, gm: fx.GraphModule) -> PassResult:
        """Checks, rewrites, checks.

        Raises:
            LoweringError: The graph does not fulfil what the pass requires, or the pass broke its promise. The error
                names the pass, the node and the condition.
        """
        self.requires(gm)
        result = PassResult(self.name, self.call(gm))
        if result.changed:
            self.ensures(gm)
        return result

    def require_values(self, gm: fx.GraphModule) -> None:
        """Checks that every node that carries a value says which (`meta["val"]`)."""
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "call_function") and "val" not in node.meta:
                self.fail(node, 'the node has no meta["val"]')

    def fail(self, node: fx.Node, condition: str) -> NoReturn:
        """Raises the error for a condition that a node breaks."""
        where = node_location(node)
        line = source_line(node)
        raise LoweringError(
            f"lowering pass {self.name!r}: {condition}",
            where=f"{where} ({line})" if line else where,
            hint="this is a defect of lowering unless the graph was edited by hand: report it with the model",
        )


def run_passes(
    gm: fx.GraphModule, passes: Iterable[GraphPass], *, recompile: bool = True, observe: Observer | None = None
) -> list[PassResult]:
    """Runs passes in order.

    Args:
        gm: The module, rewritten in place.
        passes: The passes.
        recompile: Whether to compile the module's code once when any pass changed the graph. Compiling costs more
            than most passes, so a caller that goes on rewriting leaves it for later.
        observe: Called after every pass.

    Raises:
        LoweringError: A pass broke its contract.
    """
    results = []
    for step in passes:
        results.append(step(gm))
        if observe is not None:
            observe(step.name, gm)
    if recompile and any(result.changed for result in results):
        gm.recompile()
    return results
