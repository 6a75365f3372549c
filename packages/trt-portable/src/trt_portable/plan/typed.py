"""Values of a plan's JSON by type: a plan may come from anyone, and what is wrong in it is found when it is read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from trt_portable.dims import MAX_RANK

_LARGEST = 2**63 - 1
_MOST_VALUES = 1 << 23
_E = TypeVar("_E", bound=Enum)


def parsed(text: bytes) -> Any:
    """Values of JSON, of which bounded memory is made.

    Raises:
        ValueError: It is not JSON, nests too deep, or has too many values.
    """
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_VALUES:
        raise ValueError(f"it has more than {_MOST_VALUES} values")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def fields(value: Any, what: str, names: Collection[str]) -> Mapping[str, Any]:
    """An object with exactly these fields.

    Raises:
        TypeError: It is no object.
        ValueError: A field is missing or unknown.
    """
    found = mapping(value, what)
    if found.keys() != set(names):
        missing = ", ".join(repr(name) for name in names if name not in found)
        unknown = ", ".join(repr(name)[:60] for name in found if name not in names)
        wrong = [f"lacks the field {missing}"] * bool(missing) + [f"has the unknown field {unknown}"] * bool(unknown)
        raise ValueError(f"{what} {' and '.join(wrong)}")
    return found


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """An object, whose fields may have any names.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{what} is of type {type(value).__name__}, not an object")
    return value


def member(kind: type[_E], value: Any, what: str) -> _E:
    """A member of an enumeration, by name.

    Raises:
        ValueError: There is none of that name.
    """
    found = kind.__members__.get(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{what} is {value!r:.60}, which is no {kind.__name__}")
    return found


def number(value: Any, what: str) -> float:
    """A number.

    Raises:
        TypeError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is of type {type(value).__name__}, not a number")
    return float(value)


def names(value: Any, what: str) -> tuple[str, ...]:
    """A list of strings.

    Raises:
        TypeError: It is none.
    """
    return tuple(text(item, what) for item in items(value, what))


def integers(value: Any, what: str) -> tuple[int, ...]:
    """A list of integers that are not negative.

    Raises:
        TypeError: It is none.
        ValueError: One is out of bounds.
    """
    return tuple(integer(item, what) for item in items(value, what))


def text(value: Any, what: str) -> str:
    """A string.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is of type {type(value).__name__}, not text")
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
        raise TypeError(f"{what} is of type {type(value).__name__}, not true or false")
    return value


def integer(value: Any, what: str, least: int = 0) -> int:
    """A 64-bit integer of at least a given size.

    Raises:
        TypeError: It is no integer.
        ValueError: It is out of bounds.
    """
    if type(value) is not int:
        raise TypeError(f"{what} is of type {type(value).__name__}, not an integer")
    if not least <= value <= _LARGEST:
        raise ValueError(f"{what} is {value}")
    return value


def items(value: Any, what: str) -> Sequence[Any]:
    """A list.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, list):
        raise TypeError(f"{what} is of type {type(value).__name__}, not a list")
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
