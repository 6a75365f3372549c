"""Replay: recorded runs give what direct runs give, whatever changes between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from side_by_side import in_threads

import trt_portable as trt
from trt_portable.execution import replay

pytestmark = pytest.mark.gpu

BATCHES = (1, 16)


@pytest.fixture(autouse=True)
def _on_cuda(_on_cpu: None) -> Iterator[None]:
    with trt.device("cuda"):
        yield


@pytest.fixture
def engine(builder: trt.Builder, load: Any) -> trt.ICudaEngine:
    """relu(x @ matrix + bias) and its row sums; dynamic batch, refittable."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 64))
    generator = np.random.default_rng(0)
    matrix = network.add_constant((64, 64), generator.standard_normal((64, 64)).astype(np.float32) / 8)
    bias = network.add_constant((1, 64), np.full((1, 64), 0.5, np.float32))
    bias.name = "bias"
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, matrix.get_output(0), none).get_output(0)
    total = network.add_elementwise(product, bias.get_output(0), trt.ElementWiseOperation.SUM)
    relu = network.add_activation(total.get_output(0), trt.ActivationType.RELU).get_output(0)
    relu.name = "y"
    network.mark_output(relu)
    sums = network.add_reduce(relu, trt.ReduceOperation.SUM, 2, False).get_output(0)
    sums.name = "sums"
    network.mark_output(sums)
    return load(network, {"x": ((1, 64), (4, 64), (16, 64))}, flags=[trt.BuilderFlag.REFIT])


@pytest.fixture
def expected(engine: Any, monkeypatch: Any) -> Any:
    """What a context without replay computes."""
    monkeypatch.setenv(replay.SWITCH, "0")
    context = engine.create_execution_context()
    monkeypatch.delenv(replay.SWITCH)
    assert context._execution.replay is None
    return lambda x: run(context, x)


def run(context: Any, x: torch.Tensor, outputs: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    y, sums = outputs or (torch.empty_like(x), torch.empty(len(x), device="cuda"))
    assert context.set_input_shape("x", tuple(x.shape))
    for name, tensor in (("x", x), ("y", y), ("sums", sums)):
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    return y, sums


def same(found: Any, wanted: Any) -> None:
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)


def test_records_after_a_warm_up(engine: Any, expected: Any) -> None:
    context = engine.create_execution_context()
    for index in range(4):
        x = torch.randn(4, 64, device="cuda")
        same(run(context, x), expected(x))
        assert len(context._execution.replay._recordings) == (index > 0)


def test_addresses_that_stay_are_recorded_in_place(engine: Any, expected: Any) -> None:
    context = engine.create_execution_context()
    x, outputs = torch.empty(4, 64, device="cuda"), (torch.empty(4, 64, device="cuda"), torch.empty(4, device="cuda"))
    for _ in range(10):
        x.normal_()
        same(run(context, x, outputs), expected(x))
    assert len(context._execution.replay._pinned) == 1
    other = torch.randn(4, 64, device="cuda")
    same(run(context, other), expected(other))


def test_shapes_that_never_settle(engine: Any, expected: Any) -> None:
    context = engine.create_execution_context()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        x = torch.randn(int(torch.randint(1, 17, (), generator=generator)), 64, device="cuda")
        same(run(context, x), expected(x))
    assert 0 < len(context._execution.replay._recordings) <= replay._MAX_SHAPES


def test_a_refit_is_seen(engine: Any, expected: Any, logger: Any) -> None:
    context = engine.create_execution_context()
    x = torch.randn(4, 64, device="cuda")
    outputs = (torch.empty(4, 64, device="cuda"), torch.empty(4, device="cuda"))
    for shift in (0.5, -1.0, 2.0):
        refitter = trt.Refitter(engine, logger)
        assert refitter.set_weights("bias", trt.WeightsRole.CONSTANT, trt.Weights(np.full(64, shift, np.float32)))
        assert refitter.refit_cuda_engine()
        for _ in range(8):
            same(run(context, x, outputs), expected(x))


def test_an_output_over_its_input(engine: Any, expected: Any) -> None:
    context = engine.create_execution_context()
    sums = torch.empty(4, device="cuda")
    memory = torch.empty(4, 64, device="cuda")
    for _ in range(8):
        x = torch.randn(4, 64, device="cuda")
        memory.copy_(x)
        same(run(context, memory, (memory, sums)), expected(x))


