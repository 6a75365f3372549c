"""Runs of plans stay inside of limits: what a layer makes is known before it is made, in loops and outside of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import plan_fuzzer
import pytest
import torch

import trt_portable as trt
from trt_core.limits import CallLimits
from trt_portable.execution.bounded_runs import BoundedRuns
from trt_portable.runtime import engine_state
from trt_portable.runtime.engine_state import usable_artifacts

E = trt.ElementWiseOperation
Net = plan_fuzzer.Net


def _doubled(net: Net) -> Any:
    """A row that is joined with itself, again and again."""
    x = net.input("x", (1, 64))
    for _ in range(30):
        joined = net.network.add_concatenation([x, x])
        joined.axis = 1
        x = joined.get_output(0)
    return net.network.add_reduce(x, trt.ReduceOperation.SUM, 2, False).get_output(0)


def _outer(net: Net) -> Any:
    x = net.input("x", (1 << 15,))
    rows, columns = (net.network.add_shuffle(x) for _ in range(2))
    rows.reshape_dims, columns.reshape_dims = (1 << 15, 1), (1, 1 << 15)
    pairs = net.network.add_elementwise(rows.get_output(0), columns.get_output(0), E.SUM).get_output(0)
    return net.network.add_reduce(pairs, trt.ReduceOperation.MAX, 3, False).get_output(0)


def _filled(net: Net) -> Any:
    x = net.input("x", (1,))
    fill = net.network.add_fill((1 << 15, 1 << 15), trt.FillOperation.LINSPACE, trt.float32)
    fill.set_input(1, net.numbers(0.0, np.float32))
    fill.set_input(2, net.numbers([0.5, 2.0], np.float32))
    total = net.network.add_reduce(fill.get_output(0), trt.ReduceOperation.SUM, 3, False).get_output(0)
    return net.network.add_elementwise(x, _row(net, total), E.SUM).get_output(0)


def _row(net: Net, scalar: Any) -> Any:
    moved = net.network.add_shuffle(scalar)
    moved.reshape_dims = (1,)
    return moved.get_output(0)


def _resized(net: Net) -> Any:
    layer = net.network.add_resize(net.input("x", (1, 1, 2, 2)))
    layer.shape = (1, 1, 1 << 15, 1 << 15)
    return net.network.add_reduce(layer.get_output(0), trt.ReduceOperation.SUM, 12, True).get_output(0)


def _padded(net: Net) -> Any:
    layer = net.network.add_padding_nd(net.input("x", (1, 1, 2, 2)), (0, 0), (1 << 15, 1 << 15))
    return net.network.add_reduce(layer.get_output(0), trt.ReduceOperation.SUM, 12, True).get_output(0)


def _product(net: Net) -> Any:
    x, y = net.input("x", (1 << 15, 1)), net.input("y", (1, 1 << 15))
    product = net.network.add_matrix_multiply(x, plan_fuzzer.N, y, plan_fuzzer.N).get_output(0)
    return net.network.add_reduce(product, trt.ReduceOperation.SUM, 3, False).get_output(0)


def _gathered(net: Net) -> Any:
    x, at = net.input("x", (1, 1 << 13)), net.input("at", (1 << 17,), trt.int32)
    rows = net.network.add_gather(x, at, 0).get_output(0)
    return net.network.add_reduce(rows, trt.ReduceOperation.SUM, 3, False).get_output(0)


def _growing_loop(net: Net) -> Any:
    """A state that is twice as long after each turn, as far as a plan may say so."""
    x = net.input("x", (1, 64))
    loop = net.network.add_loop()
    loop.add_trip_limit(net.numbers(1 << 12), trt.TripLimit.COUNT)
    state = loop.add_recurrence(x)
    large = net.network.add_fill((1 << 12, 1 << 12), trt.FillOperation.LINSPACE, trt.float32)
    large.set_input(1, net.numbers(0.0, np.float32))
    large.set_input(2, net.numbers([0.5, 2.0], np.float32))
    total = net.network.add_reduce(large.get_output(0), trt.ReduceOperation.SUM, 3, True).get_output(0)
    following = net.network.add_elementwise(state.get_output(0), total, E.SUM).get_output(0)
    state.set_input(1, following)
    rows = loop.add_loop_output(net.network.add_elementwise(following, large_row(net), E.SUM).get_output(0), C, 0)
    rows.set_input(1, net.numbers(1 << 12))
    return net.network.add_reduce(rows.get_output(0), trt.ReduceOperation.SUM, 7, False).get_output(0)


C = trt.LoopOutput.CONCATENATE


def large_row(net: Net) -> Any:
    return net.constant(1 << 12, 64)


MEMORY: dict[str, Callable[[Net], Any]] = {
    "joined with itself": _doubled,
    "all pairs": _outer,
    "filled": _filled,
    "resized": _resized,
    "padded": _padded,
    "a product": _product,
    "gathered": _gathered,
    "collected by a loop": _growing_loop,
}


class Logger(trt.ILogger):
    """Keeps errors."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        if int(severity) <= int(trt.Logger.ERROR):
            self.errors.append(msg)


