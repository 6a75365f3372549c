"""Ranges of shapes: the smallest, what engines are tuned for, the largest; and names that dimensions share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trt_core.errors import InputError
from trt_core.sizes.functions import LARGEST

Shape = tuple[int, ...]


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
        hint = "give whole numbers, such as (1, 3, 224, 224)"
        if isinstance(shape, Mapping):
            hint = "write Input(min_shape=..., opt_shape=..., max_shape=...)"
        raise InputError(f"{label}={shape!r:.120} is not a shape", where=where, why=str(error), hint=hint) from error
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


@dataclass(frozen=True)
class VaryingSize:
    """A size of a call.

    Attributes:
        what: How messages call it: `dimension 0 of input x`.
        size: What it is in the call.
        ranges: (min, max) in each profile.
    """

    what: str
    size: int
    ranges: tuple[tuple[int, int], ...]

    def fits(self, profile: int) -> bool:
        """Whether a profile takes it."""
        low, high = self.ranges[profile]
        return low <= self.size <= high


def require_profile(sizes: Sequence[VaryingSize]) -> None:
    """Refuses sizes that each fit a profile, but none together.

    Args:
        sizes: At least one; all have as many ranges as there are profiles.

    Raises:
        InputError: The message says what each profile takes.
    """
    count = len(sizes[0].ranges)
    if any(all(item.fits(index) for item in sizes) for index in range(count)):
        return
    different = [item for item in sizes if len(set(item.ranges)) > 1]
    given = ", ".join(f"{item.what} is {item.size}" for item in different)
    profiles = (
        f"profile {index} takes {', '.join(f'{_show(item.ranges[index])} for {item.what}' for item in different)}"
        for index in range(count)
    )
    raise InputError(
        f"no optimization profile takes these sizes together: {given}",
        why="; ".join(profiles),
        hint="give sizes that one profile takes, or compile the model with a profile for them",
    )


def _show(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"


_FORM: Final = re.compile(
    r"(?:([0-9]{1,18})\s*\*\s*)?([A-Za-z_]\w*)(?:\s*\*\s*([0-9]{1,18}))?(?:\s*([+-])\s*([0-9]{1,18}))?"
)


@dataclass(frozen=True, order=True)
class NamedDimension:
    """`factor * name + offset`.

    Attributes:
        name: What dimensions share.
        factor: At least 1.
        offset: Any whole number.
    """

    name: str
    factor: int = 1
    offset: int = 0

    @classmethod
    def parse(cls, text: Any) -> NamedDimension:
        """Reads `batch`, `8*length`, `length + 1`, or `2*length - 1`.

        Raises:
            InputError: The text has another form.
        """
        found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        before, name, after, sign, offset = found.groups() if found else (None,) * 5
        if name is None or (before and after) or int(before or after or 1) < 1:
            raise InputError(
                f"{text!r} does not name a dimension", hint='write "batch", "8*length", "length + 1" or "2*length - 1"'
            )
        return cls(name, int(before or after or 1), int(f"{sign or '+'}{offset or 0}"))

    def solve(self, extent: int) -> int | None:
        """Returns what the name stands for where this dimension is `extent`; None where there is no such number."""
        value, rest = divmod(extent - self.offset, self.factor)
        return value if rest == 0 and value >= 1 else None

    def __str__(self) -> str:
        product = self.name if self.factor == 1 else f"{self.factor}*{self.name}"
        return f"{product} {'+' if self.offset > 0 else '-'} {abs(self.offset)}" if self.offset else product
