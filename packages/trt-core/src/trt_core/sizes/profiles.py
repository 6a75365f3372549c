"""One range of shapes of an input: the smallest, the one that engines are tuned for, and the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trt_core.errors import InputError

Shape = tuple[int, ...]

LARGEST: Final = 2**63 - 1
"""The largest extent that a tensor can have."""


class ShapeProfile(NamedTuple):
    """What an optimization profile says of one input.

    Attributes:
        min, opt, max: Shapes of one rank, in order in every dimension.
    """

    min: Shape
    opt: Shape
    max: Shape

    @classmethod
    def checked(cls, *shapes: Shape, where: str) -> ShapeProfile:
        """Makes one of (min, opt, max).

        Raises:
            InputError: The shapes differ in rank, or are out of order.
        """
        low_shape, best_shape, high_shape = shapes
        if len({len(shape) for shape in shapes}) != 1:
            raise InputError(
                "min_shape, opt_shape and max_shape differ in rank", where=where, why=", ".join(map(str, shapes))
            )
        for axis, (low, best, high) in enumerate(zip(*shapes, strict=True)):
            if not low <= best <= high:
                raise InputError(
                    f"dimension {axis} is out of order: min {low}, opt {best}, max {high}",
                    where=where,
                    hint="keep min <= opt <= max in every dimension",
                )
        return cls(low_shape, best_shape, high_shape)

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether a shape lies in the range."""
        return len(shape) == len(self.min) and all(
            low <= extent <= high for low, extent, high in zip(self.min, shape, self.max, strict=True)
        )

    def __str__(self) -> str:
        return f"({self.min}, {self.opt}, {self.max})"


def read_shape(label: str, shape: Sequence[int], where: str) -> Shape:
    """Reads a shape as users give it.

    Args:
        label: What messages call it.
        shape: Whole numbers.
        where: What it belongs to.

    Raises:
        InputError: It is no shape, or an extent is negative, or beyond what a tensor can have.
    """
    try:
        extents = tuple(_whole(extent) for extent in shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{label}={shape!r} is not a shape", where=where, why=str(error)) from error
    if any(extent < 0 for extent in extents):
        raise InputError(
            f"{label}={extents} has a negative extent",
            where=where,
            hint="give a range with min_shape, opt_shape and max_shape to make a dimension dynamic",
        )
    return extents


def _whole(extent: Any) -> int:
    number = int(extent)
    if number != extent:
        raise ValueError(f"{extent!r} is no whole number")
    if number > LARGEST:
        raise OverflowError(f"{number} is more than {LARGEST}, the largest extent of a tensor")
    return number