def _run(plan: bytes, limits: CallLimits | None = None, times: int = 1) -> tuple[bool, Logger, Any]:
    logger = Logger()
    runtime = trt.Runtime(logger)
    if limits is not None:
        runtime.call_limits = limits
    engine = runtime.deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    held = []
    for name in engine:
        shape = tuple(context.get_tensor_shape(name))
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT and -1 in shape:
            shape = tuple(engine.get_tensor_profile_shape(name, 0)[1])
            assert context.set_input_shape(name, shape)
        held.append(torch.zeros(shape, dtype=plan_fuzzer.CARRIERS[engine.get_tensor_dtype(name)]))
        assert context.set_tensor_address(name, held[-1].data_ptr())
    done = [context.execute_async_v3(0) for _ in range(times)]
    return all(done), logger, engine


@pytest.mark.parametrize("name", MEMORY)
def test_memory_of_a_run_is_bounded(name: str) -> None:
    net = Net()
    done, logger, _ = _run(net.plan(MEMORY[name](net)))
    assert not done
    assert "the call takes more than" in logger.errors[-1] and "bytes" in logger.errors[-1]


@pytest.mark.parametrize("name", sorted(plan_fuzzer.NETWORKS.keys() - {"integers", "cache", "packed"}))
def test_honest_networks_stay_inside_and_are_watched_once(name: str) -> None:
    done, logger, engine = _run(plan_fuzzer.NETWORKS[name](), times=3)
    assert done, logger.errors
    bounded = engine._state.observable
    assert isinstance(bounded, BoundedRuns)
    assert len(bounded._passed) == 1
    has_data = name in ("boxes", "shapes", "choice")  # what numbers decide
    assert any(bounded._passed.values()) is has_data


@pytest.mark.parametrize("name", ["attention", "lstm", "places", "codes"])
def test_watched_and_other_runs_compute_the_same(name: str) -> None:
    """The first of these runs is watched, and the others are not."""
    engine = trt.Runtime(Logger()).deserialize_cuda_engine(plan_fuzzer.NETWORKS[name]())
    context = engine.create_execution_context()
    torch.manual_seed(0)
    tensors = {}
    for key in engine:
        dtype = plan_fuzzer.CARRIERS[engine.get_tensor_dtype(key)]
        shape = tuple(context.get_tensor_shape(key))
        tensors[key] = torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)
        assert context.set_tensor_address(key, tensors[key].data_ptr())
    results = []
    for _ in range(3):
        assert context.execute_async_v3(0)
        results.append({key: tensor.clone() for key, tensor in tensors.items()})
    for result in results[1:]:
        for key, tensor in result.items():
            assert torch.equal(tensor, results[0][key])


def test_a_limit_that_the_caller_sets() -> None:
    plan = plan_fuzzer.NETWORKS["attention"]()
    done, logger, _ = _run(plan, CallLimits(steps=0))
    assert not done
    assert "more than 0 operators" in logger.errors[-1]
    assert _run(plan, CallLimits(*[math.inf] * 6))[0]


