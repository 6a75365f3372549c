"""Rewriting of operations into fewer ones: a pattern says which become what, and one place puts it there.

Operations are the nodes of a plan while an engine is built, and the calls of a program when it is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from trt_portable.enums import LayerType


class Operation(Protocol):
    """What reads tensors and makes others, which are known by their ids."""

    @property
    def kind(self) -> LayerType:
        """The kind of layer."""

    @property
    def inputs(self) -> tuple[int | None, ...]:
        """Tensors that are read; None where an optional one is not connected."""

    @property
    def outputs(self) -> tuple[int, ...]:
        """Tensors that are made."""


T = TypeVar("T", bound=Operation)


@dataclass(frozen=True)
class Fusion(Generic[T]):
    """Operations in place of others.

    Attributes:
        fresh: In order; all that somebody else reads of what the others made is made by these.
        parts: The operations in whose place they stand.
        place: The one of them where they stand.
    """

    fresh: Sequence[T]
    parts: Sequence[T]
    place: T


class Graph(Generic[T]):
    """Operations in executable order, and who makes and reads their tensors.

    Args:
        operations: In executable order.
        visible: Ids of tensors that something besides the operations reads.
    """

    def __init__(self, operations: Iterable[T], visible: Collection[int]) -> None:
        self.visible = visible
        self._assign(operations)

    def _assign(self, operations: Iterable[T]) -> None:
        self._groups: list[list[T]] = [[operation] for operation in operations]
        self._places: dict[int, int] = {}
        self._makers: dict[int | None, T] = {}
        self._readers: dict[int | None, list[T]] = defaultdict(list)
        for place, group in enumerate(self._groups):
            self._enter(group, place)

    def _enter(self, fresh: Sequence[T], place: int) -> None:
        for operation in fresh:
            self._places[id(operation)] = place
            for tensor in operation.inputs:
                self._readers[tensor].append(operation)
            for made in operation.outputs:
                self._makers[made] = operation

    @property
    def operations(self) -> list[T]:
        """The operations as they are now."""
        return [operation for group in self._groups for operation in group]

    def holds(self, operation: T) -> bool:
        """Whether an operation is still there."""
        return id(operation) in self._places

    def maker(self, tensor: int | None) -> T | None:
        """The operation that makes a tensor; None for what comes from elsewhere."""
        return self._makers.get(tensor)

    def readers(self, tensor: int) -> list[T]:
        """The operations that read a tensor, each once, in order; none where others see it too."""
        return [] if tensor in self.visible else self.all_readers(tensor)

    def all_readers(self, tensor: int | None) -> list[T]:
        """The operations that read a tensor, each once, in order, whoever else sees it."""
        found = {id(operation): operation for operation in self.uses(tensor)}
        return sorted(found.values(), key=self._order)

    def _order(self, operation: T) -> tuple[int, int]:
        place = self._places[id(operation)]
        return place, next(at for at, other in enumerate(self._groups[place]) if other is operation)

    def uses(self, tensor: int | None) -> Sequence[T]:
        """The operations that read a tensor, once for each time that they do."""
        return self._readers.get(tensor, ())

    def is_private(self, tensor: int | None) -> bool:
        """Whether a tensor is read once, by an operation."""
        return tensor is not None and tensor not in self.visible and len(self.uses(tensor)) == 1

    def private_maker(self, tensor: int | None) -> T | None:
        """The operation that makes a tensor which is read once; None for other tensors."""
        return self.maker(tensor) if self.is_private(tensor) else None

    def replace(self, fusion: Fusion[T]) -> None:
        """Puts operations in place of others."""
        place = self._places[id(fusion.place)]
        group = self._groups[place]
        at = next(at for at, operation in enumerate(group) if operation is fusion.place)
        self._groups[place] = [*group[:at], *fusion.fresh, *group[at:]]
        for part in fusion.parts:
            where = self._places.pop(id(part))
            self._groups[where] = [operation for operation in self._groups[where] if operation is not part]
            for tensor in dict.fromkeys(part.inputs):
                self._readers[tensor] = [operation for operation in self._readers[tensor] if operation is not part]
            for made in part.outputs:
                del self._makers[made]
        self._enter(fusion.fresh, place)


G = TypeVar("G", bound=Graph[Any])


class Pattern(ABC, Generic[T, G]):
    """A rule that makes fewer operations of several, or others of one.

    Attributes:
        kinds: Of the operations with which a match begins.
    """

    kinds: frozenset[LayerType]

    @abstractmethod
    def match(self, operation: T, graph: G) -> Fusion[T] | None:
        """What becomes of an operation, and of those around it; None where the pattern does not apply."""


def apply(pattern: Pattern[T, G], graph: G) -> int:
    """Applies a pattern once to every operation in order, and returns how often it did."""
    changes = 0
    for operation in graph.operations:
        if operation.kind in pattern.kinds and graph.holds(operation):
            found = pattern.match(operation, graph)
            if found is not None:
                graph.replace(found)
                changes += 1
    return changes
