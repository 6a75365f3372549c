"""What is said of inputs that are not tensors, or are nested otherwise than the model was captured with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trt_core.errors import InputError
from trt_core.wording import kind_of


def require_fixed(place: str, value: Any, known: Any) -> None:
    """Checks an input whose value is part of the compiled model.

    Args:
        place: Which input it is.
        value: What was given.
        known: What the model was captured with: a number, a string, None, ...

    Raises:
        InputError: Another value was given, or one of another type.
    """
    if type(value) is type(known) and (value == known or (value != value and known != known)):
        return
    raise InputError(
        f"input {place} is {value!r:.60}, the model was compiled for {known!r:.60}",
        why="capturing the model has fixed the values of inputs that are not tensors",
        hint="give that value, compile once for each value, or make it a tensor",
    )


def misfit(place: str, value: Any, wanted: str) -> InputError:
    """Returns the error for an input that is nested otherwise.

    Args:
        place: Which input it is.
        value: What was given.
        wanted: What it should be, such as `"a tuple of 2"`.
    """
    given = kind_of(value)
    if isinstance(value, Mapping):
        given += f" of {', '.join(map(repr, value))}"
    elif isinstance(value, (tuple, list)):
        given += f" of {len(value)}"
    return InputError(
        f"input {place} is {given}, the model was compiled for {wanted}",
        hint="nest the inputs as they were when the model was captured",
    )
