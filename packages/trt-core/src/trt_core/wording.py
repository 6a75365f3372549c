"""Nouns with their article, for messages that name a value's type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final

_SPELT_WITH_A_VOWEL: Final = "AEFHILMNORSX"
"""Capitals whose names begin with the sound of a vowel: an `LSTM`, an `FXGraph`, but a `UNet` and a `BERT`."""


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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean 'x'?` for the nearest known name, or an empty string when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""
