"""Tactics: artifacts in plans, lists of launches, and how a build chooses among them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.builder import host_time, inductor, tactic_choice, timing, trial
from trt_portable.builder.record_launches import LaunchRecorder
from trt_portable.builder.tactics import Subject, Tactic
from trt_portable.builder.timing import first_difference
from trt_portable.plan import artifact as artifacts
from trt_portable.plan.artifact import Artifact, machine_of
from trt_portable.runtime.specialized import SpecializedProgram

CPU = torch.device("cpu")


class Recorded(Tactic):
    """Records ATen operators: relu(x) @ weights, on the CPU."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__("recorded", 1)
        self.factor = factor
        self.built = 0

    def is_candidate(self, subject: Subject) -> bool:
        return True

    def build(self, subject: Subject, profile: int) -> Artifact:
        self.built += 1
        (x,) = subject.example_inputs(profile)
        weights = subject.tensors[0]
        recorder = LaunchRecorder([x, weights])
        with torch.no_grad(), recorder:
            y = torch.relu(x) @ weights.view(4, 4) * self.factor
        document = {
            "operands": [{"input": 0}, {"weights": 0, "shape": None, "order": "plain"}],
            "kernels": recorder.kernels,
            "steps": recorder.steps,
            "slots": recorder.num_slots,
            "outputs": [recorder.slot(y)],
        }
        return Artifact(self.name, machine_of(CPU), subject.input_shapes(profile), document, {})


@pytest.fixture
def build(builder: trt.Builder, logger: Any, compiled_wins: None, monkeypatch: Any) -> Callable[..., Any]:
    """Builds relu(x) @ matrix for 1 to 8 rows, 2 at best, with the given tactics, which beat interpreting."""

    def build(*tactics: Tactic, cache: Any = None, flags: Any = (), level: int = 3, monitor: Any = None) -> Any:
        monkeypatch.setitem(tactic_choice.choose_tactic.__kwdefaults__, "tactics", tactics)
        network = builder.create_network()
        x = network.add_input("x", trt.float32, (-1, 4))
        relu = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
        matrix = network.add_constant((4, 4), np.arange(16, dtype=np.float32))
        matrix.name = "matrix"
        none = trt.MatrixOperation.NONE
        y = network.add_matrix_multiply(relu, none, matrix.get_output(0), none).get_output(0)
        y.name = "y"
        network.mark_output(y)
        config = builder.create_builder_config()
        config.builder_optimization_level = level
        config.progress_monitor = monitor
        for flag in (trt.BuilderFlag.REFIT, *flags):
            config.set_flag(flag)
        if cache is not None:
            assert config.set_timing_cache(cache, False)
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (1, 4), (2, 4), (8, 4))
        config.add_optimization_profile(profile)
        return builder.build_serialized_network(network, config)

    return build


@pytest.fixture
def engine(build: Any, logger: Any) -> trt.ICudaEngine:
    return trt.Runtime(logger).deserialize_cuda_engine(build(Recorded()))


def wanted(x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
    return torch.relu(x) @ (torch.arange(16.0).reshape(4, 4) + shift)


@pytest.mark.parametrize("rows", [2, 1, 8])
def test_compiled_for_some_shapes_interpreted_for_others(engine: Any, execute: Any, rows: int) -> None:
    assert isinstance(engine._state.executable, SpecializedProgram)
    x = torch.randn(rows, 4)
    torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], wanted(x))


def test_a_refit_reaches_it(engine: Any, execute: Any, logger: Any) -> None:
    context = engine.create_execution_context()
    refitter = trt.Refitter(engine, logger)
    fresh = np.arange(16, dtype=np.float32) + 1
    assert refitter.set_weights("matrix", trt.WeightsRole.CONSTANT, trt.Weights(fresh))
    assert refitter.refit_cuda_engine()
    x = torch.randn(2, 4)
    torch.testing.assert_close(execute(context, {"x": x})["y"], wanted(x, shift=1.0))


def test_a_stripped_plan_gets_it_with_its_weights(build: Any, execute: Any, logger: Any) -> None:
    plan = build(Recorded(), flags=[trt.BuilderFlag.STRIP_PLAN])
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert engine._state.executable is engine._state.program
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_weights("matrix", trt.WeightsRole.CONSTANT, trt.Weights(np.arange(16, dtype=np.float32)))
    assert refitter.refit_cuda_engine()
    assert isinstance(engine._state.executable, SpecializedProgram)
    x = torch.randn(2, 4)
    torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], wanted(x))


def test_plans_from_elsewhere_are_interpreted_unless_allowed(build: Any, logger: Any, monkeypatch: Any) -> None:
    plan = bytes(build(Recorded()))
    monkeypatch.setattr(artifacts, "_built_here", {})
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert engine._state.executable is engine._state.program
    told = [text for severity, text in logger.messages if severity is trt.Logger.WARNING]
    assert len(told) == 1 and "engine_host_code_allowed = True" in told[0]
    runtime = trt.Runtime(logger)
    runtime.engine_host_code_allowed = True
    allowed = runtime.deserialize_cuda_engine(plan)
    assert isinstance(allowed._state.executable, SpecializedProgram)
    again = runtime.deserialize_cuda_engine(bytes(allowed.serialize()))
    assert isinstance(again._state.executable, SpecializedProgram), "serializing keeps artifacts"


