"""Fields of files: each is exactly what its place needs, or the message says what it is."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from trt_core.files import typed


class _Color(Enum):
    RED = 0


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (lambda value: typed.fields(value, "x", ("a", "b")), {"a": 1, "c": 2}, "x: it lacks the field 'b' and has the"),
        (lambda value: typed.fields(value, "x", ("a",)), [], "x: an object is needed, not a list of 0"),
        (lambda value: typed.items(value, "x", 2), [1], "x: a list of 2 is needed, not a list of 1"),
        (lambda value: typed.integer(value, "x"), True, "x: an integer from 0 is needed, not True"),
        (lambda value: typed.integer(value, "x"), 1.0, "not 1.0"),
        (lambda value: typed.integer(value, "x", 0, 9), 10, "x: an integer from 0 to 9 is needed, not 10"),
        (lambda value: typed.integer(value, "x", -1), 2**63, "an integer from -1 is needed"),
        (lambda value: typed.integers(value, "x", most=1), [1, 2], "2 integers are more than 1"),
        (lambda value: typed.number(value, "x"), float("inf"), "a number is needed, not inf"),
        (lambda value: typed.number(value, "x"), False, "a number is needed, not False"),
        (lambda value: typed.text(value, "x", 3), "abcd", "a string of at most 3 characters is needed, not 'abcd'"),
        (lambda value: typed.texts(value, "x"), ["a", 1], "a string is needed, not 1"),
        (lambda value: typed.flag(value, "x"), 1, "true or false is needed, not 1"),
        (lambda value: typed.member(_Color, value, "x"), "BLUE", "'BLUE' is no _Color"),
        (lambda value: typed.choice({"a": 1}, value, "x", "letter"), ["a"], "a list of 1 is no letter"),
    ],
)
def test_what_does_not_fit_is_refused(read: Any, value: Any, message: str) -> None:
    with pytest.raises(typed.BadField) as caught:
        read(value)
    assert message in str(caught.value)


def test_what_fits_is_returned() -> None:
    assert typed.integers([0, 2**63 - 1], "x") == (0, 2**63 - 1)
    assert typed.number(3, "x") == 3.0
    assert typed.optional_text(None, "x") is None
    assert typed.member(_Color, "RED", "x") is _Color.RED


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1_0", "1.0", "\u0663", "\xb2", "9" * 20, "9" * 5000])
def test_digits_are_those_of_ascii(text: str) -> None:
    assert typed.digits(text) is None
    assert typed.digits("0016") == 16


def test_messages_are_short() -> None:
    with pytest.raises(typed.BadField) as caught:
        typed.integer("x" * 100_000, "x")
    assert len(str(caught.value)) < 200
