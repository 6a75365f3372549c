"""Types that TensorRT's bindings make of C++ containers and strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex, TypeVar

T = TypeVar("T")


class BoundList(list[T]):
    """A vector of C++ as a list, with the names that its bindings give to parameters."""

    def append(self, x: T) -> None:
        """Adds an item to the end."""
        super().append(x)

    def extend(self, L: Iterable[T]) -> None:
        """Adds items to the end."""
        super().extend(L)

    def insert(self, i: SupportsIndex, x: T) -> None:
        """Adds an item before a position."""
        super().insert(i, x)

    def pop(self, i: SupportsIndex = -1) -> T:
        """Removes an item, the last one by default, and returns it."""
        return super().pop(i)

    def remove(self, x: T) -> None:
        """Removes the first item that is equal.

        Raises:
            ValueError: There is none.
        """
        super().remove(x)

    def count(self, x: T) -> int:
        """How many items are equal."""
        return super().count(x)


class NodeIndices(BoundList[int]):
    """Numbers of nodes."""


class FallbackString(str):
    """Text as the bindings hand it to C++; plain text serves wherever it does."""
