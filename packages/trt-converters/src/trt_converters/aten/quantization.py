"""Quantization as `torch.ao` writes it, as Q/DQ layers where those express it, else as arithmetic and casts."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from trt_converters.aten.extremes import clip
from trt_converters.call import Call
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import binary, cast, unary
from trt_converters.registry import converter
from trt_core import Reason, Verdict, to_trt

_LAYER_TYPES = {torch.int8: -128, torch.float8_e4m3fn: -448}
_INTEGER_TYPES = (torch.int8, torch.uint8, torch.int32)


def _operators() -> Any:
    """Returns the namespace of the operators, which exists once PyTorch's module for them is imported."""
    try:
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    except ImportError:  # a PyTorch that no longer has it: then no graph holds these operators
        return None
    return torch.ops.quantized_decomposed


def _known_parameters(call: Call) -> Verdict | None:
    """Scales and zero points belong to the model; types are ones that layers or casts reach."""
    for name in ("scale", "scales", "zero_point", "zero_points"):
        if name in call.bound and not call.is_constant(name):
            return Verdict.refuse(Reason.NOT_CONSTANT, f"{name} is computed by the graph")
    dtype = call["dtype"]
    if dtype not in (*_LAYER_TYPES, *_INTEGER_TYPES):
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"no layer quantizes to {dtype}")
    if dtype is torch.float8_e4m3fn and "scales" in call.bound:
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, "float8 has one scale per tensor")
    return None


def _layer_takes(dtype: torch.dtype, zero_point: torch.Tensor, value: Operand) -> bool:
    return dtype in _LAYER_TYPES and rank_of(value) > 0 and not bool(zero_point.any())


def _quantize(
    ctx: ConversionContext,
    value: Operand,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    bounds: tuple[int, int],
    dtype: torch.dtype,
) -> Any:
    """Returns clamp(round(value / scale) + zero_point, *bounds); scale and zero point are 0-d, or broadcast."""
    value = cast(ctx, value, torch.float32)
    low, high = bounds
    if _layer_takes(dtype, zero_point, value) and scale.numel() == 1:
        if dtype is torch.int8 and (low, high) != (-128, 127):
            value = clip(ctx, value, low * float(scale), high * float(scale))
        layer = ctx.network.add_quantize(ctx.tensor(value), ctx.tensor(scale.reshape(())), to_trt(dtype))
        return ctx.output(layer, "quantize")
    steps = unary(ctx, "ROUND", binary(ctx, "PROD", value, scale.reciprocal()))
    return cast(ctx, clip(ctx, binary(ctx, "SUM", steps, zero_point.float()), low, high), dtype)


def _dequantize(
    ctx: ConversionContext, value: Operand, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None
) -> Any:
    """Returns (value - zero_point) * scale; scale and zero point are 0-d, or (C,) along an axis."""
    per_channel = axis is not None
    # scales per channel are for weights: constants that stay quantized in the engine
    if _layer_takes(dtype_of(value), zero_point, value) and (not per_channel or isinstance(value, torch.Tensor)):
        layer = ctx.network.add_dequantize(ctx.tensor(value), ctx.tensor(scale), to_trt(torch.float32))
        if layer is not None and axis is not None:
            layer.axis = axis
        return cast(ctx, ctx.output(layer, "dequantize"), ctx.result_dtype)
    scale, zero_point = (_along(part, axis, rank_of(value)) for part in (scale, zero_point))
    moved = binary(ctx, "SUB", cast(ctx, value, torch.float32), zero_point.float())
    return cast(ctx, binary(ctx, "PROD", moved, scale), ctx.result_dtype)


def _along(parameter: torch.Tensor, axis: int | None, rank: int) -> torch.Tensor:
    """Returns a parameter per channel as a tensor that broadcasts."""
    if axis is None:
        return parameter
    return parameter.reshape([-1 if index == axis else 1 for index in range(rank)])


def _scalar(value: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.as_tensor(value, dtype=dtype).reshape(())


_library = _operators()

if _library is not None:

    @converter(_library.quantize_per_tensor.default, _library.quantize_per_tensor.tensor, checks=_known_parameters)
    def quantized_decomposed_quantize_per_tensor(
        ctx: ConversionContext,
        input: Operand,
        scale: Any,
        zero_point: Any,
        quant_min: int,
        quant_max: int,
        dtype: torch.dtype,
    ) -> Any:
        """quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor"""  # noqa: E501 - the schema
        step, zero = _scalar(scale, torch.float32), _scalar(zero_point, torch.int64)
        return _quantize(ctx, input, step, zero, (quant_min, quant_max), dtype)

    @converter(
        _library.dequantize_per_tensor.default,
        _library.dequantize_per_tensor.tensor,
        checks=_known_parameters,
        fold=False,
    )
    def quantized_decomposed_dequantize_per_tensor(
        ctx: ConversionContext, input: Operand, scale: Any, zero_point: Any, **options: Any
    ) -> Any:
        """dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor"""  # noqa: E501 - the schema
        return _dequantize(ctx, input, _scalar(scale, torch.float32), _scalar(zero_point, torch.int64), None)

    @converter(_library.quantize_per_channel.default, checks=_known_parameters)
    def quantized_decomposed_quantize_per_channel(
        ctx: ConversionContext,
        input: Operand,
        scales: torch.Tensor,
        zero_points: torch.Tensor,
        axis: int,
        quant_min: int,
        quant_max: int,
        dtype: torch.dtype,
    ) -> Any:
        """quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max, ScalarType dtype) -> Tensor"""  # noqa: E501 - the schema
        rank = rank_of(input)
        step, zero = (_along(part, axis % rank, rank) for part in (scales.float(), zero_points))
        return _quantize(ctx, input, step, zero, (quant_min, quant_max), dtype)

    @converter(_library.dequantize_per_channel.default, checks=_known_parameters, fold=False)
    def quantized_decomposed_dequantize_per_channel(
        ctx: ConversionContext,
        input: Operand,
        scales: torch.Tensor,
        zero_points: torch.Tensor | None,
        axis: int,
        **options: Any,
    ) -> Any:
        """dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor"""  # noqa: E501 - the schema
        zeros = torch.zeros_like(scales, dtype=torch.int64) if zero_points is None else zero_points
        return _dequantize(ctx, input, scales.float(), zeros, axis % rank_of(input))
