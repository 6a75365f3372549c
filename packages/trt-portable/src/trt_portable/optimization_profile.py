"""Optimization profiles: the range of input shapes, and of shape-input values, an engine is built for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from trt_core.files import records, typed
from trt_core.files.records import Form, Row
from trt_portable.dims import Dims
from trt_portable.pybind import Sealed, to_integers, to_number, to_text

MAX_SHAPE_INPUT_VALUES: Final = 64

Extents = Annotated[tuple[int, ...], Form(lambda value, place: typed.integers(value, place, -(2**63)), list)]


@dataclass(frozen=True)
class Range(Row):
    """Least, typical and greatest value of each element; the same number of elements in all three."""

    min: Extents
    opt: Extents
    max: Extents

    def violation(self, values: Sequence[int]) -> str | None:
        """Says how values leave the range, or None when they lie inside."""
        if len(values) != len(self.min):
            return f"{len(values)} elements where the profile has {len(self.min)}"
        for index, (low, value, high) in enumerate(zip(self.min, values, self.max, strict=True)):
            if not low <= value <= high:
                return f"element {index} is {value}, outside the profile's range [{low}, {high}]"
        return None

    @property
    def lengths(self) -> set[int]:
        """How many elements each of the three has, which is one number."""
        return {len(each) for each in (self.min, self.opt, self.max)}


def _range(name: str, low: Any, opt: Any, high: Any, what: str) -> Range:
    lists = [tuple(to_integers(values)) for values in (low, opt, high)]
    if not len(lists[0]) == len(lists[1]) == len(lists[2]):
        lengths = ", ".join(str(len(values)) for values in lists)
        raise RuntimeError(f"{name}: min, opt and max {what} differ in length: {lengths}")
    for index, (a, b, c) in enumerate(zip(*lists, strict=True)):
        if not a <= b <= c:
            raise RuntimeError(f"{name}: {what} break min <= opt <= max at index {index}: {a}, {b}, {c}")
    return Range(*lists)


class IOptimizationProfile(Sealed):
    """Shape ranges of inputs; made by `Builder.create_optimization_profile`."""

    profile_stream: int = 0
    """CUDA stream for timing; kept."""

    def __init__(self) -> None:
        self._shapes: dict[str, Range] = {}
        self._values: dict[str, Range] = {}
        self._extra_memory_target = 1.0

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        """Sets the shape range of an input.

        Raises:
            RuntimeError: Ranks differ, an extent is negative, or min <= opt <= max is broken.
            ValueError: More than 8 extents.
        """
        shapes = _range(to_text(input), Dims(min), Dims(opt), Dims(max), "extents")
        if any(extent < 0 for extent in shapes.min):
            raise RuntimeError(f"{input}: extents of a profile are not negative: {shapes.min}")
        self._shapes[input] = shapes

    def get_shape(self, input: str) -> list[Dims]:
        """[min, opt, max], or an empty list when nothing was set."""
        shapes = self._shapes.get(to_text(input))
        return [] if shapes is None else [Dims(shapes.min), Dims(shapes.opt), Dims(shapes.max)]

    def set_shape_input(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        """Sets the range of the values of a shape tensor, flattened in row-major order.

        Raises:
            RuntimeError: Lengths differ, more than 64 values, or min <= opt <= max is broken.
        """
        values = _range(to_text(input), min, opt, max, "values")
        if len(values.min) > MAX_SHAPE_INPUT_VALUES:
            raise RuntimeError(
                f"{input}: a shape tensor has at most {MAX_SHAPE_INPUT_VALUES} values, not {len(values.min)}"
            )
        self._values[input] = values

    def get_shape_input(self, input: str) -> list[list[int]]:
        """[min, opt, max], or an empty list when nothing was set."""
        values = self._values.get(to_text(input))
        return [] if values is None else records.write(values)

    @property
    def extra_memory_target(self) -> float:
        """Hint in [0, 1] for profiles after the first; kept and reported."""
        return self._extra_memory_target

    @extra_memory_target.setter
    def extra_memory_target(self, target: float) -> None:
        share = to_number(target)
        if math.isfinite(share) and 0.0 <= share <= 1.0:
            self._extra_memory_target = share

    def __bool__(self) -> bool:
        """Whether the profile can be added to a configuration; calls are checked when made."""
        return True


@dataclass(frozen=True)
class Profile:
    """A profile as an engine keeps it: complete, and checked against the network's inputs."""

    shapes: Mapping[str, Range]
    values: Mapping[str, Range]
    extra_memory_target: float = 1.0
