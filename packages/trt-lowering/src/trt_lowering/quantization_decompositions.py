"""What operators of quantization libraries compute, in operators that engines have.

Scales that belong to the model end up in `trt::quantize` and `trt::dequantize`, which become Q/DQ layers; what those
cannot say (unsigned values, zero points, scales computed from data, other widths) becomes arithmetic.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
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


def scaled_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: Sequence[torch.Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[torch.Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Decomposes `aten::_scaled_mm_v2`, which `torch.nn.functional.scaled_mm` calls, into `aten::_scaled_mm`.

    Raises:
        NotImplementedError: There are scales of blocks, or several levels of them.
    """
    plain = all(list(recipe) in ([0], [1]) for recipe in (recipe_a, recipe_b))  # of tensors, of rows
    if not plain or any((*swizzle_a, *swizzle_b, *contraction_dim)):
        raise NotImplementedError("scales of blocks")
    rows, columns = scale_a[0], scale_b[0]
    if list(recipe_a) == list(recipe_b) == [1]:
        rows, columns = rows.reshape(-1, 1), columns.reshape(1, -1)
    return torch._scaled_mm(
        self, mat2, scale_a=rows, scale_b=columns, bias=bias, out_dtype=out_dtype, use_fast_accum=use_fast_accum
    )


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
    "aten::_scaled_mm_v2": scaled_mm,
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
