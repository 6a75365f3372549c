"""Arguments, taken as TensorRT's bindings take them: what they convert is converted, the rest is a TypeError."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def to_integer(value: Any) -> int:
    """An integer as the bindings convert it: no fractions, no text.

    Raises:
        TypeError: The value is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected an integer, not {type(value).__name__}") from None


def to_integers(values: Any) -> list[int]:
    """A list of integers as the bindings convert it.

    Raises:
        TypeError: Something else, or something else in it.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"expected a sequence of integers, not {type(values).__name__}")
    return [to_integer(value) for value in values]


def to_boolean(value: Any) -> bool:
    """A boolean as the bindings convert it: whatever says itself whether it is true, as numbers do and text does not.

    Raises:
        TypeError: The value does not.
    """
    if isinstance(value, bool):
        return value
    if hasattr(type(value), "__bool__"):
        return bool(value)
    raise TypeError(f"expected bool, not {type(value).__name__}")


def to_number(value: Any) -> float:
    """A float as the bindings convert it; integers pass, text does not.

    Raises:
        TypeError: The value is none.
    """
    if isinstance(value, (str, bytes)):
        raise TypeError(f"expected a number, not {type(value).__name__}")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"expected a number, not {type(value).__name__}") from None


def to_text(value: Any) -> str:
    """Text, and nothing else.

    Raises:
        TypeError: The value is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected str, not {type(value).__name__}")
    return value


def instance_of(kind: type[T], value: Any, what: str = "") -> T:
    """A value of a class of the API.

    Args:
        kind: The class.
        value: What was given.
        what: The parameter, for the message.

    Raises:
        TypeError: The value is of another class.
    """
    if not isinstance(value, kind):
        found = type(value).__name__
        raise TypeError(
            f"{what} must be {kind.__name__}, not {found}" if what else f"expected {kind.__name__}, not {found}"
        )
    return value
