"""Weight streaming: which weights stay on the device, how the others come, and that results stay what they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_core.limits import CallLimits
from trt_portable.execution.bounded_runs import BoundedRuns, RunBounds
from trt_portable.execution.weight_streaming import WeightTransfers, resident_weights

NONE, TRANSPOSE = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE


def _weights(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype(np.float32)


def _with_everything(builder: trt.Builder) -> trt.INetworkDefinition:
    """Convolutions both ways, products, a table that two products read, small integers."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 4, 6, 6))
    convolution = network.add_convolution_nd(x, 8, (3, 3), _weights(8, 4, 3, 3), _weights(8))
    convolution.padding_nd = (1, 1)
    relu = network.add_activation(convolution.get_output(0), trt.ActivationType.RELU)
    back = network.add_deconvolution_nd(relu.get_output(0), 4, (3, 3), _weights(8, 4, 3, 3, seed=1), trt.Weights())
    back.padding_nd = (1, 1)
    table = network.add_constant((1, 1, 6, 6), _weights(1, 1, 6, 6, seed=2))
    table.name = "table"
    first = network.add_matrix_multiply(back.get_output(0), NONE, table.get_output(0), NONE)
    last = network.add_matrix_multiply(first.get_output(0), NONE, table.get_output(0), TRANSPOSE)
    bias = network.add_constant((1, 1, 1, 6), _weights(1, 1, 1, 6, seed=3))
    total = network.add_elementwise(last.get_output(0), bias.get_output(0), trt.ElementWiseOperation.SUM)
    order = network.add_constant((3,), np.array([2, 0, 1], np.int64))
    picked = network.add_gather(total.get_output(0), order.get_output(0), 1).get_output(0)
    picked.name = "y"
    network.mark_output(picked)
    return network


BATCH = {"x": ((1, 4, 6, 6), (2, 4, 6, 6), (4, 4, 6, 6))}


@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    budget=st.integers(0, 60),
)
@settings(max_examples=60, deadline=None)
def test_what_stays_fits_the_budget_and_nothing_else_would(sizes: list[int], budget: int) -> None:
    named = {f"w{index}": size for index, size in enumerate(sizes)}
    resident = resident_weights(named, budget)
    used = sum(named[name] for name in resident)
    away = [size for name, size in named.items() if name not in resident]
    assert used <= budget
    assert all(used + size > budget for size in away)


def test_of_equal_weights_every_so_many_stays() -> None:
    sizes = {f"w{index}": 10 for index in range(8)} | {"bias": 1}
    assert resident_weights(sizes, 41) == {"bias", "w0", "w2", "w4", "w6"}


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=10))
@settings(max_examples=30, deadline=None)
def test_transfers_come_in_order_and_keep_to_their_memory(sizes: list[int]) -> None:
    batches = [(torch.full((size,), index, dtype=torch.uint8),) for index, size in enumerate(sizes)]
    most = max(one + other for one, other in zip(sizes, [*sizes[1:], 0], strict=True))
    transfers = WeightTransfers(batches, most, torch.device("cpu"), None)
    for batch in batches:
        taken = transfers.take()
        assert torch.equal(taken[0], batch[0])
        assert transfers._bytes <= most
        transfers.release(taken)
    transfers.finish()
    assert transfers._bytes == 0


def test_a_program_with_streamed_weights_computes_the_same(builder: trt.Builder, load: Any) -> None:
    engine = load(_with_everything(builder), BATCH, flags=[trt.BuilderFlag.WEIGHT_STREAMING])
    state = engine._state
    program = state.streaming.program
    by_identity = {(id(state.layers[slot.layer]), slot.role): state.layers[slot.layer] for slot in state.weights.slots}
    uses = [(by_identity[use], use[1]) for use in program.streamable]
    kinds = sorted((layer.type.name, role) for layer, role in uses)
    assert kinds == [
        ("CONSTANT", "CONSTANT"),
        ("CONSTANT", "CONSTANT"),
        ("CONVOLUTION", "KERNEL"),
        ("DECONVOLUTION", "KERNEL"),
    ]
    x = torch.randn(3, 4, 6, 6)
    (expected,) = state.program.run([x])
    for chosen in ([], uses[:1], uses[1:], uses):
        program.stream(chosen)
        program.load_constants()
        (found,) = program.run([x])
        assert torch.equal(found, expected)


