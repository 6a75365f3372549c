"""Optimization profiles of an engine: the extents that it takes, and which profile a call runs with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from trt_core.errors import PlanError
from trt_core.remembered import Remembered
from trt_runtime.bindings import Binding


class ProfileChoice:
    """Chooses among the profiles of an engine.

    Of the profiles that take all shapes of a call, the one is used whose tuned sizes are nearest, in ratio; the first
    of those that are equally near. The choice follows from the shapes alone.

    Args:
        profiles: (min, opt, max) of every dimension of every input, for each profile.
    """

    def __init__(self, profiles: Sequence[InputRanges]) -> None:
        self._profiles = tuple(profiles)
        self._chosen: Remembered[tuple[torch.Size, ...], int] = Remembered()

    def known(self, shapes: tuple[torch.Size, ...]) -> int | None:
        """Returns what was chosen for these shapes before."""
        return self._chosen.get(shapes)

    def choose(self, shapes: tuple[torch.Size, ...]) -> int | None:
        """Returns the index of the profile for the shapes of a call; None where none takes them."""
        fitting = [index for index, ranges in enumerate(self._profiles) if _takes(ranges, shapes)]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda index: _distance(self._profiles[index], shapes))
        self._chosen[shapes] = chosen
        return chosen


def _takes(ranges: InputRanges, shapes: Sequence[Sequence[int]]) -> bool:
    return all(
        low <= extent <= high
        for shape, bounds in zip(shapes, ranges, strict=True)
        for extent, (low, _, high) in zip(shape, bounds, strict=True)
    )


def _distance(ranges: InputRanges, shapes: Sequence[Sequence[int]]) -> float:
    return sum(
        abs(math.log(max(extent, 1) / max(best, 1)))
        for shape, bounds in zip(shapes, ranges, strict=True)
        for extent, (_, best, _) in zip(shape, bounds, strict=True)
    )


Range = tuple[int, int, int]
"""(min, opt, max) of one dimension."""

InputRanges = tuple[tuple[Range, ...], ...]
"""Ranges of every dimension of every input."""


def span_of(profiles: Sequence[InputRanges]) -> InputRanges:
    """Returns the ranges that profiles span together; opt is that of the first."""
    return tuple(
        tuple(
            (min(low for low, _, _ in bounds), bounds[0][1], max(high for _, _, high in bounds))
            for bounds in zip(*shapes, strict=True)
        )
        for shapes in zip(*profiles, strict=True)
    )


def static_ranges(inputs: Sequence[Binding]) -> InputRanges:
    """Returns the one range that each static extent has.

    Raises:
        PlanError: An input is dynamic.
    """
    ranges = []
    for binding in inputs:
        shape: list[Range] = []
        for extent in binding.shape:
            if not isinstance(extent, int):
                raise PlanError(f"input {binding.name!r} is dynamic", hint="give its ranges")
            shape.append((extent, extent, extent))
        ranges.append(tuple(shape))
    return tuple(ranges)


def as_ranges(ranges: Sequence[Sequence[Sequence[int]]]) -> InputRanges:
    """Returns ranges as tuples.

    Raises:
        TypeError, ValueError: A range is not three numbers.
    """
    return tuple(tuple((low, best, high) for low, best, high in shape) for shape in ranges)
