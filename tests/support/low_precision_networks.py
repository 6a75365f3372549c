"""Networks with products of few bits, and what Q/DQ means, for tests of the portable provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

import trt_portable as trt
from trt_portable.dtypes import pack

DEPTH, COLUMNS = 32, 16


def weights_of(tensor: torch.Tensor, dtype: Any) -> Any:
    """Weights that own a copy of a tensor's bytes; 4-bit types are packed."""
    count = tensor.numel()
    flat = tensor.contiguous().reshape(-1)
    raw = (pack(flat, dtype) if dtype in (trt.int4, trt.fp4) else flat.view(torch.uint8)).clone()
    weights = trt.Weights(dtype, raw.data_ptr(), count)
    weights._owner = raw
    return weights


def constant(network: Any, tensor: torch.Tensor, dtype: Any = trt.float32) -> Any:
    return network.add_constant(tuple(tensor.shape), weights_of(tensor, dtype)).get_output(0)


def dequantized(network: Any, codes: Any, scale: torch.Tensor, axis: int = -1, dtype: Any = trt.float32) -> Any:
    layer = network.add_dequantize(codes, constant(network, scale), dtype)
    layer.axis = axis
    return layer.get_output(0)


def through(network: Any, x: Any, scale: float, to_type: Any, dtype: Any = trt.float32) -> Any:
    """Q/DQ with one scale."""
    factor = constant(network, torch.tensor(scale))
    codes = network.add_quantize(x, factor, to_type).get_output(0)
    return network.add_dequantize(codes, factor, dtype).get_output(0)


def rounded(x: torch.Tensor, scale: float, to_type: Any) -> torch.Tensor:
    """What Q/DQ with one scale means."""
    steps = x.float() / scale
    codes = steps.round().clamp(-128, 127) if to_type is trt.int8 else steps.clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.float() * scale


def make_codes(dtype: Any, *shape: int) -> torch.Tensor:
    if dtype is trt.int8:
        return torch.randint(-127, 128, shape, dtype=torch.int8)
    if dtype is trt.int4:
        return torch.randint(-8, 8, shape, dtype=torch.int8)
    if dtype is trt.fp4:
        return torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[torch.randint(0, 8, shape)] * torch.randn(shape).sign()
    return (torch.randn(shape) * 4).to(torch.float8_e4m3fn)


def layers_of(engine: Any) -> list[dict[str, Any]]:
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    found: list[dict[str, Any]] = json.loads(text)["Layers"]
    return found


def linear(codes: torch.Tensor, scale: torch.Tensor, code_type: Any = trt.int8, step: float = 0.05) -> Any:
    """DQ(Q(x)) @ DQ(codes).T with scales per row of the codes."""

    def define(network: Any, x: Any) -> Any:
        matrix = dequantized(network, constant(network, codes, code_type), scale, 0)
        none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        left = through(network, x, step, code_type)
        return network.add_matrix_multiply(left, none, matrix, turned).get_output(0)

    return define


def product_builder(builder: Any, load: Any) -> Callable[..., Any]:
    """Returns what builds `define(network, x)`; rows of x are dynamic, 1 to 8."""

    def build(define: Any, level: int = 0, dtype: Any = trt.float32, lead: tuple[int, ...] = (), **options: Any) -> Any:
        network = builder.create_network()
        x = network.add_input("x", dtype, (*lead, -1, DEPTH))
        y = define(network, x)
        y.name = "y"
        network.mark_output(y)
        config = builder.create_builder_config()
        config.builder_optimization_level = level
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if options.get("cache") is not None:
            config.set_timing_cache(options["cache"], False)
        ranges = {"x": tuple((*lead, rows, DEPTH) for rows in (1, 4, 8))}
        return load(network, ranges, flags=options.get("flags", ()), config=config)

    return build
