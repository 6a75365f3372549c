"""Rewriting of the calls of a program that is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from trt_core.cached_property import cached_property
from trt_portable.enums import LayerType
from trt_portable.execution.program import LayerCall
from trt_portable.plan.rewriting import Fusion, Graph, Pattern, apply

Shape = tuple[int, ...]
Shapes = Mapping[int | None, Shape]
"""Shapes of tensors by id."""


class CallGraph(Graph[LayerCall]):
    """Calls in executable order, and who makes and reads their tensors.

    Args:
        calls: In executable order.
        visible: Ids of tensors that something besides the calls reads.
    """

    @cached_property
    def constants(self) -> Shapes:
        """Shapes of constant tensors."""
        return {
            call.outputs[0]: tuple(call.layer.shape)  # type: ignore[attr-defined]
            for call in self.operations
            if call.kind is LayerType.CONSTANT
        }


CallFusion: TypeAlias = Fusion[LayerCall]
CallPattern: TypeAlias = Pattern[LayerCall, CallGraph]


def rewrite(calls: Sequence[LayerCall], visible: Collection[int], patterns: Sequence[CallPattern]) -> list[LayerCall]:
    """Applies patterns one after the other.

    Args:
        calls: In executable order.
        visible: Ids of tensors that something besides the calls reads.
        patterns: What to apply.
    """
    kinds = {call.kind for call in calls}
    wanted = [pattern for pattern in patterns if not kinds.isdisjoint(pattern.kinds)]
    if not wanted:
        return list(calls)
    graph = CallGraph(calls, visible)
    for pattern in wanted:
        apply(pattern, graph)
    return graph.operations