def test_a_limit_is_logged_once_and_recorded_each_time() -> None:
    """Whoever serves a hostile plan has one line of it in the log; a recorder hears all, and then the log nothing."""

    class Recorder(trt.IErrorRecorder):
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def report_error(self, arg0: Any, arg1: str) -> bool:
            self.errors.append(arg1)
            return False

    plan = plan_fuzzer.NETWORKS["attention"]()
    done, logger, engine = _run(plan, CallLimits(steps=0), times=3)
    assert not done
    assert len(logger.errors) == 1
    done, logger, _ = _run(plan, CallLimits(seconds=0), times=2)
    assert not done and len(logger.errors) == 1  # another engine says it by itself
    context = engine.create_execution_context()
    context.error_recorder = recorder = Recorder()
    logger.errors.clear()
    held = [torch.zeros(tuple(context.get_tensor_shape(name))) for name in engine]
    for name, tensor in zip(engine, held, strict=True):
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert [context.execute_async_v3(0) for _ in range(3)] == [False] * 3
    assert len(recorder.errors) == 3
    assert not logger.errors


def test_trusted_plans_have_no_limits() -> None:
    """Limits are off where the caller trusts plans."""
    runtime = trt.Runtime(Logger())
    runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan_fuzzer.NETWORKS["attention"]())
    assert not isinstance(engine._state.observable, BoundedRuns)


def test_observed_runs_are_bounded() -> None:
    class Profiler(trt.IProfiler):
        def report_layer_time(self, layer_name: str, ms: float) -> None:
            pass

    net = Net()
    logger = Logger()
    engine = trt.Runtime(logger).deserialize_cuda_engine(net.plan(_outer(net)))
    context = engine.create_execution_context()
    context.profiler = Profiler()
    held = [torch.zeros(tuple(context.get_tensor_shape(name))) for name in engine]
    for name, tensor in zip(engine, held, strict=True):
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert not context.execute_async_v3(0)
    assert "the call takes more than" in logger.errors[-1]


def test_observed_runs_run_once() -> None:
    """Layers may add in place: what runs twice adds twice."""

    class Profiler(trt.IProfiler):
        layers: list[str] = []  # noqa: RUF012 - of this test alone

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.layers.append(layer_name)

    engine = trt.Runtime(Logger()).deserialize_cuda_engine(plan_fuzzer.NETWORKS["boxes"]())
    program = engine._state.program
    ran: list[int] = []

    def counted(compute: Any, at: int) -> Any:
        return lambda inputs: (ran.append(at), compute(inputs))[1]

    program.steps = [(counted(compute, at), *rest) for at, (compute, *rest) in enumerate(program.steps)]
    context = engine.create_execution_context()
    context.profiler = Profiler()
    held = []
    for name in engine:
        shape = tuple(context.get_tensor_shape(name))
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT and -1 in shape:
            shape = tuple(engine.get_tensor_profile_shape(name, 0)[1])
            assert context.set_input_shape(name, shape)
        held.append(torch.zeros([abs(extent) * 64 for extent in shape], dtype=torch.int64))
        assert context.set_tensor_address(name, held[-1].data_ptr())
    for times in (1, 2, 3):  # all steps are watched, then those that depend on data
        assert context.execute_async_v3(0)
        assert ran == [*range(len(program.steps))] * times
        assert len(Profiler.layers) == len(ran)


@pytest.mark.parametrize("is_said", [False, True])
def test_unused_kernels_are_said_once(is_said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loads a program says it for all of its engines."""
    section = b"compiled elsewhere"
    heard: list[bool] = []

    def artifacts(found: bytes, device: torch.device, reporter: Any, *, is_allowed: bool, is_said: bool) -> list[Any]:
        heard.append(is_said)
        warned: list[str] = []
        monkeypatch.setattr(type(reporter), "warning", lambda self, text: warned.append(text))
        assert usable_artifacts(section, device, reporter, is_allowed=is_allowed, is_said=is_said) == []
        assert len(warned) == (not is_said)
        return []

    monkeypatch.setattr(engine_state, "usable_artifacts", artifacts)
    runtime = trt.Runtime(Logger())
    runtime.unused_kernels_are_said = is_said
    assert runtime.deserialize_cuda_engine(plan_fuzzer.NETWORKS["attention"]()) is not None
    assert heard == [is_said]
