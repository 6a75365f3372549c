"""What a tactic may do wrong: fail, compute something else, write to inputs, take long. Builds never fail for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from recorded_tactic import CPU, Recorded, build_with, wanted

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.inductor.tactic import LaunchRecorder
from trt_portable.builder.tactic import Subject
from trt_portable.execution.launch_list import SpecializedProgram
from trt_portable.plan.artifact import Artifact, machine_of


@pytest.fixture
def build(builder: trt.Builder, compiled_wins: None, monkeypatch: Any) -> Callable[..., Any]:
    """Builds relu(x) @ matrix with the given tactics, which beat interpreting."""
    return functools.partial(build_with, builder, monkeypatch)


def test_a_wrong_tactic_is_not_chosen(build: Any, logger: Any) -> None:
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(Recorded(factor=1.1)))
    assert engine._state.executable is engine._state.program
    assert any("computes something else" in text for _, text in logger.messages)


class Restless(Recorded):
    """Ten times the sine of 3 x in single precision: what layers round to half precision is a tenth of the result."""

    def build(self, subject: Subject, profile: int) -> Artifact:
        (x,) = subject.example_inputs(profile)
        recorder = LaunchRecorder([x])
        with torch.no_grad(), recorder:
            y = x.float()
            for _ in range(10):
                y = torch.sin(y * 3 * self.factor)
            y = y.half()
        document = {"operands": [{"input": 0}], "kernels": [], "steps": recorder.steps}
        document |= {"slots": recorder.num_slots, "outputs": [recorder.slot(y)]}
        return Artifact(self.name, machine_of(CPU), subject.input_shapes(profile), document, {})


@pytest.mark.parametrize(("factor", "is_chosen"), [(1.0, True), (1.5, False)])
def test_what_rounding_alone_makes_of_a_network_is_not_wrong(
    builder: trt.Builder, compiled_wins: None, logger: Any, monkeypatch: Any, factor: float, is_chosen: bool
) -> None:
    monkeypatch.setitem(engine_tactic.choose_tactic.__kwdefaults__, "tactics", (Restless(factor),))
    network = builder.create_network()
    y = network.add_input("x", trt.float16, (64, 64))
    three = network.add_constant((1, 1), np.full((1, 1), 3, np.float16)).get_output(0)
    for _ in range(10):
        tripled = network.add_elementwise(y, three, trt.ElementWiseOperation.PROD).get_output(0)
        y = network.add_unary(tripled, trt.UnaryOperation.SIN).get_output(0)
    network.mark_output(y)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert (engine._state.info.tactic == "recorded") == is_chosen
    assert any("computes something else" in text for _, text in logger.messages) != is_chosen
    assert any("rounding alone" in text for _, text in logger.messages) == is_chosen


@pytest.mark.parametrize(
    "error", [RuntimeError("no compiler"), ImportError("no triton"), AssertionError(), KeyError(1), SystemExit(2)]
)
def test_a_tactic_that_fails_is_not_chosen(build: Any, logger: Any, monkeypatch: Any, error: Exception) -> None:
    def fail(*_: Any) -> Any:
        raise error

    tactic = Recorded()
    monkeypatch.setattr(tactic, "build", fail)
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(tactic))
    assert engine._state.executable is engine._state.program
    said = [severity for severity, text in logger.messages if "not available here" in text]
    assert said == [trt.Logger.INFO]  # on the CPU layers are hardly slower


class Changed(Recorded):
    """Makes something else of what it records."""

    def __init__(self, change: Callable[[Artifact], Artifact]) -> None:
        super().__init__()
        self.change = change

    def build(self, subject: Subject, profile: int) -> Artifact:
        return self.change(super().build(subject, profile))


def _with_steps(artifact: Artifact, *steps: list[Any]) -> Artifact:
    """The same with more steps at the end."""
    return replace(artifact, document={**artifact.document, "steps": [*artifact.document["steps"], *steps]})


CHANGES: dict[str, Callable[[Artifact], Artifact | None]] = {
    "nothing": lambda artifact: None,
    "other shapes": lambda artifact: replace(artifact, shapes=((8, 4),)),
    "writes to its input": lambda artifact: _with_steps(artifact, ["op", "aten::zero_", [{"slot": 0}], {}, [0]]),
    "an output too few": lambda artifact: replace(artifact, document={**artifact.document, "outputs": []}),
    "the input as output": lambda artifact: replace(artifact, document={**artifact.document, "outputs": [0]}),
    "no document": lambda artifact: replace(artifact, document={}),
    "fails when it runs": lambda artifact: _with_steps(artifact, ["op", "aten::mm", [{"slot": 0}] * 2, {}, [0]]),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("is_raced", [False, True])
def test_what_makes_no_sense_is_not_chosen_and_harms_nobody(
    build: Any, execute: Any, logger: Any, monkeypatch: Any, kind: str, is_raced: bool
) -> None:
    monkeypatch.setattr(engine_tactic.Trial, "is_raced", is_raced)
    broken, right = Changed(CHANGES[kind]), Recorded()
    broken.name = "broken"
    for tactics, name in (((broken,), "interpret"), ((broken, right), "recorded")):
        engine = trt.Runtime(logger).deserialize_cuda_engine(build(*tactics))
        assert engine._state.info.tactic == name
        for rows in (2, 8):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], wanted(x))


@pytest.mark.parametrize("where", ["is_candidate", "begin"])
def test_a_tactic_that_cannot_say_whether_it_applies_does_no_harm(
    build: Any, logger: Any, monkeypatch: Any, where: str
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no such library")

    failing, tactic = Recorded(), Recorded()
    failing.name = "failing"
    monkeypatch.setattr(failing, where, fail)
    monkeypatch.setattr(engine_tactic.Trial, "is_raced", True)
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(failing, tactic))
    assert tactic.built == 1 and isinstance(engine._state.executable, SpecializedProgram)


class Slow(Recorded):
    """Takes seconds of a clock that only it advances."""

    def __init__(self, name: str, seconds: float, clock: list[float]) -> None:
        super().__init__()
        self.name, self.seconds, self.clock = name, seconds, clock

    def build(self, subject: Subject, profile: int) -> Artifact:
        self.clock[0] += self.seconds
        return super().build(subject, profile)


@pytest.mark.parametrize("is_raced", [False, True])
@pytest.mark.parametrize(("level", "seconds"), [(3, 130.0), (3, 70.0), (4, 130.0), (4, 601.0), (5, 601.0)])
def test_a_search_ends_when_its_time_is_spent_and_the_best_so_far_is_kept(
    build: Any, execute: Any, logger: Any, monkeypatch: Any, level: int, seconds: float, is_raced: bool
) -> None:
    clock = [0.0]
    monkeypatch.setattr(engine_tactic, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(engine_tactic.Trial, "is_raced", is_raced)
    tactics = [Slow(str(number), seconds, clock) for number in range(30)]
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(*tactics, level=level))
    budget = {3: 120.0, 4: 600.0, 5: 1800.0}[level]
    tried = min(len(tactics), int(budget / seconds) + 1)  # what was begun in time is finished
    assert [tactic.built for tactic in tactics] == [1] * tried + [0] * (len(tactics) - tried)
    told = [text for _, text in logger.messages if "the time for tactics is spent" in text]
    assert len(told) == len(tactics) - tried
    assert engine._state.info.tactic in {tactic.name for tactic in tactics[:tried]}
    x = torch.randn(2, 4)
    torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], wanted(x))