def test_runs_of_strangers_take_streamed_weights_too(
    builder: trt.Builder, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first run is watched, later ones are not; each brings every weight that lies on the host."""
    state = load(_with_everything(builder), BATCH, flags=[trt.BuilderFlag.WEIGHT_STREAMING])._state
    program, taken = state.streaming.program, []
    take = WeightTransfers.take
    monkeypatch.setattr(WeightTransfers, "take", lambda transfers: taken.append(take(transfers)) or taken[-1])
    by_identity = {(id(state.layers[slot.layer]), slot.role): state.layers[slot.layer] for slot in state.weights.slots}
    program.stream([(by_identity[use], use[1]) for use in program.streamable])
    program.load_constants()
    runs = BoundedRuns(program, RunBounds(CallLimits(), is_exempt=lambda: False, held=1 << 20))
    x = torch.randn(3, 4, 6, 6)
    (expected,) = state.program.run([x])
    for run in range(1, 4):
        (found,) = runs.run([x])
        assert torch.equal(found, expected)
        assert len(taken) == 4 * run


def test_scratch_memory_is_what_two_layers_read(builder: trt.Builder, load: Any) -> None:
    streaming = load(_with_everything(builder), BATCH, flags=[trt.BuilderFlag.WEIGHT_STREAMING])._state.streaming
    kernel, table = 8 * 4 * 9 * 4, 6 * 6 * 4
    assert streaming.streamable_bytes == 2 * kernel + table + 6 * 4
    assert streaming.scratch_bytes(0) == 2 * kernel
    assert streaming.scratch_bytes(table + 6 * 4) == 2 * kernel
    assert streaming.scratch_bytes(table + 6 * 4 + kernel) == kernel
    assert streaming.scratch_bytes(streaming.streamable_bytes) == 0


# On a device ----------------------------------------------------------------------------------------


WIDTH, DEPTH = 1024, 16
MATRIX = WIDTH * WIDTH * 4


@pytest.fixture
def on_cuda(_on_cpu: None) -> Iterator[None]:
    with trt.device("cuda"):
        yield


def _stack(builder: trt.Builder) -> trt.INetworkDefinition:
    """Sixteen products with matrices of 4 MiB."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, WIDTH))
    for index in range(DEPTH):
        matrix = network.add_constant((WIDTH, WIDTH), _weights(WIDTH, WIDTH, seed=index) / 8)
        matrix.name = f"matrix{index}"
        product = network.add_matrix_multiply(x, NONE, matrix.get_output(0), NONE).get_output(0)
        x = network.add_activation(product, trt.ActivationType.TANH).get_output(0)
    x.name = "y"
    network.mark_output(x)
    return network


STACK = {"x": ((1, WIDTH), (4, WIDTH), (8, WIDTH))}


def _run(context: trt.IExecutionContext, x: torch.Tensor, stream: torch.cuda.Stream | None = None) -> torch.Tensor:
    assert context.set_input_shape("x", tuple(x.shape))
    y = torch.empty(tuple(context.get_tensor_shape("y")), device="cuda")
    assert context.set_tensor_address("x", x.data_ptr())
    assert context.set_tensor_address("y", y.data_ptr())
    used = torch.cuda.current_stream() if stream is None else stream
    assert context.execute_async_v3(used.cuda_stream)
    used.synchronize()
    return y


@pytest.fixture
def stack_plan(builder: trt.Builder, on_cuda: None) -> Any:
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    for flag in (trt.BuilderFlag.WEIGHT_STREAMING, trt.BuilderFlag.REFIT):
        config.set_flag(flag)
    profile = builder.create_optimization_profile()
    profile.set_shape("x", *STACK["x"])
    config.add_optimization_profile(profile)
    return builder.build_serialized_network(_stack(builder), config)


def _loaded(plan: Any, logger: Any, budget: int | None = None) -> Any:
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert engine is not None, logger.errors
    if budget is not None:
        engine.weight_streaming_budget_v2 = budget
        assert engine.weight_streaming_budget_v2 == budget
    return engine


@pytest.mark.gpu
@pytest.mark.parametrize("matrices", [0, 5, 8, 15])
def test_a_budget_bounds_the_memory_of_the_device(stack_plan: Any, logger: Any, matrices: int) -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    x = torch.randn(4, WIDTH, device="cuda")
    _ = x @ x.mT  # the workspace of cuBLAS is there for good from here on
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine = _loaded(stack_plan, logger, matrices * MATRIX)
    assert engine.streamable_weights_size == DEPTH * MATRIX
    assert engine.weight_streaming_scratch_memory_size in (MATRIX, 2 * MATRIX)
    context = engine.create_execution_context()
    for _ in range(4):
        _run(context, x)
    room = engine.weight_streaming_scratch_memory_size + (2 << 20)  # activations
    assert torch.cuda.max_memory_allocated() - before <= matrices * MATRIX + room
    del context, engine


@pytest.mark.gpu
@pytest.mark.parametrize("matrices", [0, 1, 7, 15])
def test_streamed_engines_compute_the_same(stack_plan: Any, logger: Any, matrices: int) -> None:
    full = _loaded(stack_plan, logger).create_execution_context()
    streamed = _loaded(stack_plan, logger, matrices * MATRIX).create_execution_context()
    for batch in (1, 8, 3, 8, 1):
        x = torch.randn(batch, WIDTH, device="cuda")
        torch.testing.assert_close(_run(streamed, x), _run(full, x), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_every_kind_of_weights_is_streamed(builder: trt.Builder, load: Any, on_cuda: None, logger: Any) -> None:
    engine = load(_with_everything(builder), BATCH, flags=[trt.BuilderFlag.WEIGHT_STREAMING])
    full = engine.create_execution_context()
    x = torch.randn(4, 4, 6, 6, device="cuda")
    expected = _run(full, x)
    del full
    for budget in (0, 200, 1500):
        engine.weight_streaming_budget_v2 = budget
        torch.testing.assert_close(_run(engine.create_execution_context(), x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_budget_changes_between_contexts(stack_plan: Any, logger: Any) -> None:
    engine = _loaded(stack_plan, logger)
    x = torch.randn(2, WIDTH, device="cuda")
    expected = _run(engine.create_execution_context(), x)
    held = torch.cuda.memory_allocated()
    for matrices in (0, 8, DEPTH, 3):
        engine.weight_streaming_budget_v2 = matrices * MATRIX
        context = engine.create_execution_context()
        torch.testing.assert_close(_run(context, x), expected, rtol=1e-3, atol=1e-3)
        torch.cuda.synchronize()
        saved = held - torch.cuda.memory_allocated()
        assert abs(saved - (DEPTH - matrices) * MATRIX) < MATRIX
        del context


@pytest.mark.gpu
def test_threads_share_a_streamed_engine(stack_plan: Any, logger: Any) -> None:
    full = _loaded(stack_plan, logger).create_execution_context()
    engine = _loaded(stack_plan, logger, 4 * MATRIX)
    inputs = [torch.randn(1 + index, WIDTH, device="cuda") for index in range(4)]
    expected = [_run(full, x) for x in inputs]
    barrier = threading.Barrier(4)

    def work(index: int) -> bool:
        with trt.device("cuda"):
            context, stream = engine.create_execution_context(), torch.cuda.Stream()
            barrier.wait()
            with torch.cuda.stream(stream):
                return all(
                    torch.allclose(_run(context, inputs[index], stream), expected[index], rtol=1e-3, atol=1e-3)
                    for _ in range(25)
                )

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [True] * 4


@pytest.mark.gpu
def test_a_refit_reaches_weights_wherever_they_lie(stack_plan: Any, logger: Any) -> None:
    engine = _loaded(stack_plan, logger, 8 * MATRIX)
    context = engine.create_execution_context()
    x = torch.randn(2, WIDTH, device="cuda")
    _run(context, x)
    refitter = trt.Refitter(engine, logger)
    fresh: Sequence[np.ndarray] = [_weights(WIDTH, WIDTH, seed=100 + index) / 8 for index in range(DEPTH)]
    for index, matrix in enumerate(fresh):
        assert refitter.set_weights(f"matrix{index}", trt.WeightsRole.CONSTANT, trt.Weights(matrix))
    assert refitter.refit_cuda_engine()
    expected = x
    for matrix in fresh:
        expected = torch.tanh(expected @ torch.from_numpy(matrix).cuda())
    torch.testing.assert_close(_run(context, x), expected, rtol=1e-3, atol=1e-3)
    again = _loaded(engine.serialize(), logger, 0)
    torch.testing.assert_close(_run(again.create_execution_context(), x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_run_with_transfers_can_be_captured(stack_plan: Any, logger: Any) -> None:
    context = _loaded(stack_plan, logger, 0).create_execution_context()
    x = torch.randn(2, WIDTH, device="cuda")
    expected = _run(context, x)
    y = torch.empty_like(expected)
    context.set_tensor_address("y", y.data_ptr())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("free_mib", [0, 1, 24, 48, 256])
def test_the_automatic_budget_is_what_fits(
    stack_plan: Any, logger: Any, monkeypatch: pytest.MonkeyPatch, free_mib: int
) -> None:
    engine = _loaded(stack_plan, logger)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_mib << 20, 1 << 37))
    monkeypatch.setattr(torch.cuda, "memory_reserved", torch.cuda.memory_allocated)
    budget = engine.get_weight_streaming_automatic_budget()
    if free_mib == 256:
        assert budget == engine.streamable_weights_size
    else:
        engine.weight_streaming_budget_v2 = budget
        assert not budget or budget + engine.weight_streaming_scratch_memory_size <= free_mib << 20
        assert budget > 0 or free_mib < 24
