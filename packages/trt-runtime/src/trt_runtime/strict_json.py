"""JSON from files that nobody vouches for: no duplicate keys, no odd numbers, and bounds on everything."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_DEPTH: Final = 64
"""Most lists and objects inside one another."""

MAX_VALUES: Final = 1 << 23
"""Most values in one text, which bounds what parsing it takes to about a hundred times as many bytes."""


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
    if text.count(b",") + text.count(b"[") + text.count(b"{") > max_values:
        raise BadJson(f"the text has more than {max_values} values")
    try:
        value = json.loads(
            text.decode(),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_bounded_integer,
            parse_float=_finite_number,
        )
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:
        raise BadJson(f"the text is not JSON: {error}") from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Bounds the depth, level by level: the text does not tell, for brackets stand in strings as well."""
    level: list[Any] = [value] if isinstance(value, (list, dict)) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadJson(f"the text nests deeper than {MAX_DEPTH}")
        level = [
            item
            for container in level
            for item in (container if type(container) is list else container.values())
            if type(item) is list or type(item) is dict
        ]


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
