"""Tactics: artifacts in plans, lists of launches, and how a build chooses among them."""

from __future__ import annotations

import builtins
import functools
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recorded_tactic import Recorded, build_with, wanted
from side_by_side import in_fork
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.inductor.tactic import TACTICS, Inductor, _compute_masks_once, write_out_constants
from trt_portable.builder.tactic import Subject
from trt_portable.execution.launch_list import SpecializedProgram
from trt_portable.plan import artifact as artifacts
from trt_portable.shape_tensors import as_tensor

CPU = torch.device("cpu")


@pytest.fixture
def build(builder: trt.Builder, compiled_wins: None, monkeypatch: Any) -> Callable[..., Any]:
    """Builds relu(x) @ matrix with the given tactics, which beat interpreting."""
    return functools.partial(build_with, builder, monkeypatch)


@pytest.fixture
def engine(build: Any, logger: Any) -> trt.ICudaEngine:
    return trt.Runtime(logger).deserialize_cuda_engine(build(Recorded()))


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


@pytest.mark.parametrize("is_allowed", [False, True])
def test_loading_and_running_unpickles_evaluates_and_compiles_nothing(
    build: Any, execute: Any, logger: Any, monkeypatch: Any, is_allowed: bool
) -> None:
    plan = bytes(build(Recorded()))
    monkeypatch.setattr(artifacts, "_built_here", {})
    runtime = trt.Runtime(logger)
    runtime.engine_host_code_allowed = is_allowed
    execute(
        runtime.deserialize_cuda_engine(plan).create_execution_context(), {"x": torch.randn(2, 4)}
    )  # libraries load
    asked: list[str] = []
    really = builtins.__import__

    def importing(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] in ("triton", "pickle") or name.startswith(("torch._inductor", "torch._dynamo")):
            asked.append(name)
        return really(name, *rest, **named)

    def refuse(*_: Any, **__: Any) -> Any:
        asked.append("code")
        raise AssertionError("host code")

    monkeypatch.setattr(builtins, "__import__", importing)
    for owner, name in (
        (pickle, "loads"),
        (pickle, "load"),
        (pickle, "Unpickler"),
        (torch, "load"),
        (builtins, "eval"),
    ):
        monkeypatch.setattr(owner, name, refuse)
    engine = runtime.deserialize_cuda_engine(plan)
    x = torch.randn(2, 4)
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    monkeypatch.undo()
    assert not asked
    assert isinstance(engine._state.executable, SpecializedProgram) is is_allowed
    torch.testing.assert_close(found, wanted(x))


