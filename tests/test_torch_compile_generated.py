"""Random small programs behave under `torch.compile` with our backend as with `backend="aot_eager"`."""

from __future__ import annotations

import os

import pytest
import torch
from generated_programs import CHANGES, INPUTS, STEPS, Program, of_inference, programs
from hypothesis import HealthCheck, given, reject, settings
from torch_compile_reference import Seen, watch

from trt_frontends.backend import torch_tensorrt_backend

EXAMPLES = int(os.environ.get("TRT_PROGRAMS", "4"))
"""How many programs; the session `programs` of nox runs hundreds."""


pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]


def _watch(program: Program, backend: object) -> list[Seen]:
    return watch(
        program.make,
        program.inputs,
        backend,
        grad=program.grad,
        dynamic=program.dynamic,
        between=program.change,
        options={"precision": program.precision},
    )


def check(program: Program) -> None:
    """Asserts that three calls show what they show with `aot_eager`, whose values may differ from eager execution's.

    Programs that eager execution or `aot_eager` refuses are none.
    """
    try:
        eager, reference = _watch(program, None), _watch(program, "aot_eager")
    except Exception:  # a write to what cannot be written to, in the words of either
        reject()
    ours = _watch(program, torch_tensorrt_backend)
    for call, (mine, other, one) in enumerate(zip(ours, reference, eager, strict=True)):
        assert mine.facts == other.facts, f"call {call}: {mine.facts} instead of {other.facts}"
        if program.precision is not torch.float32:
            continue  # rounding may decide on a branch, and integers are made of what was rounded
        for value, expected, alternative in zip(mine.values, other.values, one.values, strict=True):
            if not _close(value, alternative, program.tolerance):
                torch.testing.assert_close(
                    value, expected, rtol=program.tolerance, atol=program.tolerance, equal_nan=True
                )


def _close(value: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    return value.shape == expected.shape and torch.allclose(
        value.to(expected.dtype), expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(program=programs())
def test_programs_behave_as_with_aot_eager(program: Program) -> None:
    check(program)


def test_every_step_makes_programs_that_eager_execution_runs() -> None:
    for name in STEPS:
        for inputs in INPUTS:
            if inputs is of_inference:
                continue  # PyTorch refuses to write to these, and to record gradients of them
            model = Program(((name, 0),), (1,), inputs=inputs).make()
            for change in CHANGES:
                with torch.no_grad():
                    model(*inputs(0))
                if change is not None:
                    change(model, 1)
