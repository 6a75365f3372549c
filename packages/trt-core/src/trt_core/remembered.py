"""What is remembered of calls, by what they came with: no more than a few hundred of them, whoever calls."""

from __future__ import annotations

from typing import Final, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")

MOST: Final = 256
"""Entries where nothing else is said."""


class Remembered(dict[_K, _V]):
    """A dict in which the oldest entries make room for new ones. Any number of threads may use it at once.

    Args:
        most: How many entries it has at most.
    """

    __slots__ = ("most",)

    def __init__(self, most: int = MOST) -> None:
        self.most = most

    def __setitem__(self, key: _K, value: _V) -> None:
        if key not in self:
            while len(self) >= self.most:
                self.pop(next(iter(tuple(self))), None)  # in no walk that another thread could disturb
        super().__setitem__(key, value)
