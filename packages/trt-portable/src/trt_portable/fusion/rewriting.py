"""Rewriting of layers into fewer calls: a pattern says which calls become one, and one place puts it there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trt_portable.enums import LayerType
from trt_portable.execution.program import LayerCall

Shape = tuple[int, ...]
Shapes = Mapping[int | None, Shape]
"""Shapes of tensors by id."""


@dataclass(frozen=True)
class Fusion:
    """One call in place of several.

    Attributes:
        call: Computes what the last of them made; all other tensors that they made are gone.
        parts: The calls in whose place it stands.
        place: The one of them where it stands.
    """

    call: LayerCall
    parts: Sequence[LayerCall]
    place: LayerCall


class CallGraph:
    """Calls in executable order, and who makes and reads their tensors.

    Args:
        calls: In executable order.
        visible: Ids of tensors that something besides the calls reads.
        outside: Shapes of constants that come from elsewhere.

    Attributes:
        constants: Shapes of constant tensors.
    """

    def __init__(self, calls: Sequence[LayerCall], visible: Collection[int], outside: Shapes | None = None) -> None:
        self._calls: list[LayerCall | None] = list(calls)
        self._visible = visible
        self._places: dict[int, int] = {}
        self._makers: dict[int | None, LayerCall] = {}
        self._readers: dict[int | None, list[LayerCall]] = defaultdict(list)
        self.constants: Shapes = {**(outside or {}), **constant_shapes(calls)}
        for place, call in enumerate(calls):
            self._enter(call, place)

    def _enter(self, call: LayerCall, place: int) -> None:
        self._places[id(call)] = place
        for tensor in call.inputs:
            self._readers[tensor].append(call)
        for tensor in call.outputs:
            self._makers[tensor] = call

    @property
    def calls(self) -> list[LayerCall]:
        """The calls as they are now."""
        return [call for call in self._calls if call is not None]

    def holds(self, call: LayerCall) -> bool:
        """Whether a call is still there."""
        return id(call) in self._places

    def maker(self, tensor: int | None) -> LayerCall | None:
        """The call that makes a tensor; None for what comes from elsewhere."""
        return self._makers.get(tensor)

    def readers(self, tensor: int) -> list[LayerCall]:
        """The calls that read a tensor, each once, in order; none where others see it too."""
        if tensor in self._visible:
            return []
        found = list({id(call): call for call in self._readers[tensor]}.values())
        return sorted(found, key=lambda call: self._places[id(call)])

    def all_readers(self, tensor: int | None) -> Sequence[LayerCall]:
        """The calls that read a tensor, whoever else sees it."""
        return self._readers[tensor]

    def private_maker(self, tensor: int | None) -> LayerCall | None:
        """The call that makes a tensor which is read once; None for other tensors."""
        is_private = tensor is not None and tensor not in self._visible and len(self._readers[tensor]) == 1
        return self.maker(tensor) if is_private else None

    def replace(self, fusion: Fusion) -> None:
        """Puts one call in place of several."""
        place = self._places[id(fusion.place)]
        for part in fusion.parts:
            self._calls[self._places.pop(id(part))] = None
            for tensor in dict.fromkeys(part.inputs):
                self._readers[tensor] = [call for call in self._readers[tensor] if call is not part]
            for tensor in part.outputs:
                del self._makers[tensor]
        self._calls[place] = fusion.call
        self._enter(fusion.call, place)


class Pattern(ABC):
    """A rule that makes one call of several, or lets one be computed in another way.

    Attributes:
        kinds: Of the layers with which a match begins.
    """

    kinds: ClassVar[frozenset[LayerType]]

    @abstractmethod
    def match(self, call: LayerCall, graph: CallGraph) -> Fusion | None:
        """What becomes of a call, and of calls around it; None where the pattern does not apply."""


def rewrite(
    calls: Sequence[LayerCall], visible: Collection[int], patterns: Sequence[Pattern], outside: Shapes | None = None
) -> list[LayerCall]:
    """Applies patterns one after the other, each once to every call in order.

    Args:
        calls: In executable order.
        visible: Ids of tensors that something besides the calls reads.
        patterns: What to apply.
        outside: Shapes of constants that come from elsewhere.
    """
    kinds = {call.layer._KIND for call in calls}
    wanted = [pattern for pattern in patterns if not kinds.isdisjoint(pattern.kinds)]
    if not wanted:
        return list(calls)
    graph = CallGraph(calls, visible, outside)
    for pattern in wanted:
        for call in graph.calls:
            if call.layer._KIND in pattern.kinds and graph.holds(call):
                found = pattern.match(call, graph)
                if found is not None:
                    graph.replace(found)
    return graph.calls


def constant_shapes(calls: Sequence[LayerCall]) -> dict[int | None, Shape]:
    """Shapes of the tensors that constant layers make."""
    return {
        call.outputs[0]: tuple(call.layer.shape)  # type: ignore[attr-defined]
        for call in calls
        if call.layer._KIND is LayerType.CONSTANT
    }
