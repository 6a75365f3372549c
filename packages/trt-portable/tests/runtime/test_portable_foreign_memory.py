"""Engines on memory and streams that PyTorch never saw, enqueued without waiting, and written where they should be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_core.device import driver
from trt_portable.builder.inductor.tactic import Inductor
from trt_portable.execution import replay
from trt_portable.execution.launch_list import SpecializedProgram

pytestmark = pytest.mark.gpu

WIDTH, BATCH = 64, 8
_LONG_CYCLES = 2_000_000_000
"""About a second of a busy device."""
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaFree")


@pytest.fixture(autouse=True)
def _on_cuda(_on_cpu: None) -> Iterator[None]:
    torch.cuda.init()
    with trt.device("cuda"):
        yield


def _engine(builder: Any, load: Any, layers: int = 2) -> Any:
    """relu(x @ matrix + 0.5), several times; batches of 1 to 16."""
    network = builder.create_network()
    y = network.add_input("x", trt.float32, (-1, WIDTH))
    generator = np.random.default_rng(0)
    none = trt.MatrixOperation.NONE
    for _ in range(layers):
        values = generator.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
        matrix = network.add_constant(values.shape, values).get_output(0)
        bias = network.add_constant((1, WIDTH), np.full((1, WIDTH), 0.5, np.float32)).get_output(0)
        y = network.add_matrix_multiply(y, none, matrix, none).get_output(0)
        y = network.add_elementwise(y, bias, trt.ElementWiseOperation.SUM).get_output(0)
        y = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    return load(network, {"x": ((1, WIDTH), (BATCH, WIDTH), (16, WIDTH))})


def _wanted(engine: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        (found,) = engine._state.program.run([torch.from_numpy(x).cuda()])
    return found.cpu().numpy()


class DriverMemory:
    """Device memory from the driver, as another library would own it; speaks ``__cuda_array_interface__``."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.nbytes = shape, 4 * int(np.prod(shape))
        self._address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(self.nbytes))

    def __del__(self) -> None:
        driver().cuMemFree_v2(self._address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": "<f4", "data": (self._address.value, False), "version": 3}

    def write(self, values: np.ndarray[Any, Any], stream: Any) -> None:
        source = np.ascontiguousarray(values, np.float32)
        _call(
            "cuMemcpyHtoDAsync_v2",
            self._address,
            source.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(self.nbytes),
            stream,
        )
        _call("cuStreamSynchronize", stream)

    def read(self, stream: Any) -> np.ndarray[Any, Any]:
        found = np.empty(self.shape, np.float32)
        _call(
            "cuMemcpyDtoHAsync_v2",
            found.ctypes.data_as(ctypes.c_void_p),
            self._address,
            ctypes.c_size_t(self.nbytes),
            stream,
        )
        _call("cuStreamSynchronize", stream)
        return found


def _call(name: str, *arguments: Any) -> None:
    assert getattr(driver(), name)(*arguments) == 0, name


def _bind(context: Any, x: Any, y: Any) -> None:
    """Binds what speaks ``__cuda_array_interface__``."""
    assert context.set_input_shape("x", tuple(x.__cuda_array_interface__["shape"]))
    for name, array in (("x", x), ("y", y)):
        assert context.set_tensor_address(name, array.__cuda_array_interface__["data"][0])


def test_memory_and_stream_of_the_driver(builder: Any, load: Any) -> None:
    torch.ones(1, device="cuda")  # the driver's calls below need a current context
    engine = _engine(builder, load)
    context = engine.create_execution_context()
    stream = ctypes.c_void_p()
    _call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    generator = np.random.default_rng(1)
    try:
        x, y = DriverMemory((BATCH, WIDTH)), DriverMemory((BATCH, WIDTH))
        _bind(context, x, y)
        for _ in range(8):  # direct, recorded, recorded at these addresses
            values = generator.standard_normal(x.shape).astype(np.float32)
            x.write(values, stream)
            assert context.execute_async_v3(stream.value)
            np.testing.assert_allclose(y.read(stream), _wanted(engine, values), rtol=1e-3, atol=1e-3)
        assert context._execution.replay._pinned
    finally:
        driver().cuStreamDestroy_v2(stream)


def test_arrays_and_streams_of_cupy(builder: Any, load: Any) -> None:
    cupy = pytest.importorskip("cupy")
    engine = _engine(builder, load)
    context = engine.create_execution_context()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(8):
            x = cupy.random.standard_normal((BATCH, WIDTH), dtype=cupy.float32)
            y = cupy.full((BATCH, WIDTH), cupy.nan, dtype=cupy.float32)
            _bind(context, x, y)
            assert context.execute_async_v3(stream.ptr)
            total = y + 1  # cupy's work on the same stream follows the engine's
            stream.synchronize()
            wanted = _wanted(engine, cupy.asnumpy(x))
            np.testing.assert_allclose(cupy.asnumpy(y), wanted, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(cupy.asnumpy(total), wanted + 1, rtol=1e-3, atol=1e-3)


@pytest.fixture(params=["direct", "replayed", "compiled"])
def enqueue(request: Any, builder: Any, load: Any, monkeypatch: Any) -> Callable[[], bool]:
    """A run on the current stream that was made several times before."""
    if request.param == "compiled":
        monkeypatch.setattr(Inductor, "LEAST_STEPS", 4)
        request.getfixturevalue("compiled_wins")
    if request.param == "direct":
        monkeypatch.setenv(replay.SWITCH, "0")
    engine = _engine(builder, load)
    assert isinstance(engine._state.executable, SpecializedProgram) is (request.param == "compiled")
    context = engine.create_execution_context()
    assert (context._execution.replay is None) is (request.param == "direct")
    x, y = torch.randn(BATCH, WIDTH, device="cuda"), torch.empty(BATCH, WIDTH, device="cuda")
    context.set_input_shape("x", tuple(x.shape))
    context.set_tensor_address("x", x.data_ptr())
    context.set_tensor_address("y", y.data_ptr())

    def run() -> bool:
        done: bool = context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        return done

    run._keep = (engine, context, x, y)  # type: ignore[attr-defined]
    for _ in range(8):
        assert run()
    torch.cuda.synchronize()
    return run


def test_an_enqueue_does_not_wait_for_the_device(enqueue: Callable[[], bool]) -> None:
    busy = torch.cuda.Event()
    torch.cuda._sleep(_LONG_CYCLES)
    busy.record()
    for _ in range(10):
        assert enqueue()
    assert not busy.query(), "the host waited for what was enqueued before"
    torch.cuda.synchronize()


def test_an_enqueue_asks_pytorch_for_nothing_that_waits(enqueue: Callable[[], bool]) -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert all(enqueue() for _ in range(4))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _profiled(enqueue: Callable[[], bool]) -> tuple[set[str], list[str]]:
    """Calls of CUDA's runtime, and what ran on the device, during one enqueue."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        enqueue()  # the profiler's own start falls on the first run
        torch.cuda.synchronize()
        with torch.profiler.record_function("the enqueue"):
            enqueue()
        torch.cuda.synchronize()
    events = profile.events()
    (mark,) = [event for event in events if event.name == "the enqueue" and event.device_type.name == "CPU"]
    inside = [e for e in events if mark.time_range.start <= e.time_range.start <= mark.time_range.end]
    host = {event.name for event in inside if event.device_type.name == "CPU"}
    device = [e.name for e in events if e.device_type.name == "CUDA" and e.name != "the enqueue"]
    return host, device


def test_no_call_of_the_runtime_waits(enqueue: Callable[[], bool]) -> None:
    host, device = _profiled(enqueue)
    assert device, "the profiler saw nothing run"
    assert not host.intersection(_WAITS)


def test_a_compiled_engine_writes_its_output_in_place(
    builder: Any, load: Any, compiled_wins: None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
    network = builder.create_network()
    y = network.add_input("x", trt.float32, (1 << 16,))
    for kind in (trt.ActivationType.RELU, trt.ActivationType.TANH):
        y = network.add_activation(y, kind).get_output(0)
    y.name = "y"
    network.mark_output(y)
    engine = load(network)
    assert isinstance(engine._state.executable, SpecializedProgram)
    context = engine.create_execution_context()
    x, y = torch.randn(1 << 16, device="cuda"), torch.empty(1 << 16, device="cuda")
    context.set_tensor_address("x", x.data_ptr())
    context.set_tensor_address("y", y.data_ptr())
    run = lambda: context.execute_async_v3(torch.cuda.current_stream().cuda_stream)  # noqa: E731
    for _ in range(8):
        assert run()
    assert context._execution.replay._pinned
    x.normal_()
    y.zero_()
    torch.cuda.synchronize()
    _, device = _profiled(run)
    assert len(device) == 2, f"two runs of one kernel each, and no copies: {device}"
    torch.testing.assert_close(y, torch.tanh(torch.relu(x)))


def test_memory_that_an_input_shares_is_written_last(builder: Any, load: Any) -> None:
    """An output that begins within an input is not written before the input was read."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (1024,))
    flipped = network.add_slice(x, (1023,), (1024,), (-1,)).get_output(0)
    y = network.add_activation(flipped, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    context = load(network).create_execution_context()
    memory = torch.empty(2048, device="cuda")
    context.set_tensor_address("x", memory.data_ptr())
    context.set_tensor_address("y", memory.data_ptr() + 4 * 512)
    for _ in range(8):
        values = torch.randn(1024, device="cuda")
        memory[:1024] = values
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        torch.testing.assert_close(memory[512:1536], torch.relu(values.flip(0)))
