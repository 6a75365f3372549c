"""Words of messages: how values are named, and names that command no terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Final

_SPELT_WITH_A_VOWEL: Final = "AEFHILMNORSX"
"""Capitals whose names begin with the sound of a vowel: an `LSTM`, an `FXGraph`, but a `UNet` and a `BERT`."""
_LONGEST: Final = 4000
"""Letters of a line of a message."""


def with_article(noun: str) -> str:
    """Returns `an int`, `a uint8`, `an LSTM`, `a Tensor`."""
    initial, second = noun[:1], noun[1:2]
    if initial.isupper() and second.isupper():
        vowel = initial in _SPELT_WITH_A_VOWEL
    elif initial in "uU":
        vowel = second == "n" and noun[2:3] != "i"  # an unbound, a unit, a uint8
    else:
        vowel = initial in "aeioAEIO" and initial != ""
    return f"{'an' if vowel else 'a'} {noun}"


def kind_of(value: Any) -> str:
    """Returns what a value is, as a message says it.

    Returns:
        `None`, `the class Linear` for a class, else the name of its type with the article: `an int`, `a Tensor`.
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return with_article(type(value).__name__)


def printable(text: str) -> str:
    """Returns a text in which names from files may stand, with control characters and marks of direction spelled out.

    Args:
        text: Any text; lines and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)


def message_of(text: str) -> str:
    """Returns a text as a message says it: printable, and without the rest of lines that no reader gets to the end of.

    Args:
        text: Any text; names from files may be of any length.
    """
    if len(text) > _LONGEST:
        text = "\n".join(map(_shortened, text.split("\n")))
    return printable(text)


def _shortened(line: str) -> str:
    more = len(line) - _LONGEST
    return line if more <= 0 else f"{line[:_LONGEST]}... ({more} letters more)"


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun: `1 engine`, `2 engines`, `0 graphs`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def human_bytes(size: float) -> str:
    """Returns a size with a binary unit, of three significant digits: `1.5 MiB`."""
    return scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Returns a number with the unit that suits it, of three significant digits and without an exponent.

    Args:
        value: The number, in the first unit.
        base: How many of a unit make the next one.
        units: All units, the smallest first.
    """
    last = len(units) - 1
    step = 0
    while step < last and value >= base:
        value /= base
        step += 1
    return f"{value:.0f} {units[step]}" if value >= 100 else f"{value:.3g} {units[step]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean 'x'?` for the nearest known name, or an empty string when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""


def nearest_or_all(name: object, known: Iterable[str]) -> str:
    """Returns what to do where something is none of a few known names: the nearest one, or all of them."""
    choices = list(known)
    return did_you_mean(str(name), choices) or f"choose one of {', '.join(choices)}"