def test_artifacts_of_another_machine_are_left(build: Any, logger: Any, monkeypatch: Any) -> None:
    plan = build(Recorded())
    monkeypatch.setattr("trt_portable.plan.artifact.machine_of", lambda device: {"torch": "9"})
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert engine._state.executable is engine._state.program
    assert any("Build it again here" in text for _, text in logger.messages)


def test_a_wrong_tactic_is_not_chosen(build: Any, logger: Any) -> None:
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(Recorded(factor=1.1)))
    assert engine._state.executable is engine._state.program
    assert any("computes something else" in text for _, text in logger.messages)


@pytest.mark.parametrize(
    "error", [RuntimeError("no compiler"), ImportError("no triton"), AssertionError(), KeyError(1)]
)
def test_a_tactic_that_fails_is_not_chosen(build: Any, logger: Any, monkeypatch: Any, error: Exception) -> None:
    def fail(*_: Any) -> Any:
        raise error

    tactic = Recorded()
    monkeypatch.setattr(tactic, "build", fail)
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(tactic))
    assert engine._state.executable is engine._state.program
    assert any("not available here" in text for _, text in logger.messages)


@pytest.mark.parametrize(
    ("times", "name"), [([2.0, 1.0, 3.0], "one"), ([2.0, 3.0, 1.0], "two"), ([1.0, 1.0, 1.0], "interpret")]
)
def test_the_fastest_of_a_race_is_chosen(
    build: Any, logger: Any, monkeypatch: Any, times: list[float], name: str
) -> None:
    tactics = [Recorded(), Recorded()]
    for tactic, each in zip(tactics, ("one", "two"), strict=True):
        tactic.name = each
    monkeypatch.setattr(trial.Trial, "is_raced", True)
    monkeypatch.setattr(trial.Trial, "race", lambda self, programs: times)
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(*tactics))
    assert engine._state.info.tactic == name
    assert isinstance(engine._state.executable, SpecializedProgram) is (name != "interpret")


@pytest.mark.parametrize("fails", [False, True])
def test_a_tactic_begins_before_it_builds(build: Any, logger: Any, monkeypatch: Any, fails: bool) -> None:
    tactic = Recorded()
    begun: list[int] = []

    def begin() -> None:
        begun.append(tactic.built)
        if fails:
            raise ImportError("no compiler")

    monkeypatch.setattr(tactic, "begin", begin)
    monkeypatch.setattr(trial.Trial, "is_raced", True)
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(tactic))
    assert begun == [0]
    assert engine._state.info.tactic == "recorded"


@pytest.mark.parametrize("where", ["is_candidate", "begin"])
def test_a_tactic_that_cannot_say_whether_it_applies_does_no_harm(
    build: Any, logger: Any, monkeypatch: Any, where: str
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no such library")

    failing, tactic = Recorded(), Recorded()
    failing.name = "failing"
    monkeypatch.setattr(failing, where, fail)
    monkeypatch.setattr(trial.Trial, "is_raced", True)
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(failing, tactic))
    assert tactic.built == 1 and isinstance(engine._state.executable, SpecializedProgram)


TIMED = {name: getattr(trial.Trial, name) for name in ("time_interpreted", "race")}
"""What the fixture that lets tactics win replaces."""


class Listener(trt.IProgressMonitor):
    """Notes what is tried, and may stop there."""

    def __init__(self, last: str = "") -> None:
        trt.IProgressMonitor.__init__(self)
        self.last = last
        self.tried: list[str] = []
        self.open: list[str] = []

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        self.open.append(phase_name)
        if phase_name.startswith("Try "):
            assert parent_phase == "Choose tactics" and num_steps == 1
            self.tried.append(phase_name.removeprefix("Try ").removesuffix(" at profile 0"))

    def step_complete(self, phase_name: str, step: int) -> bool:
        return not self.last or not phase_name.startswith(f"Try {self.last} ")

    def phase_finish(self, phase_name: str) -> None:
        assert self.open.pop() == phase_name


@pytest.mark.parametrize(
    ("is_raced", "tried"), [(False, ["interpret", "first", "second"]), (True, ["first", "second", "all, in turns"])]
)
def test_progress_says_what_is_tried(build: Any, monkeypatch: Any, is_raced: bool, tried: list[str]) -> None:
    monkeypatch.setattr(trial.Trial, "is_raced", is_raced)
    for name, method in TIMED.items():
        monkeypatch.setattr(trial.Trial, name, method)
    first, second = Recorded(), Recorded()
    first.name, second.name = "first", "second"
    listener = Listener()
    assert build(first, second, monitor=listener) is not None
    assert listener.tried == tried and not listener.open
    stopped = Listener(last="first")
    assert build(first, second, monitor=stopped) is None
    assert stopped.tried == tried[: tried.index("first") + 1] and not stopped.open


