"""Removal of layers that nothing needs."""

from __future__ import annotations

from trt_portable.builder.passes.plan_graph import PlanGraph, PlanPass


class EliminateDeadLayers(PlanPass):
    """Removes layers that contribute to no wanted tensor; layers without outputs stay. Exact."""

    name = "eliminate_dead_layers"

    def call(self, graph: PlanGraph) -> int:
        """Walks the layers from the last to the first."""
        needed = set(graph.wanted)
        live = []
        for entry in reversed(graph.layers):
            if not entry["outputs"] or not needed.isdisjoint(entry["outputs"]):
                live.append(entry)
                needed.update(tensor for tensor in entry["inputs"] if tensor is not None)
        removed = len(graph.layers) - len(live)
        graph.layers[:] = live[::-1]
        return removed