def test_artifacts_of_another_machine_are_left(build: Any, logger: Any, monkeypatch: Any) -> None:
    plan = build(Recorded())
    monkeypatch.setattr("trt_portable.plan.artifact.machine_of", lambda device: {"torch": "9"})
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert engine._state.executable is engine._state.program
    assert any("Build it again here" in text for _, text in logger.messages)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compilers_are_tried_on_a_gpu_from_the_default_level_on(engine: Any, device: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
    state = engine._state
    subject = Subject(state.structure, state.info, (), torch.device(device))
    found = {tactic.name: tactic.least_level for tactic in TACTICS if tactic.is_candidate(subject)}
    default = trt.Builder(trt.Logger()).create_builder_config().builder_optimization_level
    assert min(found.values(), default=default) == default and bool(found) is (device == "cuda")
    assert len({tactic.name for tactic in TACTICS}) == len(TACTICS)


@pytest.mark.parametrize(
    ("times", "name"), [([2.0, 1.0, 3.0], "one"), ([2.0, 3.0, 1.0], "two"), ([1.0, 1.0, 1.0], "interpret")]
)
def test_the_fastest_of_a_race_is_chosen(
    build: Any, logger: Any, monkeypatch: Any, times: list[float], name: str
) -> None:
    tactics = [Recorded(), Recorded()]
    for tactic, each in zip(tactics, ("one", "two"), strict=True):
        tactic.name = each
    monkeypatch.setattr(engine_tactic.Trial, "is_raced", True)
    monkeypatch.setattr(engine_tactic.Trial, "race", lambda self, programs: times)
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
    monkeypatch.setattr(engine_tactic.Trial, "is_raced", True)
    engine = trt.Runtime(logger).deserialize_cuda_engine(build(tactic))
    assert begun == [0]
    assert engine._state.info.tactic == "recorded"


TIMED = {name: getattr(engine_tactic.Trial, name) for name in ("time_interpreted", "race")}
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
    monkeypatch.setattr(engine_tactic.Trial, "is_raced", is_raced)
    for name, method in TIMED.items():
        monkeypatch.setattr(engine_tactic.Trial, name, method)
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
        monkeypatch.setattr(engine_tactic, name, lambda *_: pytest.fail("timed again"))
    assert build(Recorded(), cache=cache, flags=[trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS]) is not None


def test_a_subject_offers_inputs_that_every_layer_takes(engine: Any) -> None:
    subject = Subject(engine._state.structure, engine._state.info, (), CPU)
    (x,) = subject.example_inputs(0)
    assert x.shape == (2, 4) and x.std() > 0
    assert torch.equal(x, replace(subject).example_inputs(0)[0])


def test_example_masks_show_something_and_hide_something(builder: trt.Builder, load: Any) -> None:
    network = builder.create_network()
    mask = network.add_input("mask", trt.bool, (2, 5))
    network.mark_output(network.add_unary(mask, trt.UnaryOperation.NOT).get_output(0))
    state = load(network)._state
    (found,) = Subject(state.structure, state.info, (), CPU).example_inputs(0)
    assert found.any(-1).all() and not found.all(-1).any()


def test_example_integers_reach_as_far_as_tables_do(builder: trt.Builder, load: Any) -> None:
    network = builder.create_network()
    rows, mask, counted, far = (
        network.add_input(name, trt.int64, (4, 5)) for name in ("rows", "mask", "counted", "far")
    )
    table = network.add_constant((7, 3), np.ones((7, 3), np.float32)).get_output(0)
    none = network.add_constant((1, 1), np.zeros((1, 1), np.int64)).get_output(0)
    turned = network.add_shuffle(rows)
    turned.reshape_dims = (5, 4)
    for index in (turned.get_output(0), counted):
        network.mark_output(network.add_gather(table, index, 0).get_output(0))
    for given in (rows, mask):
        equal = network.add_elementwise(given, none, trt.ElementWiseOperation.EQUAL).get_output(0)
        network.mark_output(equal)
    network.mark_output(network.add_elementwise(counted, none, trt.ElementWiseOperation.SUM).get_output(0))
    network.mark_output(network.add_cast(network.add_cast(far, trt.float32).get_output(0), trt.int64).get_output(0))
    state = load(network)._state
    found = Subject(state.structure, state.info, (), CPU).example_inputs(0)
    rows, mask, counted, far = map(as_tensor, found)
    assert rows.max() > 1 and rows.min() >= 0 and rows.max() <= 6
    assert set(mask.unique().tolist()) == {0, 1} and mask.any(-1).all()
    assert not counted.any(), "a sum is computed with it, and could look anywhere"
    assert not far.any(), "it comes back from floats, and could look anywhere"


@pytest.mark.parametrize("has_convolutions", [False, True])
def test_layouts_of_convolutions_are_candidates_where_there_are_any(
    builder: trt.Builder, load: Any, monkeypatch: pytest.MonkeyPatch, has_convolutions: bool
) -> None:
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
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
    found = [tactic.name for tactic in TACTICS if tactic.is_candidate(subject)]
    assert ("inductor-planar" in found) == has_convolutions
    assert "inductor" in found  # with channels last


@pytest.mark.parametrize(
    ("constant", "is_written_out"),
    [
        (torch.zeros(1, 1, dtype=torch.int64), True),
        (torch.full((2, 3), 0.5), True),
        (torch.tensor(True), True),
        (torch.arange(12, dtype=torch.int32).view(3, 4) * -2 + 7, True),
        (torch.arange(14).mul(2).view(14, 1) + torch.arange(3), True),
        (torch.tensor([0, 1, 3]), True),
        (torch.tensor([[True, False, False], [True, True, False]]), True),
        (torch.tensor([0.0, -0.0, 1.0]), True),
        (torch.tensor([float("nan")]), True),
        (torch.zeros(0), False),
        (torch.tensor([2**62, -(2**62)]), True),
        (torch.arange(65) ** 2, False),
    ],
)
def test_constants_of_few_numbers_are_computed(constant: torch.Tensor, is_written_out: bool) -> None:
    module = torch.nn.Module()
    module.register_buffer("constant", constant)
    graph = torch.fx.Graph()
    node = graph.get_attr("constant")
    graph.output(graph.call_function(torch.ops.aten.clone.default, (node,)))
    with FakeTensorMode() as mode:
        node.meta["val"] = mode.from_tensor(constant)
    write_out_constants(module, graph)
    assert (not graph.find_nodes(op="get_attr")) is is_written_out
    found = torch.fx.GraphModule(module, graph)()
    torch.testing.assert_close(found, constant, equal_nan=True, rtol=0, atol=0)
    assert found.dtype is constant.dtype
    assert constant.dtype is not torch.float32 or torch.equal(found.signbit(), constant.signbit())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_trusts_what_it_builds_while_a_thread_of_its_parent_did() -> None:
    def trusts() -> bool:
        artifacts.trust(b"built in the fork")
        return artifacts.is_trusted(b"built in the fork")

    with artifacts._lock:
        assert in_fork(trusts)
    assert not artifacts.is_trusted(b"built in the fork")


@pytest.mark.parametrize("kernel", ["cudnn", "efficient"])
@pytest.mark.parametrize(
    ("kind", "is_shared"), [("expanded", True), ("padded", True), ("own", False), ("drawn", False)]
)
def test_what_a_batch_adds_to_its_scores_is_computed_once(kernel: str, kind: str, is_shared: bool) -> None:
    """A mask is expanded for a batch before the bias of its positions is added."""
    attend = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention").default

    def bias(seen: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        batch, length = seen.shape
        places = torch.arange(length)
        table = (places[:, None, None] - places[:, None]) * slopes
        shown = (seen[:, None, None] if kind == "own" else seen[:1, None, None]).expand(batch, 1, length, length)
        made = torch.where(shown, table.permute(2, 0, 1)[None], -torch.inf).clone(memory_format=torch.contiguous_format)
        if kind == "drawn":
            return made + torch.bernoulli(torch.zeros_like(made))  # for each sequence anew
        return F.pad(made, (0, 3))[..., :length] if kind == "padded" else made

    def compute(q: torch.Tensor, seen: torch.Tensor, slopes: torch.Tensor) -> Any:
        queries = q.expand(-1, -1, seen.shape[1], -1)
        return attend(queries, queries, queries, bias(seen, slopes), False)[0]

    given = [torch.randn(3, 2, 1, 8), torch.tensor([[1, 1, 0, 1, 1]]).bool().repeat(3, 1), torch.randn(2)]
    graph = make_fx(compute, tracing_mode="symbolic")(*given)
    _compute_masks_once(graph.graph)
    (attention,) = graph.graph.find_nodes(op="call_function", target=attend)
    added = attention.args[3]
    assert isinstance(added, fx.Node)
    single = added.args[0] if added.target is torch.ops.aten.expand.default else added
    assert isinstance(single, fx.Node)
    assert isinstance(single.meta["val"].shape[0], int) == is_shared
    graph.graph.output_node().args = (added,)
    graph.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    graph.recompile()
    assert torch.equal(graph(*given).expand(3, 2, 5, 5), bias(*given[1:]))
