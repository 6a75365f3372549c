"""What is said of inputs that are no tensors, or are nested otherwise than the model was captured with."""

from __future__ import annotations

import pytest

from trt_core import InputError
from trt_runtime.program.input_reader import require_fixed, wrong_kind


def test_fixed_values_are_those_of_their_type() -> None:
    for known in (1, True, "mode", None, float("nan")):
        require_fixed("flag", known, known)
    for value, known in ((1.0, 1), (1, True), ("b", "a"), (None, 0)):
        with pytest.raises(InputError, match=f"input flag is {value!r}, the model was compiled for {known!r}"):
            require_fixed("flag", value, known)


def test_inputs_that_are_nested_otherwise_are_described() -> None:
    assert "input x is a dict of 'a', 'b', the model was compiled for a tuple of 2" in str(
        wrong_kind("x", {"a": 1, "b": 2}, "a tuple of 2")
    )
    assert "input x is an int, " in str(wrong_kind("x", 3, "a list of 1"))
