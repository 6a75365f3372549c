"""JSON from files that nobody vouches for: no duplicate keys, no odd numbers, and bounds on everything."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_DEPTH: Final = 64
"""Most lists and objects inside one another."""

MAX_VALUES: Final = 1 << 23
"""Most values in one text, which bounds what parsing it takes to about a hundred times as many bytes."""

_DIGITS: Final = bytes(ord("0") if chr(code).isdigit() and code < 128 else code for code in range(256))
_LONG: Final = b"0" * 19
"""An integer beyond 64 bits has as many digits, once all digits are zeros."""

_LARGEST: Final = str(2**63 - 1).encode()
_SHORTER: Final = b"0" * 18
"""Stands for the largest integer, which ends of slices often are; with a digit beside it, it is too long again."""

_SPACED: Final = (b'" ', b'"\n', b'"\t', b'"\r')


class BadJson(ValueError):
    """The text is not JSON as this project writes it; the message says why."""


def parse_json(text: bytes, *, max_bytes: int, max_values: int = MAX_VALUES) -> Any:
    """Parses JSON that may be hostile.

    Args:
        text: UTF-8.
        max_bytes: Longest text that is accepted.
        max_values: Most values that are accepted.

    Raises:
        BadJson: The text is too long, too deep, not JSON, or has a duplicate key, a number that JSON has not (NaN,
            infinity), an integer beyond 64 bits or a number beyond float64.
    """
    if len(text) > max_bytes:
        raise BadJson(f"the text has {len(text)} bytes, more than {max_bytes}")
    if has_more_values(text, max_values):
        raise BadJson(f"the text has more than {max_values} values")
    # a call of Python for each integer or object takes longer than parsing: most texts show that none is needed
    digits = text.replace(_LARGEST, _SHORTER).translate(_DIGITS)
    hooks: dict[str, Any] = {"parse_int": _bounded_integer} if _LONG in digits else {}
    keys = text.count(b'":')
    has_spaces = any(text.find(pair) >= 0 for pair in _SPACED)
    if has_spaces:
        hooks["object_pairs_hook"] = _unique
    value = _loads(text, hooks)
    found = _count_keys(value)
    if found != keys and not has_spaces:  # a key appears twice, or a string holds what looks like the end of one
        _loads(text, {"object_pairs_hook": _unique})
    return value


def has_more_values(text: bytes, most: int) -> bool:
    """Whether there may be more values in a text than so many."""
    return len(text) > most and text.count(b",") + text.count(b"[") + text.count(b"{") > most


def _loads(text: bytes, hooks: dict[str, Any]) -> Any:
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant, parse_float=_finite_number, **hooks)
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:
        raise BadJson(f"the text is not JSON: {error}") from error


def _count_keys(value: Any) -> int:
    """Counts the keys of all objects, level by level, and bounds the depth.

    The text does not tell either: brackets and quotes stand in strings as well.
    """
    level: list[Any] = [value]
    depth = keys = 0
    while True:
        below: list[Any] = []
        has_containers = False
        for item in level:
            if type(item) is dict:
                keys += len(item)
                below.extend(item.values())
                has_containers = True
            elif type(item) is list:
                below.extend(item)
                has_containers = True
        if not has_containers:
            return keys
        depth += 1
        if depth > MAX_DEPTH:
            raise BadJson(f"the text nests deeper than {MAX_DEPTH}")
        level = below


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadJson(f"the key {twice!r:.60} appears twice")
    return values


def _refuse_constant(name: str) -> Any:
    raise BadJson(f"{name} is not JSON")


def _bounded_integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise BadJson(f"the integer {text:.40} needs more than 64 bits")
    return int(text)


def _finite_number(text: str) -> float:
    value = float(text) if len(text) <= 40 else float("inf")
    if value in (float("inf"), float("-inf")):
        raise BadJson(f"the number {text:.40} is beyond float64")
    return value
