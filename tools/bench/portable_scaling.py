"""The portable provider alone: cost of one enqueue, and growth of builds with the number of layers."""

from __future__ import annotations

import importlib
import itertools
import time
import timeit
from typing import Any

import torch

from tools.bench.measure import peak_bytes
from tools.bench.report import Row

SIZES = (2_500, 5_000, 10_000, 20_000)
_CALLS = 5000


def rows(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Measures enqueues of one layer, then builds of chains of layers beside the smallest one, per layer."""
    found = _enqueues()
    _build(10, dynamic=True)  # what the first build in a process imports
    for dynamic in (False, True):
        base = None
        for size in sizes:
            seconds, memory = _build(size, dynamic=dynamic)
            base = base or seconds / size
            what = f"build {size} layers{', dynamic batch' if dynamic else ''}, per layer"
            note = f"{seconds:.2f} s, {memory / 2**20:.0f} MiB at peak"
            found.append(Row(what, seconds / size * 1e6, base * 1e6, f"{sizes[0]} layers", unit="us", note=note))
    return found


def _enqueues() -> list[Row]:
    """An engine of one ReLU, on the same memory every time, and on other memory every time."""
    trt: Any = importlib.import_module("trt_portable")

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    x = network.add_input("x", trt.float32, (8,))
    y = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    context = trt.Runtime(logger).deserialize_cuda_engine(plan).create_execution_context()
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
    memory = [(torch.ones(128, device=device), torch.empty(128, device=device)) for _ in range(64)]
    addresses = itertools.cycle([(given.data_ptr(), made.data_ptr()) for given, made in memory])
    given = memory[0][0][:8]

    def bind() -> None:
        x_address, y_address = next(addresses)
        context.set_tensor_address("x", x_address)
        context.set_tensor_address("y", y_address)

    def enqueue_elsewhere() -> None:
        bind()
        context.execute_async_v3(stream)

    bind()
    assert context.execute_async_v3(stream)
    peer = _microseconds(lambda: torch.relu(given))
    return [
        Row(what, _microseconds(action), peer, "torch.relu", unit="us", note=device)
        for what, action in (
            ("execute_async_v3, one layer", lambda: context.execute_async_v3(stream)),
            ("the same, all addresses new", enqueue_elsewhere),
        )
    ]


def _microseconds(action: Any) -> float:
    return min(timeit.repeat(action, number=_CALLS, repeat=5)) / _CALLS * 1e6


def _build(size: int, *, dynamic: bool) -> tuple[float, int]:
    """Seconds to define and build a chain of layers, and the peak of memory."""
    trt: Any = importlib.import_module("trt_portable")

    logger = trt.Logger(trt.Logger.ERROR)
    seconds = 0.0

    def build() -> None:
        nonlocal seconds
        start = time.perf_counter()
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        config = builder.create_builder_config()
        tensor = network.add_input("x", trt.float32, (-1 if dynamic else 8, 8))
        if dynamic:
            profile = builder.create_optimization_profile()
            profile.set_shape("x", (1, 8), (8, 8), (16, 8))
            config.add_optimization_profile(profile)
        for index in range(size):
            kind = (trt.UnaryOperation.NEG, trt.UnaryOperation.ABS, trt.UnaryOperation.SIN)[index % 3]
            tensor = network.add_unary(tensor, kind).get_output(0)
        network.mark_output(tensor)
        assert builder.build_serialized_network(network, config) is not None
        seconds = time.perf_counter() - start

    memory = peak_bytes(build)
    return seconds, memory
