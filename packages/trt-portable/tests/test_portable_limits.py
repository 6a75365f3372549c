"""Runs of plans stay inside of limits: what a layer makes is known before it is made, in loops and outside of them."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import plan_fuzzer
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_core.limits import UNLIMITED, Account, CallLimits, charging
from trt_core.remembered import Remembered
from trt_portable.builder.autotune import engine_tactic
from trt_portable.execution import bounded_runs
from trt_portable.execution.bounded_runs import BoundedRuns, _Watcher, contract_of, contracts_of
from trt_portable.execution.program import LayerFailure
from trt_portable.fusion.packed_products import PrepackedProduct, has_prepacked_kernels
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


@pytest.mark.parametrize("name", sorted(plan_fuzzer.NETWORKS.keys() - {"integers", "cache", "packed", "sequences"}))
def test_honest_networks_stay_inside_and_are_watched_once(name: str) -> None:
    done, logger, engine = _run(plan_fuzzer.NETWORKS[name](), times=3)
    assert done, logger.errors
    bounded = engine._state.observable
    assert isinstance(bounded, BoundedRuns)
    assert len(bounded._passed) == 1
    has_data = name in ("boxes", "shapes", "choice", "nested", "told")  # what numbers decide
    assert any(passed.loose for passed in bounded._passed.values()) is has_data


def _turns(net: Net, layers: int, outside: int, *, is_nested: bool) -> bytes:
    """A loop whose layers compute numbers on the host, and which knows many tensors of outside."""
    x = net.input("x", (1,))
    given = [net.input(f"x{at}", (1,)) for at in range(outside)]
    loop = net.network.add_loop()
    loop.add_trip_limit(net.numbers(100), trt.TripLimit.COUNT)
    state = loop.add_recurrence(x)
    shape = net.network.add_shape(state.get_output(0)).get_output(0)
    for _ in range(layers):
        shape = net.network.add_elementwise(shape, shape, E.MIN).get_output(0)
    row = net.network.add_shuffle(state.get_output(0))
    row.set_input(1, shape)
    made = row.get_output(0)
    if given:
        made = net.network.add_concatenation([made, *given]).get_output(0)
        made = net.network.add_slice(made, (0,), (1,), (1,)).get_output(0)
    if is_nested:
        choice = net.network.add_if_conditional()
        choice.set_condition(net.input("first", (), trt.bool))
        entry = choice.add_input(made).get_output(0)
        other = net.network.add_unary(entry, trt.UnaryOperation.NEG).get_output(0)
        inner = net.network.add_shape(entry).get_output(0)
        for _ in range(layers):
            inner = net.network.add_elementwise(inner, inner, E.MIN).get_output(0)
        same = net.network.add_shuffle(entry)
        same.set_input(1, inner)
        made = choice.add_output(other, same.get_output(0)).get_output(0)
    state.set_input(1, made)
    return net.plan(loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE, 0).get_output(0))


@pytest.mark.parametrize(("layers", "outside", "is_nested"), [(100, 0, False), (0, 900, False), (60, 0, True)])
def test_layers_of_a_loop_count_where_they_call_no_operators(layers: int, outside: int, is_nested: bool) -> None:
    """What a turn does on the host was not counted: 100 kB took a minute."""
    plan = _turns(Net(), layers, outside, is_nested=is_nested)
    done, logger, _ = _run(plan, CallLimits(steps=5000))
    assert not done
    assert "more than 5000 operators" in logger.errors[-1]
    done, logger, _ = _run(plan)
    assert done, logger.errors


@pytest.mark.parametrize("kind", ["CONCATENATE", "REVERSE"])
def test_turns_that_a_loop_does_not_take_are_no_tensors(kind: str) -> None:
    """An axis longer than the loop took a tensor for each place: 5 kB took gigabytes."""
    net = Net()
    loop = net.network.add_loop()
    loop.add_trip_limit(net.numbers(2), trt.TripLimit.COUNT)
    state = loop.add_recurrence(net.input("x", (1,)))
    state.set_input(1, net.network.add_unary(state.get_output(0), trt.UnaryOperation.EXP).get_output(0))
    made = loop.add_loop_output(state.get_output(0), trt.LoopOutput[kind], 0)
    made.set_input(1, net.numbers(1 << 20))
    tracemalloc.start()
    try:
        done, logger, _ = _run(
            net.plan(net.network.add_slice(made.get_output(0), (0, 0), (4, 1), (1, 1)).get_output(0))
        )
        assert done, logger.errors
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_run_has_the_limits_of_the_call_around_it() -> None:
    """What one engine makes is given to the next, which might make 256 times as much. So it is in later runs."""
    with charging(Account(CallLimits(bytes_alive=1 << 28))) as account:
        done, logger, engine = _run(plan_fuzzer.NETWORKS["boxes"](), times=2)
    assert done, logger.errors
    (passed,) = engine._state.observable._passed.values()
    assert passed.loose and passed.limits.bytes_alive == 1 << 28
    assert account.steps > 3 and account.elements > 0


def _rows(name: str, kind: Any = E.SUM, rows: int = 2, extents: tuple[int, int] = (2, 3)) -> bytes:
    """A product with a matrix, a function of its elements, and a reshape to extents that a constant holds."""
    net = Net()
    x = net.input("x", (1, 4))
    product = net.network.add_matrix_multiply(x, plan_fuzzer.N, net.constant(4, 6), plan_fuzzer.N)
    product.name = name
    y = net.network.add_elementwise(product.get_output(0), net.constant(rows, 6), kind).get_output(0)
    layer = net.network.add_shuffle(y)
    layer.set_input(1, net.numbers([rows, *extents], np.int64))
    return net.plan(layer.get_output(0))


_ALIKE: dict[str, dict[str, Any]] = {
    "one": {"name": "one"},
    "another name": {"name": "two"},
    "another function": {"name": "one", "kind": E.PROD},
    "other extents": {"name": "one", "rows": 3},
    "other numbers": {"name": "one", "extents": (3, 2)},
}


def test_engines_of_one_structure_are_watched_once_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine uses follows from its structure: an equal one, by another name, is not looked at again."""
    walked = []
    walk = _Watcher._walk
    monkeypatch.setattr(_Watcher, "_walk", lambda self, *given: (walked.append(self), walk(self, *given))[1])
    monkeypatch.setattr(bounded_runs, "_of_all", Remembered())
    used = {}
    for name, changed in _ALIKE.items():
        with charging(Account(CallLimits())) as account:
            before = len(walked)
            done, logger, _ = _run(_rows(**changed))
            assert done, logger.errors
            used[name] = account.used
            assert len(walked) - before == (name != "another name"), name
            assert _run(_rows(**changed))[0]  # the same again
            assert len(walked) - before == (name != "another name"), name
    assert used["one"] == used["another name"] and used["other extents"] != used["one"]


