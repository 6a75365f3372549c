"""Rewriting of the calls of a program that is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

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
        outside: Shapes of constants that come from elsewhere.

    Attributes:
        constants: Shapes of constant tensors.
    """

    def __init__(self, calls: Sequence[LayerCall], visible: Collection[int], outside: Shapes | None = None) -> None:
        super().__init__(calls, visible)
        self.constants: Shapes = {**(outside or {}), **constant_shapes(calls)}


CallFusion: TypeAlias = Fusion[LayerCall]
CallPattern: TypeAlias = Pattern[LayerCall, CallGraph]


def rewrite(
    calls: Sequence[LayerCall], visible: Collection[int], patterns: Sequence[CallPattern], outside: Shapes | None = None
) -> list[LayerCall]:
    """Applies patterns one after the other.

    Args:
        calls: In executable order.
        visible: Ids of tensors that something besides the calls reads.
        patterns: What to apply.
        outside: Shapes of constants that come from elsewhere.
    """
    kinds = {call.kind for call in calls}
    wanted = [pattern for pattern in patterns if not kinds.isdisjoint(pattern.kinds)]
    if not wanted:
        return list(calls)
    graph = CallGraph(calls, visible, outside)
    for pattern in wanted:
        apply(pattern, graph)
    return graph.operations


def constant_shapes(calls: Sequence[LayerCall]) -> dict[int | None, Shape]:
    """Shapes of the tensors that constant layers make."""
    return {
        call.outputs[0]: tuple(call.layer.shape)  # type: ignore[attr-defined]
        for call in calls
        if call.kind is LayerType.CONSTANT
    }
