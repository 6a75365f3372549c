"""Engines on a CUDA device: streams, addresses, refit from device memory, graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.memory import wrap_address

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _on_cuda(_on_cpu: None) -> Iterator[None]:
    with trt.device("cuda"):
        yield


@pytest.fixture
def context(builder: trt.Builder, load: Any) -> trt.IExecutionContext:
    """relu(x @ matrix + bias), dynamic batch."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 64))
    matrix = network.add_constant((64, 64), np.eye(64, dtype=np.float32)).get_output(0)
    bias = network.add_constant((1, 64), np.full((1, 64), 0.5, np.float32))
    bias.name = "bias"
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, matrix, none).get_output(0)
    total = network.add_elementwise(product, bias.get_output(0), trt.ElementWiseOperation.SUM)
    relu = network.add_activation(total.get_output(0), trt.ActivationType.RELU).get_output(0)
    relu.name = "y"
    network.mark_output(relu)
    engine = load(network, {"x": ((1, 64), (4, 64), (16, 64))}, flags=[trt.BuilderFlag.REFIT])
    return engine.create_execution_context()


def bind(context: Any, x: torch.Tensor) -> torch.Tensor:
    assert context.set_input_shape("x", tuple(x.shape))
    y = torch.empty(tuple(context.get_tensor_shape("y")), device="cuda")
    assert context.set_tensor_address("x", x.data_ptr())
    assert context.set_tensor_address("y", y.data_ptr())
    return y


def test_wraps_device_memory() -> None:
    source = torch.arange(8, device="cuda", dtype=torch.bfloat16)
    view = wrap_address(source.data_ptr(), (2, 4), torch.bfloat16, source.device)
    assert view.device == source.device
    assert torch.equal(view.reshape(-1), source)


@pytest.mark.parametrize("default_stream", [True, False])
def test_runs_on_the_given_stream(context: Any, default_stream: bool) -> None:
    stream = torch.cuda.default_stream() if default_stream else torch.cuda.Stream()
    for batch in (1, 16, 3):
        with torch.cuda.stream(stream):
            x = torch.randn(batch, 64, device="cuda")
            y = bind(context, x)
            assert context.execute_async_v3(stream.cuda_stream)
        stream.synchronize()
        torch.testing.assert_close(y, torch.relu(x + 0.5), rtol=1e-3, atol=1e-3)


def test_device_addresses_are_aligned(context: Any, logger: Any) -> None:
    memory = torch.empty(1024, device="cuda")
    assert not context.set_tensor_address("x", memory.data_ptr() + 4)
    assert "aligned to 256 bytes" in logger.errors[-1]


def test_refit_from_device_memory(context: Any, logger: Any) -> None:
    x = torch.randn(2, 64, device="cuda")
    y = bind(context, x)
    fresh = torch.full((64,), -1.0, device="cuda")
    refitter = trt.Refitter(context.engine, logger)
    weights = trt.Weights(trt.float32, fresh.data_ptr(), fresh.numel())
    assert refitter.set_named_weights("bias CONSTANT", weights, trt.TensorLocation.DEVICE)
    assert refitter.refit_cuda_engine_async(torch.cuda.current_stream().cuda_stream)
    assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    torch.testing.assert_close(y, torch.relu(x - 1.0), rtol=1e-3, atol=1e-3)
    assert context.engine.serialize() is not None


def test_a_graph_captures_a_run(context: Any) -> None:
    x = torch.randn(4, 64, device="cuda")
    y = bind(context, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    assert context.execute_async_v3(stream.cuda_stream)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        assert context.execute_async_v3(stream.cuda_stream)
    x.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, torch.full_like(y, 2.5), rtol=1e-3, atol=1e-3)


def test_input_consumed_event(context: Any) -> None:
    bind(context, torch.randn(4, 64, device="cuda"))
    event = torch.cuda.Event()
    event.record()
    assert context.set_input_consumed_event(event.cuda_event)
    assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    event.synchronize()


def test_profiler_and_debug_sync(context: Any) -> None:
    class Times(trt.IProfiler):
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.layers: list[str] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.layers.append(layer_name)

    bind(context, torch.randn(4, 64, device="cuda"))
    context.debug_sync = True
    context.profiler = times = Times()
    assert context.execute_async_v3(0)
    assert len(times.layers) == 2
