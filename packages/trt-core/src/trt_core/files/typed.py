"""Reads parsed JSON field by field: nothing missing, nothing unknown, nothing of another type or out of bounds.

Every reader of a file of ours is made of these, so that all of them refuse the same. Each takes the value and the place
that messages call it by. Whoever reads a whole document turns `BadField` into an error that says which file it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

LARGEST: Final = 2**63 - 1
"""No integer of a file is larger."""

_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")


class BadField(ValueError):
    """A value of a file is not what its place needs; the message says both."""

    def __init__(self, place: str, why: str) -> None:
        self.place, self.why = place, why
        super().__init__(f"{place}: {why}")


def fields(value: Any, place: str, names: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """An object with exactly these keys, of which the optional ones may be missing.

    Raises:
        BadField: It is none.
    """
    found = mapping(value, place)
    if found.keys() != set(names):
        missing = ", ".join(repr(name) for name in names if name not in found and name not in optional)
        unknown = ", ".join(repr(name)[:60] for name in found if name not in names)
        wrong = [f"lacks the field {missing}"] * bool(missing) + [f"has the unknown field {unknown[:200]}"] * bool(
            unknown
        )
        if wrong:
            raise BadField(place, f"it {' and '.join(wrong)}")
    return found


def mapping(value: Any, place: str) -> Mapping[str, Any]:
    """An object, whose keys may be any text.

    Raises:
        BadField: It is none.
    """
    if not isinstance(value, dict):
        raise BadField(place, f"an object is needed, not {show(value)}")
    return value


def items(value: Any, place: str, length: int | None = None) -> Sequence[Any]:
    """A list, of a given length.

    Raises:
        BadField: It is none.
    """
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise BadField(place, f"{wanted} is needed, not {show(value)}")
    return value


def integer(value: Any, place: str, low: int = 0, high: int = LARGEST) -> int:
    """An integer between two bounds, both included.

    Raises:
        BadField: It is none.
    """
    if type(value) is not int or not low <= value <= high:
        wanted = f"from {low}" if high == LARGEST else f"from {low} to {high}"
        raise BadField(place, f"an integer {wanted} is needed, not {show(value)}")
    return value


def integers(value: Any, place: str, low: int = 0, high: int = LARGEST, most: int | None = None) -> tuple[int, ...]:
    """A list of integers between two bounds, both included.

    Args:
        value, place, low, high: See `integer`.
        most: How many there may be.

    Raises:
        BadField: It is none.
    """
    found = items(value, place)
    if most is not None and len(found) > most:
        raise BadField(place, f"{len(found)} integers are more than {most}")
    return tuple([integer(item, place, low, high) for item in found])


def number(value: Any, place: str) -> float:
    """A finite number.

    Raises:
        BadField: It is none.
    """
    if type(value) not in (int, float) or not math.isfinite(value):
        raise BadField(place, f"a number is needed, not {show(value)}")
    return float(value)


def digits(text: str) -> int | None:
    """The number that a few digits write; None for any other text.

    `int` reads more: digits of every script, signs, spaces and underscores. Of too many digits it raises an error.
    """
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def part_of(entries: Mapping[str, str]) -> tuple[int, int | None]:
    """Where the bytes of a constant of ONNX's begin in its file, and how many there are; None for all that follow.

    Raises:
        BadField: A number is none, is below 0, or `LARGEST` or more.
    """
    found = {key: digits(entries[key]) for key in ("offset", "length") if key in entries}
    for key, number in found.items():
        if number is None or number >= LARGEST:
            raise BadField(key, f"{entries[key]!r:.80} is no number of bytes")
    return found.get("offset") or 0, found.get("length")


def text(value: Any, place: str, most: int | None = None) -> str:
    """A string.

    Args:
        value, place: What is read, and how messages call it.
        most: Characters that it may have.

    Raises:
        BadField: It is none.
    """
    if not isinstance(value, str) or (most is not None and len(value) > most):
        wanted = "a string" if most is None else f"a string of at most {most} characters"
        raise BadField(place, f"{wanted} is needed, not {show(value)}")
    return value


def texts(value: Any, place: str, most: int | None = None) -> tuple[str, ...]:
    """A list of strings.

    Raises:
        BadField: It is none.
    """
    return tuple([text(item, place, most) for item in items(value, place)])


def optional_text(value: Any, place: str) -> str | None:
    """A string or null.

    Raises:
        BadField: It is neither.
    """
    return None if value is None else text(value, place)


def flag(value: Any, place: str) -> bool:
    """True or false.

    Raises:
        BadField: It is neither.
    """
    if not isinstance(value, bool):
        raise BadField(place, f"true or false is needed, not {show(value)}")
    return value


def choice(table: Mapping[str, _T], value: Any, place: str, what: str) -> _T:
    """What a table holds under a name.

    Args:
        table: What there is to choose from.
        value, place: What is read, and how messages call it.
        what: What the table holds, for messages: "data type".

    Raises:
        BadField: There is none of that name.
    """
    if not isinstance(value, str) or value not in table:
        raise BadField(place, f"{show(value)} is no {what}")
    return table[value]


def member(kind: type[_E], value: Any, place: str) -> _E:
    """A member of an enumeration, by name.

    Raises:
        BadField: There is none of that name.
    """
    return choice(kind.__members__, value, place, kind.__name__)


def show(value: Any) -> str:
    """What a value is, for messages; no more of it than fits into one."""
    if value is None or isinstance(value, (bool, int, float)):
        return f"{value!r:.40}"
    if isinstance(value, str):
        return f"{value[:80]!r:.80}"
    return f"a list of {len(value)}" if isinstance(value, list) else "an object"
