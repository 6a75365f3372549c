"""Extents and permutations: `Dims` with its fixed-rank forms, and `Permutation`."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, SupportsIndex, overload

MAX_RANK: Final = 8
MAX_VOLUME: Final = 1 << 40
"""The most elements of a tensor, more than a device holds. Beyond it, libraries that compile networks overflow."""


def _integers(values: Any, what: str) -> tuple[int, ...]:
    """The integers of a sequence, as pybind converts them: no text, no fractions."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{what} takes a sequence of integers, not {type(values).__name__}")
    try:
        return tuple(map(operator.index, values))
    except TypeError as error:
        raise TypeError(f"{what} takes a sequence of integers: {error}") from None


class Dims:
    """Up to eight extents; -1 stands for an extent that is known only at run time.

    Args:
        shape: The extents, int64.

    Raises:
        ValueError: More than eight extents.
        TypeError: Not a sequence of integers.
    """

    MAX_DIMS: ClassVar[int] = MAX_RANK

    __slots__ = ("_extents",)

    _extents: tuple[int, ...] | None

    def __init__(self, shape: Sequence[SupportsIndex] | Dims = ()) -> None:
        if isinstance(shape, Dims):
            self._extents = shape._extents
            return
        extents = _integers(shape, type(self).__name__)
        if len(extents) > MAX_RANK:
            raise ValueError(f"The dimensions must have at most {MAX_RANK} elements, not {len(extents)}")
        self._extents = extents

    @classmethod
    def _invalid(cls) -> Dims:
        """Extents of unknown number, as TensorRT gives them for what failed shape inference."""
        dims = Dims()
        dims._extents = None
        return dims

    @classmethod
    def _of(cls, extents: tuple[int, ...]) -> Dims:
        """Dims of at most eight integers that need no check."""
        dims = cls.__new__(cls)
        dims._extents = extents
        return dims

    @property
    def _is_valid(self) -> bool:
        return self._extents is not None

    def __len__(self) -> int:
        if self._extents is None:
            raise ValueError("__len__() should return >= 0")
        return len(self._extents)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | tuple[int, ...]:
        if self._extents is None:
            raise IndexError("these dimensions are invalid: shape inference failed")
        return self._extents[index]

    def __setitem__(self, index: SupportsIndex, value: SupportsIndex) -> None:
        extents = list(self._extents or ())
        extents[index] = operator.index(value)
        self._extents = tuple(extents)

    def __iter__(self) -> Iterator[int]:
        if self._extents is None:
            raise ValueError("__len__() should return >= 0")
        return iter(self._extents)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dims):
            return self._extents == other._extents
        if isinstance(other, (tuple, list)):
            return self._extents == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._extents)

    def __str__(self) -> str:
        return "(-1 dimensions)" if self._extents is None else str(self._extents)

    __repr__ = __str__


class _FixedDims(Dims):
    """Extents of a fixed number."""

    __slots__ = ()

    _RANK: ClassVar[int] = 0

    def __init__(self, *shape: Any) -> None:
        if not shape:
            shape = (0,) * self._RANK
        elif len(shape) == 1:
            shape = _integers(shape[0], type(self).__name__)
            if len(shape) != self._RANK:
                raise ValueError(f"The dimensions must have exactly {self._RANK} elements, not {len(shape)}")
        elif len(shape) != self._RANK:
            raise TypeError(f"{type(self).__name__} takes {self._RANK} extents, not {len(shape)}")
        super().__init__(shape)


class Dims2(_FixedDims):
    """Two extents: ``Dims2(a, b)`` or ``Dims2((a, b))``."""

    __slots__ = ()
    _RANK = 2


class DimsHW(Dims2):
    """A height and a width."""

    __slots__ = ()

    @property
    def h(self) -> int:
        """The height."""
        return self[0]

    @h.setter
    def h(self, value: int) -> None:
        self[0] = value

    @property
    def w(self) -> int:
        """The width."""
        return self[1]

    @w.setter
    def w(self, value: int) -> None:
        self[1] = value


class Dims3(_FixedDims):
    """Three extents: ``Dims3(a, b, c)`` or ``Dims3((a, b, c))``."""

    __slots__ = ()
    _RANK = 3


class Dims4(_FixedDims):
    """Four extents: ``Dims4(a, b, c, d)`` or ``Dims4((a, b, c, d))``."""

    __slots__ = ()
    _RANK = 4


DimsLike = Dims | Sequence[int]


def as_dims(value: Any) -> Dims:
    """The dims of anything that the bindings take for dims.

    Raises:
        TypeError: Not dims and not a sequence of integers.
        ValueError: More than eight extents.
    """
    return value if isinstance(value, Dims) else Dims(value)


class Permutation:
    """A permutation of up to eight axes: output axis ``i`` takes input axis ``permutation[i]``.

    It always has length eight; axes that were not given keep their place.

    Raises:
        ValueError: More than eight axes.
    """

    __slots__ = ("_order",)

    def __init__(self, order: Sequence[SupportsIndex] = ()) -> None:
        given = _integers(order, "Permutation")
        if len(given) > MAX_RANK:
            raise ValueError(f"A permutation has at most {MAX_RANK} elements, not {len(given)}")
        self._order = given + tuple(range(len(given), MAX_RANK))

    def __len__(self) -> int:
        return MAX_RANK

    def __getitem__(self, index: SupportsIndex) -> int:
        return self._order[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Permutation):
            return self._order == other._order
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._order)

    def __repr__(self) -> str:
        return str(self._order)