def test_engines_of_one_structure_have_no_more_room_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_runs, "_of_all", Remembered())
    with charging(Account(CallLimits())) as account:
        assert _run(_rows("one"))[0]
    assert account.used.steps >= 3
    with charging(Account(CallLimits(steps=account.used.steps))):
        assert _run(_rows("two"))[0]
        done, logger, _ = _run(_rows("three"))
    assert not done and "operators" in logger.errors[-1]
    done, logger, _ = _run(_rows("four"), CallLimits(steps=1))  # alone, it has its own limits
    assert not done and "more than 1 operators" in logger.errors[-1]


def test_what_is_known_counts_with_what_depends_on_data() -> None:
    """Later runs watch what depends on data alone: what other layers have made is alive all the same."""
    net = Net()
    x = net.input("x", (1 << 18,))
    places = [net.network.add_non_zero(x, trt.int64).get_output(0)]
    sums = [net.network.add_elementwise(x, x, E.SUM).get_output(0) for _ in range(3)]  # 1 MiB each
    places.append(net.network.add_non_zero(x, trt.int64).get_output(0))  # 2 MiB at most
    runtime = trt.Runtime(Logger())
    runtime.call_limits = CallLimits(bytes_alive=6 << 20, bytes_made=1 << 40)
    engine = runtime.deserialize_cuda_engine(net.plan(*sums, *places))
    runs = BoundedRuns(engine._state.program, engine._state.observable._bounds)
    for _ in range(2):
        with torch.inference_mode():
            assert [made.numel() for made in runs.run([torch.zeros(1 << 18)])] == [1 << 18] * 3 + [0] * 2
            with pytest.raises(LayerFailure, match="bytes at once"):
                runs.run([torch.ones(1 << 18)])


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


