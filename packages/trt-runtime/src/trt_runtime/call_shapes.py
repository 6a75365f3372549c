"""What the shapes of a call's inputs mean for its outputs, remembered for the calls that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

_MOST_REMEMBERED: Final = 256
"""Combinations of input shapes that an engine remembers."""

Strided = tuple[tuple[int, ...], tuple[int, ...]]
"""Extents and strides of a dense tensor."""


class CallShapes:
    """The shapes of one kind of call. Immutable.

    Args:
        inputs: Shapes of the inputs, in the order of the header.
        outputs: Extents of the outputs, -1 where they are known only after a run.

    Attributes:
        inputs: As given.
        outputs: Extents and dense strides; None where an extent is known only after a run.
        open_outputs: Indices of those.
    """

    __slots__ = ("inputs", "open_outputs", "outputs")

    def __init__(self, inputs: Sequence[torch.Size], outputs: Sequence[tuple[int, ...]]) -> None:
        self.inputs = list(inputs)
        self.open_outputs = [index for index, shape in enumerate(outputs) if any(extent < 0 for extent in shape)]
        self.outputs: list[Strided | None] = [
            None if index in self.open_outputs else (shape, _dense_strides(shape))
            for index, shape in enumerate(outputs)
        ]


class KnownShapes:
    """The calls that an engine has accepted, by the shapes of their inputs; the oldest make room for new ones.

    May be used from several threads.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[torch.Size, ...], CallShapes] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, inputs: Sequence[torch.Size]) -> CallShapes | None:
        """Returns what is known about calls with these input shapes."""
        return self._known.get(tuple(inputs))

    def remember(self, shapes: CallShapes) -> None:
        """Adds one kind of call."""
        known = self._known
        while len(known) >= _MOST_REMEMBERED:
            known.pop(next(iter(tuple(known))), None)
        known[tuple(shapes.inputs)] = shapes


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return tuple(strides)
