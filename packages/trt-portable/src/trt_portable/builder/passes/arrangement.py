"""How movements of elements lie: a tensor as an arrangement of the factors of another tensor's extents.

Transposes and reshapes, any number of them, take the extents of a tensor apart into factors, put these in another
order, and join them to new extents. So a row of movements is known by the factors of each axis before and behind it.
Extents may be open.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

Shape = tuple[int, ...]
Order = tuple[int, ...]

_numbers = count()


@dataclass(frozen=True)
class Factor:
    """A factor of an extent.

    Attributes:
        number: Tells factors of the same size apart.
        size: -1 where it is open.
    """

    number: int
    size: int

    @staticmethod
    def new(size: int) -> Factor:
        """Another one."""
        return Factor(next(_numbers), size)


Group = tuple[Factor, ...]
"""The factors of an axis, the outermost first; none where its extent is 1."""


@dataclass(frozen=True)
class Shuffle:
    """A transpose, a reshape and a transpose, as a shuffle layer has them.

    Attributes:
        first: Order of the axes before the reshape.
        reshape: Extents, 0 where one stays, -1 for the rest; None where nothing is reshaped.
        second: Order of the axes behind it.
    """

    first: Order
    reshape: Shape | None
    second: Order


@dataclass(frozen=True)
class Arrangement:
    """A tensor made of another one by moving elements.

    Attributes:
        source: The factors of the axes of the other tensor.
        target: Those of its own axes.
    """

    source: tuple[Group, ...]
    target: tuple[Group, ...]

    @staticmethod
    def of(shape: Sequence[int]) -> Arrangement:
        """A tensor as it is; open extents are -1."""
        groups = tuple(() if extent == 1 else (Factor.new(extent),) for extent in shape)
        return Arrangement(groups, groups)

    @property
    def is_identity(self) -> bool:
        """Whether nothing moves, and extents stay."""
        return self.source == self.target

    @property
    def keeps_order(self) -> bool:
        """Whether elements stay in their order."""
        return flat(self.source) == flat(self.target)

    def transposed(self, order: Sequence[int]) -> Arrangement:
        """With the axes in another order."""
        return Arrangement(self.source, tuple(self.target[axis] for axis in order))

    def reshaped(self, shape: Sequence[int], copied: Collection[int] = ()) -> Arrangement | None:
        """In other extents; None where factors cannot tell how.

        Args:
            shape: Extents; -1 where open.
            copied: Axes that have the extent that was at their place.
        """
        return _Reshape(self, shape, copied).run()

    def without_ones(self, shape: Sequence[int]) -> Arrangement | None:
        """With other axes of extent 1; None where more changes.

        Args:
            shape: Extents; -1 where open.
        """
        groups = [group for group in self.target if group]
        if sum(extent != 1 for extent in shape) != len(groups):
            return None
        left = iter(groups)
        return Arrangement(self.source, tuple(() if extent == 1 else next(left) for extent in shape))

    def shuffle(self) -> Shuffle | None:
        """One layer that moves elements so; None where it takes more."""
        plain = tuple(range(len(self.source)))
        places = {factor: at for at, factor in enumerate(flat(self.target))}
        # extents of 1 stay where they are
        moving = iter(
            sorted((axis for axis in plain if self.source[axis]), key=lambda axis: places[self.source[axis][0]])
        )
        moved = tuple(next(moving) if self.source[axis] else axis for axis in plain)
        return self._behind(plain) or (self._behind(moved) if moved != plain else None)

    def _behind(self, first: Order) -> Shuffle | None:
        """The layer that begins with an order of axes."""
        before = [self.source[axis] for axis in first]
        factors = flat(before)
        at = {factor: place for place, factor in enumerate(factors)}
        for group in self.target:
            if [at[factor] for factor in group] != list(
                range(at[group[0]], at[group[0]] + len(group)) if group else ()
            ):
                return None
        axes = range(len(self.target))
        behind = sorted((axis for axis in axes if self.target[axis]), key=lambda axis: at[self.target[axis][0]])
        moving = iter(behind)
        origin = [next(moving) if self.target[axis] else axis for axis in axes]  # axis behind for each one between
        between = [self.target[axis] for axis in origin]
        second = tuple(origin.index(axis) for axis in axes)
        if between == before:
            return Shuffle(first, None, second)
        extents = tuple(
            _extent(group, before[place] if place < len(before) else None) for place, group in enumerate(between)
        )
        is_clear = -1 not in extents or (extents.count(-1) == 1 and 0 not in extents)  # else 0 elements tell nothing
        return Shuffle(first, extents, second) if is_clear else None


def extent_of(group: Group) -> int:
    """The extent of an axis; -1 where it is open."""
    return -1 if any(factor.size == -1 for factor in group) else math.prod(factor.size for factor in group)


def _extent(group: Group, before: Group | None) -> int:
    """An extent of a reshape: 0 for an open one that stays, -1 for another open one."""
    extent = extent_of(group)
    return 0 if extent == -1 and group == before else extent


def flat(groups: Iterable[Group]) -> list[Factor]:
    """The factors of all axes, the outermost first."""
    return list(chain.from_iterable(groups))


class _Reshape:
    """Takes the factors of an arrangement apart, and joins them to other extents.

    Args:
        arrangement: What is reshaped.
        shape: The extents.
        copied: Axes that have the extent that was at their place.
    """

    def __init__(self, arrangement: Arrangement, shape: Sequence[int], copied: Collection[int]) -> None:
        self._arrangement = arrangement
        self._shape = shape
        self._copied = copied
        self._left = flat(arrangement.target)
        self._parts: dict[Factor, Group] = {}

    def run(self) -> Arrangement | None:
        """The result; None where factors cannot tell."""
        shape, found = self._shape, {}
        first, last = 0, len(shape) - 1
        while first <= last:
            group = self._take(first, from_end=False)
            if group is None:
                break
            found[first] = group
            first += 1
        while last > first:
            group = self._take(last, from_end=True)
            if group is None:
                return None
            found[last] = group
            last -= 1
        if first == last:
            if shape[first] != -1:
                return None
            found[first], self._left = tuple(self._left), []
        if self._left:
            return None
        source = tuple(self._whole(group) for group in self._arrangement.source)
        return Arrangement(source, tuple(self._whole(found[axis]) for axis in range(len(shape))))

    def _take(self, axis: int, *, from_end: bool) -> Group | None:
        """The factors of an axis, off the beginning or the end of those that are left; None where it is open."""
        extent = self._shape[axis]
        if extent == -1:
            return self._copy(axis, from_end=from_end)
        taken: list[Factor] = []
        while extent > 1:
            if not self._left:
                return None
            factor = self._left.pop(-1 if from_end else 0)
            if factor.size != -1 and extent % factor.size == 0:
                whole = factor
            elif factor.size != -1 and factor.size % extent == 0:
                whole = self._split(factor, extent, from_end=from_end)
            else:
                self._left.insert(len(self._left) if from_end else 0, factor)
                self._left[0:0] = [] if from_end else taken
                self._left += taken[::-1] if from_end else []
                return None
            taken.append(whole)
            extent //= whole.size
        return tuple(taken[::-1] if from_end else taken)

    def _copy(self, axis: int, *, from_end: bool) -> Group | None:
        """The factors of an axis that stays."""
        target = self._arrangement.target
        if axis not in self._copied or axis >= len(target):
            return None
        group = self._whole(target[axis])
        length = len(group)
        there = tuple(self._left[len(self._left) - length :] if from_end else self._left[:length])
        if there != group:
            return None
        del self._left[slice(len(self._left) - length, None) if from_end else slice(length)]
        return group

    def _split(self, factor: Factor, size: int, *, from_end: bool) -> Factor:
        """Splits a factor in two, and returns the part of a size; the rest is left."""
        part, rest = Factor.new(size), Factor.new(factor.size // size)
        self._parts[factor] = (rest, part) if from_end else (part, rest)
        self._left.insert(len(self._left) if from_end else 0, rest)
        return part

    def _whole(self, group: Group) -> Group:
        """A group with the parts of what was split."""

        def parts(factor: Factor) -> Iterator[Factor]:
            for part in self._parts.get(factor, ()):
                yield from parts(part)
            if factor not in self._parts:
                yield factor

        return tuple(chain.from_iterable(map(parts, group)))