class _Compared:
    """Counts each step of a run by its operators, and compares that with the contract of its layer."""

    def __init__(self, program: Any) -> None:
        self.known: list[str] = []
        self._program, self._at = program, 0

    def before(self, call: Any, operands: Any) -> None:
        contract = contract_of(call)
        bound = None if contract is None else contract(operands)
        compute = self._program.steps[self._at][0]
        self._at += 1
        account = Account(UNLIMITED)
        with charging(account), account.watching():
            try:
                compute(operands)
            except Exception:  # the run will say so
                return
        if bound is None:
            return
        self.known.append(type(call.layer).__name__)
        size, elements = bound
        assert account.made <= size, (call.name, account.made, bound)
        assert account.elements <= elements, (call.name, account.elements, bound)
        assert not account.has_seen_data, call.name

    def after(self, call: Any, outputs: Any) -> None:
        pass


def _values(engine: Any, seed: int) -> list[torch.Tensor]:
    """Inputs at the sizes that an engine was tuned for, in memory of various orders."""
    torch.manual_seed(seed)
    found = []
    for tensor in engine._state.inputs:
        shape = tuple(engine.get_tensor_shape(tensor.name))
        if -1 in shape:
            shape = tuple(engine.get_tensor_profile_shape(tensor.name, 0)[1])
        value = torch.rand(shape).mul(4).to(plan_fuzzer.CARRIERS[engine.get_tensor_dtype(tensor.name)])
        found.append(value.mT.contiguous().mT if seed % 2 and value.ndim > 1 else value)
    return found


@pytest.mark.parametrize("name", sorted(plan_fuzzer.NETWORKS.keys() - {"integers", "shapes"}))
def test_layers_keep_their_contracts(name: str) -> None:
    engine = trt.Runtime(Logger()).deserialize_cuda_engine(plan_fuzzer.NETWORKS[name]())
    program = engine._state.program
    for seed in range(3):
        compared = _Compared(program)
        with torch.inference_mode():
            program.run_observed(_values(engine, seed), compared)


def _pools(net: Net, x: Any) -> Iterator[Any]:
    """Poolings of all kinds, with paddings that PyTorch has and that it has not."""
    for kind in trt.PoolingType.__members__.values():
        for mode in (
            trt.PaddingMode.EXPLICIT_ROUND_UP,
            trt.PaddingMode.SAME_UPPER,
            trt.PaddingMode.EXPLICIT_ROUND_DOWN,
        ):
            layer = net.network.add_pooling_nd(x, kind, (3, 2))
            layer.pre_padding, layer.post_padding, layer.padding_mode = (1, 2), (3, 1), mode
            layer.stride_nd, layer.average_count_excludes_padding = (2, 1), mode is trt.PaddingMode.SAME_UPPER
            yield layer


