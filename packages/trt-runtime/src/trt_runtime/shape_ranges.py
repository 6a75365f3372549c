"""The extents that an engine takes: (min, opt, max) of every dimension of every input."""

from __future__ import annotations

from collections.abc import Sequence

from trt_core.errors import PlanError
from trt_runtime.bindings import Binding

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


def ranges_to_json(ranges: InputRanges) -> list[list[list[int]]]:
    """Returns ranges as JSON values."""
    return [[list(bounds) for bounds in shape] for shape in ranges]
