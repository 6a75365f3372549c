"""Lowers what branches and loops run, so that it converts with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from trt_core.control_flow import bodies_of
from trt_lowering.contract import GraphPass, run_passes
from trt_lowering.passes.functionalize import Functionalize
from trt_lowering.passes.inline_wrapped_regions import InlineWrappedRegions
from trt_lowering.passes.remove_assertions import RemoveAssertions


class LowerBodies(GraphPass):
    """Runs passes over the graphs of `torch.cond`, `while_loop`, `scan` and `map`, those inside of them included.

    The graphs are copied before, for the program that a model was captured as has them too. Types stay: what runs in a
    branch or a loop computes as the model says.

    Requires: values on nodes.
    Ensures: values on nodes; each body went through the same passes.

    Args:
        passes: Makes the passes, which bring a flat functional graph to operators that convert.
    """

    name = "lower_bodies"

    def __init__(self, passes: Callable[[], Sequence[GraphPass]]) -> None:
        self._passes = passes

    def call(self, gm: fx.GraphModule) -> int:
        """Lowers the graphs of every branch and loop; returns how many there are."""
        holders = {holder: body for node in gm.graph.nodes for holder, body in bodies_of(node)}
        for holder, body in holders.items():
            twin = fx.GraphModule(body, _copy(body.graph), class_name=type(body).__name__)
            flattening = (InlineWrappedRegions(), RemoveAssertions(), Functionalize(write_back=False))
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
