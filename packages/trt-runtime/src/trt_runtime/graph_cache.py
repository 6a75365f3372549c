"""Recorded calls by what they were recorded for: few, the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch


class RecordedCall(Protocol):
    """One call that can be repeated with other values."""

    def replay(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Repeats the call with inputs of the same shapes and types, and returns outputs of their own."""

    def release(self) -> None:
        """Gives back what it holds."""


Record = Callable[[Sequence[Any]], RecordedCall]


class GraphCache:
    """Repeats calls, and records those that it does not know.

    Args:
        record: Records a call.
        capacity: Most recordings that are kept.
    """

    def __init__(self, record: Record, capacity: int) -> None:
        self._record = record
        self._capacity = capacity
        self._recorded: OrderedDict[Hashable, RecordedCall] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs one call.

        Args:
            leaves: Tensors and plain values. Calls whose tensors agree in shape, type and device, and whose plain
                values are equal, share a recording.
        """
        key = call_key(leaves)
        recorded = self._recorded.get(key)
        if recorded is None:
            while len(self._recorded) >= self._capacity:
                self._recorded.popitem(last=False)[1].release()
            recorded = self._recorded[key] = self._record(leaves)
        else:
            self._recorded.move_to_end(key)
        return recorded.replay(tensors_in(leaves))

    def clear(self) -> None:
        """Gives back all recordings."""
        while self._recorded:
            self._recorded.popitem()[1].release()


def call_key(leaves: Sequence[Any]) -> Hashable:
    """What calls with one recording have in common."""
    return tuple(
        (value.shape, value.dtype, value.device) if isinstance(value, torch.Tensor) else (type(value), value)
        for value in leaves
    )


def tensors_in(leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the inputs of a call."""
    return [value for value in leaves if isinstance(value, torch.Tensor)]
