"""Compilation settings on the command line: `--setting NAME=VALUE`."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

Settings = Annotated[
    list[str] | None,
    typer.Option("--setting", "-s", help="A compilation setting as NAME=VALUE, such as precision=float16; repeatable."),
]


def read_assignments(texts: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Reads `NAME=VALUE` settings: numbers, `true`, `false`, `none`, names of types, and lists separated by commas.

    A list that is given several times adds up. Regular expressions, which may hold commas, are given one at a time.

    Raises:
        InputError: One has no `=`.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            from trt_core import InputError

            raise InputError(f"{text!r} is not NAME=VALUE", hint="write for instance --setting precision=float16")
        name, read = name.strip(), _value(name.strip(), value.strip())
        found[name] = {*found.get(name, ()), *read} if name in _LISTS else read
    return found


_PATTERNS: Final = frozenset({"autocast_excluded_nodes"})
_LISTS: Final = _PATTERNS | {
    "autocast_excluded_ops",
    "enabled_precisions",
    "torch_executed_modules",
    "torch_executed_ops",
}
_WORDS: Final = {"true": True, "false": False, "none": None, "inf": float("inf")}


def _value(name: str, text: str) -> Any:
    if name in _PATTERNS:
        return {text}
    if name in _LISTS:
        return {part.strip() for part in text.split(",") if part.strip()}
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