def test_inside_a_foreign_capture(engine: Any, expected: Any) -> None:
    context = engine.create_execution_context()
    x = torch.randn(4, 64, device="cuda")
    outputs = (torch.empty(4, 64, device="cuda"), torch.empty(4, device="cuda"))
    for _ in range(3):
        run(context, x, outputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(context, x, outputs)
    for _ in range(2):
        x.normal_()
        graph.replay()
        same(outputs, expected(x))


def test_a_run_on_another_stream_of_a_capture_is_direct(engine: Any, expected: Any) -> None:
    context, other = engine.create_execution_context(), torch.cuda.Stream()
    x = torch.randn(4, 64, device="cuda")
    for _ in range(3):
        run(context, x)
    wanted = expected(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    y, sums = torch.empty_like(x), torch.empty(4, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            run(context, x, (y, sums))
        torch.cuda.current_stream().wait_stream(other)
    graph.replay()
    same((y, sums), wanted)


def test_streams_alternate(engine: Any, expected: Any) -> None:
    context = engine.create_execution_context()
    streams = [torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream()]
    found, wanted = [], []
    for index in range(24):
        x = torch.randn(4, 64, device="cuda")
        wanted.append(expected(x))
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[index % 3]):
            found.append(run(context, x))
    torch.cuda.synchronize()
    for have, want in zip(found, wanted, strict=True):
        same(have, want)


def test_contexts_in_threads(engine: Any, expected: Any) -> None:
    batches = [torch.randn(size, 64, device="cuda") for size in (1, 4, 7, 16)]
    wanted = [expected(x) for x in batches]
    torch.cuda.synchronize()

    def work(_: int) -> None:
        context = engine.create_execution_context()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                for x, want in zip(batches, wanted, strict=True):
                    found = run(context, x)
                    torch.cuda.current_stream().synchronize()
                    same(found, want)

    in_threads(work, range(4))


def test_a_layer_that_waits_for_data_runs_directly(builder: trt.Builder, load: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (8,))
    found = network.add_non_zero(x, trt.int64).get_output(0)
    found.name = "found"
    network.mark_output(found)
    context = load(network).create_execution_context()
    assert context._execution.replay is None


def test_extents_that_are_data_are_recorded(builder: trt.Builder, load: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 4))
    extents = network.add_cast(network.add_shape(x).get_output(0), trt.float32).get_output(0)
    shuffle = network.add_shuffle(extents)
    shuffle.reshape_dims = (2, 1)
    total = network.add_matrix_multiply(
        network.add_slice(x, (0, 0), (1, 2), (1, 1)).get_output(0),
        trt.MatrixOperation.NONE,
        shuffle.get_output(0),
        trt.MatrixOperation.NONE,
    ).get_output(0)
    total.name = "y"
    network.mark_output(total)
    context = load(network, {"x": ((1, 4), (4, 4), (16, 4))}).create_execution_context()
    for batch in (4, 4, 7, 4, 7, 7, 4):
        x, y = torch.randn(batch, 4, device="cuda"), torch.empty(1, 1, device="cuda")
        assert context.set_input_shape("x", (batch, 4))
        assert context.set_tensor_address("x", x.data_ptr()) and context.set_tensor_address("y", y.data_ptr())
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        torch.testing.assert_close(y, x[:1, :2] @ torch.tensor([[float(batch)], [4.0]], device="cuda"))
    assert len(context._execution.replay._recordings) == 2


def test_what_cannot_be_recorded_runs_directly(engine: Any, expected: Any, monkeypatch: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory for a recording")

    monkeypatch.setattr(replay, "_recorded", refuse)
    context = engine.create_execution_context()
    for _ in range(4):
        x = torch.randn(4, 64, device="cuda")
        same(run(context, x), expected(x))
    assert context._execution.replay._is_refused


def test_an_output_allocator_is_asked_in_every_run(engine: Any, expected: Any) -> None:
    class Fresh(trt.IOutputAllocator):
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.asked = 0
            self.memory = torch.empty(0)
            self.shape: tuple[int, ...] = ()

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int | None:
            self.asked += 1
            self.memory = torch.empty(size // 4, device="cuda")
            return self.memory.data_ptr()

        def notify_shape(self, tensor_name: str, shape: trt.Dims) -> None:
            self.shape = tuple(shape)

    context = engine.create_execution_context()
    for _ in range(3):
        run(context, torch.randn(4, 64, device="cuda"))
    allocator = Fresh()
    assert context.set_output_allocator("y", allocator)
    for count in (1, 2, 3):
        x = torch.randn(4, 64, device="cuda")
        _, sums = run(context, x)
        same((allocator.memory.view(4, 64), sums), expected(x))
        assert allocator.asked == count and allocator.shape == (4, 64)


def test_numbers_that_the_host_reads_run_directly(builder: trt.Builder, load: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (8,))
    extents = network.add_input("extents", trt.int64, (2,))
    layer = network.add_shuffle(x)
    layer.set_input(1, extents)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    context = load(network, None, {"extents": ((1, 1), (2, 4), (8, 8))}).create_execution_context()
    assert context._execution.replay is None
    x = torch.randn(8, device="cuda")
    for shape in ((2, 4), (8, 1), (2, 4)):
        y, numbers = torch.empty(shape, device="cuda"), torch.tensor(shape)
        for name, tensor in (("x", x), ("extents", numbers), ("y", y)):
            assert context.set_tensor_address(name, tensor.data_ptr())
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        assert torch.equal(y, x.view(shape))


def test_profilers_see_layers(engine: Any, expected: Any) -> None:
    class Names(trt.IProfiler):
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.seen: list[str] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.seen.append(layer_name)

    context = engine.create_execution_context()
    x = torch.randn(4, 64, device="cuda")
    for _ in range(3):
        run(context, x)
    context.profiler = Names()
    same(run(context, x), expected(x))
    assert context.profiler.seen


@pytest.mark.parametrize("fails", ["in Python", "by waiting for the device"])
def test_a_recording_that_fails_leaves_the_process_as_it_was(fails: str) -> None:
    """Random numbers, memory of the host that is pinned, and memory of the device: PyTorch keeps each per recording."""

    class Waits:
        constants = None

        def run(self, values: Any, targets: Any = ()) -> list[torch.Tensor]:
            (x,) = values
            made = x + torch.rand_like(x)
            if fails == "in Python":
                raise RuntimeError("no")
            return [made * made.sum().item()]

    x = torch.ones(64, device="cuda")
    before = torch.cuda.memory_allocated()
    assert replay.record_run(Waits(), [x], [x + 1], torch.device("cuda", 0)) is None
    pinned = torch.ones(1 << 20, pin_memory=True)
    assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), torch.ones(1 << 20))
    assert torch.rand(64, device="cuda").max() > 0
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 4096


def test_inputs_that_move_are_copied_together(builder: trt.Builder, load: Any) -> None:
    """Six of one type and two of another, at addresses that never come back: two launches, not eight."""
    network = builder.create_network()
    floats = [network.add_input(f"x{at}", trt.float32, (4, 64)) for at in range(6)]
    whole = [network.add_input(f"n{at}", trt.int32, (4, 64)) for at in range(2)]
    for kind in (floats, whole):
        total = kind[0]
        for other in kind[1:]:
            total = network.add_elementwise(total, other, trt.ElementWiseOperation.SUM).get_output(0)
        total.name = "y" if kind is floats else "n"
        network.mark_output(total)
    context = load(network).create_execution_context()
    kept: list[torch.Tensor] = []

    def call() -> None:
        given = {f"x{at}": torch.randn(4, 64, device="cuda") for at in range(6)}
        given |= {f"n{at}": torch.randint(9, (4, 64), dtype=torch.int32, device="cuda") for at in range(2)}
        found = {"y": torch.empty(4, 64, device="cuda"), "n": torch.empty(4, 64, dtype=torch.int32, device="cuda")}
        kept.extend((*given.values(), *found.values()))
        for name, tensor in (given | found).items():
            assert context.set_tensor_address(name, tensor.data_ptr())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        copies = [event.name for event in profiled.events() if event.name in ("aten::copy_", "aten::_foreach_copy_")]
        counts.append((copies.count("aten::copy_"), copies.count("aten::_foreach_copy_")))
        torch.testing.assert_close(found["y"], sum(given[f"x{at}"] for at in range(6)))
        assert torch.equal(found["n"], given["n0"] + given["n1"])

    counts: list[tuple[int, int]] = []
    for _ in range(6):
        call()
    assert context._execution.replay._recordings and not context._execution.replay._pinned
    assert counts[-1] == (2, 2)  # results are copied one by one
