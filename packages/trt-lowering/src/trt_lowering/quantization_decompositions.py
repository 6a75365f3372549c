"""What operators of quantization libraries compute, in operators that engines have.

Scales that belong to the model end up in `trt::quantize` and `trt::dequantize`, which become Q/DQ layers; what those
cannot say (unsigned values, zero points, scales computed from data, other widths) becomes arithmetic.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch

from trt_core.modelopt_operators import modelopt_quantize, modelopt_quantize_blocks
from trt_core.quantization import fake_quantize


def fake_quantize_per_tensor(
    self: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> torch.Tensor:
    """Decomposes `aten::fake_quantize_per_tensor_affine`, which quantization-aware training leaves in a model."""
    if zero_point == 0 and (quant_min, quant_max) == (-128, 127):
        return fake_quantize(self, torch.full((), scale, dtype=torch.float32, device=self.device))
    steps = (self * (1.0 / scale)).round() + zero_point
    return (steps.clamp(quant_min, quant_max) - zero_point) * scale


def quantize_per_token(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Decomposes `quantized_decomposed::quantize_per_token`: one scale for each row, in float32."""
    steps = input.to(torch.float32) * scales.to(torch.float32).reciprocal() + zero_points
    return steps.round().clamp(quant_min, quant_max).to(dtype)


def dequantize_per_token(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """Decomposes `quantized_decomposed::dequantize_per_token`; see `quantize_per_token`."""
    steps = input.to(torch.float32) - zero_points.to(torch.float32)
    return (steps * scales.to(torch.float32)).to(output_dtype)


def _from_library(name: str) -> Callable[..., Any]:
    """Returns an operator of `quantized_decomposed` as PyTorch's own module defines it, in other operators."""

    def run(*args: Any, **kwargs: Any) -> Any:
        module = importlib.import_module("torch.ao.quantization.fx._decomposed")
        return getattr(module, name)(*args, **kwargs)

    return run


QUANTIZATION_DECOMPOSITIONS: Final[dict[str, Callable[..., Any]]] = {
    "tensorrt::quantize_op": modelopt_quantize,
    "tensorrt::dynamic_block_quantize_op": modelopt_quantize_blocks,
    "tensorrt::dynamic_block_quantize_op.overload": modelopt_quantize_blocks,
    "aten::fake_quantize_per_tensor_affine": fake_quantize_per_tensor,
    "quantized_decomposed::quantize_per_token": quantize_per_token,
    "quantized_decomposed::dequantize_per_token": dequantize_per_token,
    **{
        f"quantized_decomposed::{operator}": _from_library(function)
        for operator, function in {
            "choose_qparams_per_token": "choose_qparams_per_token",
            "quantize_per_tensor.tensor2": "quantize_per_tensor_tensor2",
            "dequantize_per_tensor.tensor2": "dequantize_per_tensor_tensor2",
            "quantize_per_channel_group": "quantize_per_channel_group",
            "dequantize_per_channel_group": "dequantize_per_channel_group",
        }.items()
    },
}
"""Decompositions by operator."""
