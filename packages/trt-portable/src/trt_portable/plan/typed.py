"""Values of a plan's JSON by type: a plan may come from anyone, and what is wrong in it is found when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trt_portable.dims import MAX_RANK

_LARGEST = 2**63 - 1


def text(value: Any, what: str) -> str:
    """A string.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}, not text")
    return value


def optional_text(value: Any, what: str) -> str | None:
    """A string or None.

    Raises:
        TypeError: It is neither.
    """
    return None if value is None else text(value, what)


def flag(value: Any, what: str) -> bool:
    """True or false.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} is a {type(value).__name__}, not true or false")
    return value


def integer(value: Any, what: str, least: int = 0) -> int:
    """A 64-bit integer of at least a given size.

    Raises:
        TypeError: It is no integer.
        ValueError: It is out of bounds.
    """
    if type(value) is not int:
        raise TypeError(f"{what} is a {type(value).__name__}, not an integer")
    if not least <= value <= _LARGEST:
        raise ValueError(f"{what} is {value}")
    return value


def items(value: Any, what: str) -> Sequence[Any]:
    """A list.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, list):
        raise TypeError(f"{what} is a {type(value).__name__}, not a list")
    return value


def extents(value: Any, what: str) -> tuple[int, ...]:
    """Extents of a tensor: integers from -1, at most eight.

    Raises:
        TypeError: It is no list of integers.
        ValueError: An extent is out of bounds, or there are too many.
    """
    if len(items(value, what)) > MAX_RANK:
        raise ValueError(f"{what} has {len(value)} extents, more than {MAX_RANK}")
    return tuple(integer(extent, what, -1) for extent in value)
