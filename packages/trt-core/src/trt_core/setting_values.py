"""Reads the value of one setting as the setting's annotation says: its type, and what the type is annotated with."""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.device import Device
from trt_core.dtypes import dtype_name, parse_dtype
from trt_core.errors import SettingsError

ANY: Final = float("inf")


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of a number, both included.

    Attributes:
        low, high: The bounds.
        whole: Whether what lies between must be a whole number; infinity may be none.
    """

    low: float
    high: float = ANY
    whole: bool = False

    def __str__(self) -> str:
        number = "a whole number" if self.whole else "a value"
        return f"{number} from {self.low} to {self.high}" if self.high < ANY else f"{number} of at least {self.low}"

    def allows(self, value: float) -> bool:
        """Whether a number is one of these."""
        return self.low <= value <= self.high and (not self.whole or value == ANY or value == int(value))


@dataclass(frozen=True, init=False)
class OneOf:
    """The values that there are."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def __str__(self) -> str:
        return f"one of {', '.join(_spell(value) for value in self.values)}"


@dataclass(frozen=True)
class ReadBy:
    """A function that brings what users write into the form that the setting has, before its type is checked."""

    function: Callable[[Any], Any]


def read_setting(name: str, annotation: Any, value: Any) -> Any:
    """Returns the value of a setting in its one form: `"half"` becomes `torch.float16`, a list a frozenset.

    Args:
        name: Name of the setting, for the message.
        annotation: Its resolved annotation: `bool`, `int`, `float`, `str`, `torch.dtype`, `Device`, `frozenset` of one
            of them, a union of these, each perhaps `Annotated` with `Range`, `OneOf` and `ReadBy`.
        value: What the user gave.

    Raises:
        SettingsError: The value is of another type, or out of range.
    """
    kind, rules = _unwrap(annotation)
    try:
        found = value
        for rule in rules:
            if isinstance(rule, ReadBy):
                found = rule.function(found)
        found = _read(kind, found)
    except SettingsError:
        raise
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        why = getattr(error, "what", None) or str(error)
        raise SettingsError(f"{name}={value!r} cannot be read", where="compilation settings", why=why) from error
    for rule in rules:
        if not _allows(rule, found):
            raise SettingsError(
                f"{name}={_spell(found)} is out of range", where="compilation settings", hint=f"give {rule}"
            )
    return found


def _unwrap(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(annotation) is typing.Annotated:
        kind, *rules = typing.get_args(annotation)
        return kind, tuple(rules)
    return annotation, ()


def _allows(rule: Any, value: Any) -> bool:
    if value is None:
        return True
    if isinstance(rule, Range):
        return rule.allows(value)
    return value in rule.values if isinstance(rule, OneOf) else True


def _read(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_first(typing.get_args(kind), value)
    if origin is frozenset:
        return _read_set(typing.get_args(kind)[0], value)
    return _READERS[kind](value)


def _read_first(kinds: tuple[Any, ...], value: Any) -> Any:
    """Returns what the first alternative that fits makes of the value."""
    reasons = []
    for kind in kinds:
        try:
            return _read(kind, value)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            reasons.append(str(error))
    first, *others = dict.fromkeys(reasons)
    raise TypeError(", or ".join([first, *(reason.removeprefix("give ") for reason in others)]))


def _read_set(kind: Any, value: Any) -> frozenset[Any]:
    if isinstance(value, str) and kind is str:
        raise TypeError("give a collection of names, not one string")
    single = isinstance(value, (str, torch.dtype)) or not isinstance(value, Iterable)
    return frozenset(_read(kind, item) for item in ([value] if single else value))


def _read_none(value: Any) -> None:
    if value is not None:
        raise TypeError("give None")


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError("give True or False")


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
        raise TypeError("give a whole number")
    return int(value)


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise TypeError("give a number")
    return float(value)


def _read_text(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str):
            return text
    raise TypeError("give a string")


_READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    type(None): _read_none,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_text,
    torch.dtype: parse_dtype,
    Device: Device,
}


def _spell(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return value if isinstance(value, str) else repr(value)
