"""The error hierarchy: one base, four parts, one text."""

from __future__ import annotations

import inspect

import pytest

from trt_core import InputError, SettingsError, TrtError, errors

CLASSES = [member for _, member in inspect.getmembers(errors, inspect.isclass) if issubclass(member, TrtError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_says_what_where_why_and_what_to_do(kind: type[TrtError]) -> None:
    error = kind("it failed", where="there", why="because", hint="do this")
    assert str(error).splitlines() == ["it failed", "  where: there", "  why: because", "  what to do: do this"]
    assert (error.what, error.where, error.why, error.hint) == ("it failed", "there", "because", "do this")


@pytest.mark.parametrize("kind", CLASSES)
def test_parts_that_are_missing_leave_no_trace(kind: type[TrtError]) -> None:
    assert str(kind("it failed")) == "it failed"


def test_every_error_is_a_runtime_error() -> None:
    assert all(issubclass(kind, RuntimeError) for kind in CLASSES)


@pytest.mark.parametrize("kind", [InputError, SettingsError])
def test_bad_arguments_are_value_errors_too(kind: type[TrtError]) -> None:
    assert issubclass(kind, ValueError)


def test_names_of_any_length_make_no_message_of_any_length() -> None:
    """Names come from files, and a message repeats some of them."""
    error = TrtError(f"{'x' * 5000!r} is unknown", why="a\n" + "y" * 10_000, hint="z")
    shown = str(error).splitlines()
    assert [len(line) < 4100 for line in shown] == [True] * 4
    assert shown[0].endswith("x... (1013 letters more)") and shown[2].endswith("y... (6000 letters more)")
    assert error.why.count("y") == 10_000, "programs that present errors themselves have all of it"
