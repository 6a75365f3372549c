"""Decomposes the operators that have no converter, each where it stands; and lowers what branches and loops run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from trt_core.control_flow import bodies_of
from trt_lowering.contract import GraphPass, run_passes
from trt_lowering.decomposition_table import DecompositionRules
from trt_lowering.expansion import Expander, inline_module
from trt_lowering.passes.flatten import InlineWrappedRegions, RemoveAssertions
from trt_lowering.passes.functionalize import Functionalize


class Decompose(GraphPass):
    """Replaces calls without a converter by what PyTorch's tables say they are made of, as far as the tables go.

    The rest of the graph is not touched or traced again. A call stays whole when it has a converter, when a setting
    keeps it in PyTorch, when it is random or depends on the values of tensors, when no decomposition exists, or when
    its decomposition would assume something about a dynamic shape.

    Requires: values on nodes.
    Ensures: values on nodes.

    Args:
        rules: Which operators stay whole.
    """

    name = "decompose"

    def __init__(self, rules: DecompositionRules) -> None:
        self.expander = Expander(rules)

    def call(self, gm: fx.GraphModule) -> int:
        """Inlines the expansion of every call that has one."""
        changes = 0
        for node in list(gm.graph.nodes):
            expansion = self.expander.expand(node)
            if expansion is not None:
                inline_module(gm, node, expansion.module)
                changes += 1
        return changes


class LowerBodies(GraphPass):
    """Runs passes over the graphs of `torch.cond`, `while_loop`, `scan` and `map`, those inside of them included.

    The graphs are copied before, for the program that a model was captured as has them too. Types stay: what runs in a
    branch or a loop computes as the model says.

    Requires: values on nodes.
    Ensures: values on nodes; each body went through the same passes.

    Args:
        passes: Makes the passes, which bring a flat functional graph to operators that convert.
        keep_checks: Whether checks of values stay, and with them the branch or the loop in PyTorch.
    """

    name = "lower_bodies"

    def __init__(self, passes: Callable[[], Sequence[GraphPass]], *, keep_checks: bool = False) -> None:
        self._passes = passes
        self._keep_checks = keep_checks

    def call(self, gm: fx.GraphModule) -> int:
        """Lowers the graphs of every branch and loop; returns how many there are."""
        holders = {holder: body for node in gm.graph.nodes for holder, body in bodies_of(node)}
        for holder, body in holders.items():
            twin = fx.GraphModule(body, _copy(body.graph), class_name=type(body).__name__)
            flattening = (
                InlineWrappedRegions(),
                RemoveAssertions(keep_values=self._keep_checks),
                Functionalize(write_back=False),
            )
            run_passes(twin, [*flattening, *self._passes()])
            name = f"body_{holder.name}"
            while hasattr(gm, name):
                name += "_"
            gm.add_module(name, twin)
            holder.target = name
        return len(holders)


def _copy(graph: fx.Graph) -> fx.Graph:
    twin = fx.Graph()
    twin.output(twin.graph_copy(graph, {}))
    return twin
