"""A linear map in few bits beside the same map in floats, both through an engine: time, and bytes of the plan.

On CUDA float8 (int8 where the GPU has no float8) beside bfloat16; on the CPU int8 beside float32. Activations are
quantized in the engine, so that what quantizing costs is in the time.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import torch

from tools.bench.measure import best_seconds
from tools.bench.report import Row

_BATCHES = (1, 64, 4096)
_CALLS = 20


def rows(batches: tuple[int, ...] = _BATCHES, width: int | None = None) -> list[Row]:
    """Measures each batch; engines are built for it."""
    on_cuda = torch.cuda.is_available()
    width = width or (4096 if on_cuda else 1024)
    trt: Any = importlib.import_module("trt_portable")
    floats = trt.bfloat16 if on_cuda else trt.float32
    has_float8 = on_cuda and torch.cuda.get_device_capability() >= (8, 9)
    codes = trt.fp8 if has_float8 else trt.int8
    found = []
    for batch in batches:
        (seconds, size, name), (float_seconds, float_size, _) = (
            _measure(trt, batch, width, floats, kind) for kind in (codes, None)
        )
        what = f"linear {width}x{width}, {batch} rows, {codes.name}"
        note = f"{name}, {2 * batch * width**2 / seconds / 1e12:.1f} TFLOP/s"
        found.append(Row(what, seconds * 1e6, float_seconds * 1e6, floats.name, unit="us", note=note))
        if batch == batches[0]:
            found.append(Row(f"plan, {codes.name}", size, float_size, floats.name, unit="B"))
    return found


def _measure(trt: Any, batch: int, width: int, floats: Any, codes: Any) -> tuple[float, int, str]:
    """Seconds of a run, bytes of the plan, and the kernel's name of a linear map."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    kept: list[torch.Tensor] = []  # weights belong to whoever made them until the plan is built
    y = _linear(trt, network, network.add_input("x", floats, (batch, width)), floats, codes, kept)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    plan = builder.build_serialized_network(network, config)
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    dtype = torch.bfloat16 if floats is trt.bfloat16 else torch.float32
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory = {name: torch.randn(batch, width, device=device).to(dtype) for name in ("x", "y")}
    for name, tensor in memory.items():
        context.set_tensor_address(name, tensor.data_ptr())
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0

    def calls() -> None:
        for _ in range(_CALLS):
            context.execute_async_v3(stream)
        if device == "cuda":
            torch.cuda.synchronize()

    calls()
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    names = [layer["TacticName"] for layer in json.loads(text)["Layers"] if layer["LayerType"].endswith("PRODUCT")]
    return best_seconds(calls, repeats=10) / _CALLS, len(plan), " ".join(names)


def _linear(trt: Any, network: Any, x: Any, floats: Any, codes: Any, kept: list[torch.Tensor]) -> Any:
    """X @ matrix.T + bias; with Q/DQ around it where there are codes."""
    width = x.shape[1]
    torch.manual_seed(0)
    matrix = torch.randn(width, width) / width**0.5

    def constant(value: torch.Tensor, dtype: Any) -> Any:
        raw = value.contiguous().view(torch.uint8)
        kept.append(raw)
        weights = trt.Weights(dtype, raw.data_ptr(), value.numel())
        return network.add_constant(tuple(value.shape), weights).get_output(0)

    dtype = torch.bfloat16 if floats is trt.bfloat16 else torch.float32
    if codes is None:
        right = constant(matrix.to(dtype), floats)
    else:
        largest = 448.0 if codes is trt.fp8 else 127.0
        scale = matrix.abs().amax() / largest
        steps = matrix / scale
        stored = steps.to(torch.float8_e4m3fn) if codes is trt.fp8 else steps.round().to(torch.int8)
        right = network.add_dequantize(constant(stored, codes), constant(scale.reshape(1), trt.float32), floats)
        right = right.get_output(0)
        step = constant(torch.tensor([4.0 / largest]), trt.float32)
        x = network.add_dequantize(network.add_quantize(x, step, codes).get_output(0), step, floats).get_output(0)
    none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    product = network.add_matrix_multiply(x, none, right, turned).get_output(0)
    bias = constant(torch.randn(1, width).to(dtype), floats)
    return network.add_elementwise(product, bias, trt.ElementWiseOperation.SUM).get_output(0)