def _layers(net: Net, shape: tuple[int, ...]) -> list[Any]:
    """Layers of every kind that has a contract, on an input and constants that broadcast to it."""
    network, x = net.network, net.input("x", shape)
    row = net.constant(*[1] * (len(shape) - 1), shape[-1])
    made = [network.add_elementwise(x, row, op) for op in (E.SUM, E.DIV, E.POW, E.FLOOR_DIV, E.MAX)]
    made += [network.add_activation(x, kind) for kind in (trt.ActivationType.GELU_TANH, trt.ActivationType.SELU)]
    made += [network.add_unary(x, op) for op in (trt.UnaryOperation.EXP, trt.UnaryOperation.SIGN)]
    made += [network.add_cast(x, dtype) for dtype in (trt.int32, trt.float16, trt.bool)]
    made += [
        network.add_reduce(x, op, 1, keep)
        for op in trt.ReduceOperation.__members__.values()
        for keep in (False, True)
        if op is not trt.ReduceOperation.NONE
    ]
    made += [network.add_softmax(x), network.add_identity(x), network.add_shape(x), network.add_parametric_relu(x, row)]
    below = network.add_elementwise(x, row, E.LESS).get_output(0)
    made += [network.add_select(below, x, row), network.add_concatenation([x, x, x])]
    made.append(network.add_normalization(x, row, row, 1 << (len(shape) - 1)))
    moved = network.add_shuffle(x)
    moved.first_transpose = tuple(reversed(range(len(shape))))
    moved.reshape_dims = (-1,)
    made.append(moved)
    made.append(network.add_slice(x, [0] * len(shape), shape, [1] * len(shape)))
    repeated = network.add_slice(row, [0] * len(shape), shape, [0] * (len(shape) - 1) + [1])
    made += [repeated, network.add_slice(x, [extent - 1 for extent in shape], shape, [-1] * len(shape))]
    if len(shape) == 4:
        made += list(_pools(net, x))
    made.append(network.add_gather(x, net.numbers([0] * 9), 0))
    for left, right in ((plan_fuzzer.N, trt.MatrixOperation.TRANSPOSE), (trt.MatrixOperation.TRANSPOSE, plan_fuzzer.N)):
        made.append(network.add_matrix_multiply(x, left, x, right))
    return made


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple), st.booleans())
@example((2, 3, 9, 7), False)
def test_contracts_hold_for_any_extents(shape: tuple[int, ...], transposed: bool) -> None:
    net = Net()
    made = _layers(net, shape)
    for layer in made:
        net.network.mark_output(layer.get_output(0))
    logger = Logger()
    engine = trt.Runtime(logger).deserialize_cuda_engine(net.plan())
    program = engine._state.program
    x = torch.rand(shape[::-1]).permute(*reversed(range(len(shape)))) if transposed else torch.rand(shape)
    compared = _Compared(program)
    with torch.inference_mode():
        program.run_observed([x], compared)
    assert len(set(compared.known)) > 10, compared.known


@pytest.mark.skipif(not has_prepacked_kernels(), reason="this PyTorch packs nothing for this processor")
def test_packed_products_keep_their_contracts(compiled_wins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tactic, "_LEAST_PACKED_WEIGHTS", 0)  # packed however few, and whatever is faster
    net = Net()
    x = net.input("x", (2, 8, 12, 12))
    first = net.network.add_convolution_nd(x, 16, (3, 3), net.random.random((16, 8, 3, 3), np.float32))
    first.padding_nd = (1, 1)
    active = net.network.add_activation(first.get_output(0), trt.ActivationType.RELU).get_output(0)
    second = net.network.add_convolution_nd(active, 16, (3, 3), net.random.random((16, 1, 3, 3), np.float32))
    second.num_groups, second.padding_nd = 16, (1, 1)
    summed = net.network.add_elementwise(second.get_output(0), active, E.SUM).get_output(0)
    rows = net.network.add_shuffle(summed)
    rows.reshape_dims = (32, 144)
    product = net.linear(rows.get_output(0), 300, 144)
    net.network.mark_output(net.network.add_activation(product, trt.ActivationType.RELU).get_output(0))
    plan = net.builder.build_serialized_network(net.network, net.builder.create_builder_config())
    engine = trt.Runtime(Logger()).deserialize_cuda_engine(bytes(plan))
    program = engine._state.executable
    packed = [call for *_, call in program.steps if isinstance(call.compute, PrepackedProduct)]
    assert packed
    compared = _Compared(program)
    with torch.inference_mode():
        program.run_observed(_values(engine, 0), compared)
    assert len(compared.known) >= len(packed)
    assert all(contract_of(call) is not None for call in packed)


@pytest.mark.parametrize("held", [0, 1 << 22])
def test_runs_by_contract_are_charged(held: int) -> None:
    """Room that is taken by contract is given back, but for what lives; what is too large is looked at."""
    net = Net()
    x = y = net.input("x", (256, 256))
    for _ in range(100):
        y = net.network.add_elementwise(y, x, E.SUM).get_output(0)
    engine = trt.Runtime(Logger()).deserialize_cuda_engine(net.plan(y))
    program = engine._state.program
    limits = CallLimits(bytes_alive=1 << 24)
    account = Account(limits, held)
    watcher = _Watcher(program, contracts_of(program), account, None, None)
    with charging(account), torch.inference_mode():
        watcher.run(_values(engine, 0))
    assert account.steps == 100
    assert not watcher.loose
    with pytest.raises(LayerFailure, match="bytes at once"):
        account = Account(replace(limits, bytes_alive=1 << 19), held)  # two tensors
        with charging(account), torch.inference_mode():
            _Watcher(program, contracts_of(program), account, None, None).run(_values(engine, 0))
