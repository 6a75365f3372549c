"""Optimization profiles: the range of input shapes, and of shape-input values, an engine is built for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trt_core.files import typed
from trt_portable.dims import Dims
from trt_portable.plan import tables
from trt_portable.pybind import Sealed, to_integers, to_number, to_text

MAX_SHAPE_INPUT_VALUES: Final = 64

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Range:
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

    def to_json(self) -> list[list[int]]:
        """The three lists."""
        return [list(self.min), list(self.opt), list(self.max)]

    @staticmethod
    def from_json(lists: Sequence[Sequence[int]]) -> Range:
        """Inverse of `to_json`.

        Raises:
            TypeError, ValueError: They are not three lists of integers of one length.
        """
        if len(typed.items(lists, "a range of a profile")) != 3:
            raise ValueError("a range of a profile is not min, opt and max")
        low, opt, high = (_integers(values) for values in lists)
        if not len(low) == len(opt) == len(high):
            raise ValueError(f"min, opt and max of a profile differ in length: {lists}")
        return Range(low, opt, high)


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
        return [] if values is None else values.to_json()

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

    def to_json(self) -> dict[str, Any]:
        """JSON form, as a plan stores it."""
        return {
            "shapes": {name: shapes.to_json() for name, shapes in self.shapes.items()},
            "values": {name: values.to_json() for name, values in self.values.items()},
            "extra_memory_target": self.extra_memory_target,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Profile:
        """Inverse of `to_json`.

        Raises:
            TypeError, ValueError: A field is missing, unknown, or makes no sense.
        """
        found = typed.fields(data, "a profile", tables.PROFILE)
        shapes = typed.mapping(found["shapes"], "the shapes of a profile")
        values = typed.mapping(found["values"], "the values of a profile")
        return Profile(
            {name: Range.from_json(lists) for name, lists in shapes.items()},
            {name: Range.from_json(lists) for name, lists in values.items()},
            typed.number(found["extra_memory_target"], "the memory target of a profile"),
        )


def _integers(values: Any) -> Extents:
    return typed.integers(values, "a range of a profile", -(2**63))
