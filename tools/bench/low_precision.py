"""A linear map in few bits beside the same map in floats, both through an engine: time, and bytes of the plan.

On CUDA float8 (int8 where the GPU has no float8) beside bfloat16; on the CPU int8 beside float32. Activations are
quantized in the engine, so that what quantizing costs is in the time. On CUDA also weights alone in every format beside
bfloat16: our kernels, recorded, on matrices that no cache holds.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F

from tools.bench.measure import best_seconds
from tools.bench.report import Row
from trt_portable.dtypes import FP4_VALUES

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
    return found + (weight_rows() if on_cuda else [])


_NF4: Final = (
    *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
FORMATS: Final[Mapping[str, tuple[str, int, bool, tuple[float, ...]]]] = {
    "int8": ("int8", 0, False, ()),
    "float8": ("fp8", 0, False, ()),
    "int4, groups of 128": ("int4", 128, False, ()),
    "int4, groups of 32": ("int4", 32, False, ()),
    "int4 with zero points, groups of 128": ("int4", 128, True, ()),
    "int4 with zero points, groups of 32": ("int4", 32, True, ()),
    "NF4, groups of 64": ("int4", 64, False, _NF4),
    "MXFP4": ("fp4", 32, False, ()),
    "NVFP4": ("fp4", 16, False, ()),
    "MXFP8": ("fp8", 32, False, ()),
}
"""Type of the codes, numbers that share a scale (0 for a whole row), whether there are offsets, and levels."""


def weight_rows(columns: int = 28672, depth: int = 4096, batches: tuple[int, ...] = (1, 8, 512)) -> list[Row]:
    """Measures products with weights of few bits: a few rows by our kernel, many by decoding and cuBLAS."""
    decoding: Any = importlib.import_module("trt_portable.builder.inductor.decoding")
    products: Any = importlib.import_module("trt_portable.kernels.low_precision_products")
    trt: Any = importlib.import_module("trt_portable")
    decoding.teach_decoding_operators()
    few, half = products.PRODUCT_KERNELS["few_rows"], trt.bfloat16
    found = []
    for batch in batches:
        x = torch.randn(batch, depth, device="cuda", dtype=torch.bfloat16)
        matrix = torch.randn(columns, depth, device="cuda", dtype=torch.bfloat16)
        floats = min(_replayed(way, matrix, x) for way in (F.linear, decoding.multiply)[: 1 + (batch <= 16)])
        for name, (kind, group, has_offset, levels) in FORMATS.items():
            blocks = (columns, depth // group if group else 1)
            form = products.ProductForm(
                columns, depth, getattr(trt, kind), half, half, blocks, has_offset=has_offset, levels=levels
            )
            scale = torch.rand(*((2,) if has_offset else ()), *blocks, device="cuda") / 64
            matrix, scale = few.prepare(_codes(kind, columns, depth), scale, form)
            by_codes = functools.partial(few.compute, scale=scale, form=form, finish=products.Finish(half))
            seconds = _replayed(by_codes, matrix, x)
            wanted = x.float() @ few.decoded(matrix, scale, form, torch.float32).t()
            error = float((by_codes(x, matrix).float() - wanted).norm() / wanted.norm())
            rate = f"{(matrix.nbytes + scale.nbytes) / seconds / 1e12:.2f} TB/s, error {error:.4f}"
            what = f"{name} weights, {batch} rows, {columns}x{depth}"
            found.append(Row(what, seconds * 1e6, floats * 1e6, "bfloat16", unit="us", note=rate))
    return found


def _codes(kind: str, *shape: int) -> torch.Tensor:
    """Codes of a type in its carrier."""
    if kind == "fp8":
        return torch.randn(shape, device="cuda").to(torch.float8_e4m3fn)
    if kind == "fp4":
        return torch.tensor(FP4_VALUES, device="cuda")[torch.randint(0, 16, shape, device="cuda")]
    high = 127 if kind == "int8" else 8
    return torch.randint(-high, high, shape, device="cuda", dtype=torch.int8)


def _replayed(run: Callable[[torch.Tensor, torch.Tensor], object], matrix: torch.Tensor, x: torch.Tensor) -> float:
    """Seconds of a product in a recording of products with copies of a matrix, more than a cache holds."""
    copies = [matrix, *(matrix.clone() for _ in range(min(63, (160 << 20) // matrix.nbytes)))]
    run(x, matrix)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for copy in copies:
            run(x, copy)

    def replays() -> None:
        for _ in range(8):
            graph.replay()
        torch.cuda.synchronize()

    replays()
    return best_seconds(replays, repeats=4) / 8 / len(copies)


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
