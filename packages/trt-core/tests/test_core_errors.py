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