def test_level_0_tries_nothing(build: Any) -> None:
    tactic = Recorded()
    assert build(tactic, level=0) is not None
    assert tactic.built == 0


def test_a_second_build_times_nothing(build: Any, builder: trt.Builder, monkeypatch: Any) -> None:
    cache = builder.create_builder_config().create_timing_cache(b"")
    assert build(Recorded(), cache=cache) is not None
    for name in ("milliseconds", "time_layers"):
        monkeypatch.setattr(trial, name, lambda *_: pytest.fail("timed again"))
    assert build(Recorded(), cache=cache, flags=[trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS]) is not None


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
    monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(trial.Trial, "is_raced", is_raced)
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


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([torch.ones(3)], None),
        ([torch.ones(3) * 1.001], None),
        ([torch.ones(3) * 1.1], "off by"),
        ([torch.ones(4)], "not torch.float32 (3,)"),
        ([torch.ones(3).half()], "torch.float16"),
        ([torch.tensor([1.0, 1.0, float("nan")])], "finite"),
        ([], "0 outputs"),
    ],
)
def test_what_differs(found: Any, says: str | None) -> None:
    said = first_difference(found, [torch.ones(3)])
    assert said is None if says is None else says in (said or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_infinities_and_nan_are_told_apart(dtype: torch.dtype) -> None:
    inf, nan = torch.inf, torch.nan
    wanted = torch.tensor([1.0, inf, -inf, nan], dtype=dtype)
    assert first_difference([wanted.clone()], [wanted]) is None
    for other in ([1.0, -inf, -inf, nan], [1.0, nan, -inf, nan], [1.0, inf, -inf, inf], [1.0, inf, -inf, -inf]):
        assert first_difference([torch.tensor(other, dtype=dtype)], [wanted]) is not None


@pytest.mark.parametrize("place", [0, 99, 100, 250])
def test_differences_are_found_in_every_piece(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(timing, "_PIECE", 100)
    wanted = torch.randn(251)
    for value, says in ((1e3, "off by"), (torch.nan, "finite in other places"), (torch.inf, "finite in other places")):
        found = wanted.clone()
        found[place] = value
        assert says in (first_difference([found], [wanted]) or "")
    assert first_difference([wanted.clone()], [wanted]) is None
    numbers = torch.arange(251)
    assert first_difference([numbers.clone()], [numbers]) is None
    assert first_difference([numbers.roll(1)], [numbers]) is not None


def test_numbers_that_vanish_in_half_precision_agree() -> None:
    vanished = torch.full((8,), 3e-7, dtype=torch.float16)
    assert first_difference([vanished * 2], [vanished]) is None
    assert first_difference([vanished + 1e-3], [vanished]) is not None


@pytest.mark.parametrize(("dtype", "fits"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, True)])
def test_wide_outputs_of_half_precision_are_held_to_half_precision(dtype: torch.dtype, fits: bool) -> None:
    wanted = torch.ones(8)
    found = wanted * 1.015  # as far as two orders of adding up in half precision are apart in a deep network
    assert (first_difference([found], [wanted], {dtype, torch.int32}) is None) is fits
    assert first_difference([wanted * 1.2], [wanted], {dtype}) is not None


def test_a_subject_offers_inputs_that_every_layer_takes(engine: Any) -> None:
    subject = Subject(engine._state.structure, engine._state.info, (), CPU)
    (x,) = subject.example_inputs(0)
    assert x.shape == (2, 4) and x.std() > 0
    assert torch.equal(x, replace(subject).example_inputs(0)[0])


def test_work_of_one_thread_is_timed_by_what_the_thread_had_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    waited = host_time.least_seconds(lambda: time.sleep(0.02))  # as if others had the processor
    assert host_time.host_clock() is time.thread_time and waited < 0.02
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert host_time.host_clock() is time.perf_counter


@pytest.mark.parametrize("has_convolutions", [False, True])
def test_layouts_of_convolutions_are_candidates_where_there_are_any(
    builder: trt.Builder, load: Any, monkeypatch: pytest.MonkeyPatch, has_convolutions: bool
) -> None:
    monkeypatch.setattr(inductor.Inductor, "LEAST_STEPS", 1)
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (1, 2, 4, 4))
    layer = (
        network.add_convolution_nd(x, 2, (1, 1), np.ones((2, 2, 1, 1), np.float32))
        if has_convolutions
        else network.add_activation(x, trt.ActivationType.RELU)
    )
    network.mark_output(layer.get_output(0))
    state = load(network)._state
    subject = Subject(state.structure, state.info, (), torch.device("cuda"))
    found = [tactic.name for tactic in inductor.TACTICS if tactic.is_candidate(subject)]
    assert ("inductor-planar" in found) == has_convolutions
    assert "inductor" in found  # with channels last
