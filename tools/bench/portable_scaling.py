"""The portable provider alone: cost of one enqueue, and growth of the build with the number of layers."""

from __future__ import annotations

import importlib
import time
import timeit
from typing import Any

import torch

from tools.bench.measure import peak_bytes
from tools.bench.report import Row

SIZES = (1_000, 2_500, 5_000, 10_000)


def rows(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Measures an enqueue of one layer, then builds of chains of layers beside the smallest one, per layer."""
    found = [_enqueue()]
    base = None
    for size in sizes:
        seconds, memory = _build(size)
        base = base or seconds / size
        note = f"{memory / 2**20:.0f} MiB at peak"
        found.append(Row(f"build {size} layers, per layer", seconds / size, base, f"{sizes[0]} layers", note=note))
    return found


def _enqueue(calls: int = 5000) -> Row:
    trt: Any = importlib.import_module("trt_portable")

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    x = network.add_input("x", trt.float32, (8,))
    y = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    context = trt.Runtime(logger).deserialize_cuda_engine(plan).create_execution_context()
    given, made = torch.ones(8), torch.empty(8)
    context.set_tensor_address("x", given.data_ptr())
    context.set_tensor_address("y", made.data_ptr())
    context.execute_async_v3(0)
    seconds = min(timeit.repeat(lambda: context.execute_async_v3(0), number=calls, repeat=5)) / calls
    peer = min(timeit.repeat(lambda: torch.relu(given), number=calls, repeat=5)) / calls
    return Row("execute_async_v3, one layer", seconds * 1e6, peer * 1e6, "torch.relu", unit="us")


def _build(size: int) -> tuple[float, int]:
    trt: Any = importlib.import_module("trt_portable")

    logger = trt.Logger(trt.Logger.ERROR)
    seconds = 0.0

    def build() -> None:
        nonlocal seconds
        start = time.perf_counter()
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        tensor = network.add_input("x", trt.float32, (8, 8))
        for index in range(size):
            kind = (trt.UnaryOperation.NEG, trt.UnaryOperation.ABS, trt.UnaryOperation.SIN)[index % 3]
            tensor = network.add_unary(tensor, kind).get_output(0)
        network.mark_output(tensor)
        assert builder.build_serialized_network(network, builder.create_builder_config()) is not None
        seconds = time.perf_counter() - start

    memory = peak_bytes(build)
    return seconds, memory
