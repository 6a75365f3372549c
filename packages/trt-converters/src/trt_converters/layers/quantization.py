"""Quantize and dequantize layers, and the arithmetic that stands for them where a layer cannot."""

from __future__ import annotations

from typing import Any, Final

import torch

from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of, shape_of
from trt_converters.layers.casts import cast
from trt_converters.layers.movement import reshape
from trt_converters.layers.pointwise import activation, binary, unary
from trt_core import Provider, current_provider, to_trt, trt
from trt_core.dtypes import FLOATS
from trt_core.quantization import QUANTIZED, spread

E2M1_BLOCK: Final = 16
"""Elements of E2M1 that share a scale."""

INT4_BLOCKS: Final = (128, 64)
"""Elements of INT4 that share a scale, as TensorRT documents it, the largest first."""

E8M0_BLOCK: Final = 32
"""Elements that share a scale in E8M0."""


def quantize_layer(ctx: ConversionContext, value: Operand, scale: torch.Tensor, dtype: torch.dtype) -> Any:
    """Adds a quantize layer: clamp(round(value / scale)).

    Args:
        ctx: The context.
        value: Rank 1 or more, a float type.
        scale: One element: scales per channel belong to weights, which are quantized while building.
        dtype: int8 or float8_e4m3fn.
    """
    step = ctx.tensor(scale.detach().to(torch.float32).reshape(()))
    return ctx.output(ctx.network.add_quantize(ctx.tensor(value), step, to_trt(dtype)), "quantize")


def dequantize_layer(
    ctx: ConversionContext,
    value: Operand,
    scale: torch.Tensor,
    dtype: torch.dtype,
    bits: int = 8,
    axis: int = -1,
    outer: torch.Tensor | None = None,
) -> Any:
    """Adds a dequantize layer: value * scale * outer.

    Args:
        ctx: The context.
        value: Rank 1 or more, int8 or float8_e4m3fn; known while building where there is more than one scale.
        scale: One element, (C,) along `axis`, or one for each block. In float8_e4m3fn and float8_e8m0fnu they stay so.
        dtype: Type of the result, a float type.
        bits: 4 for elements that the engine keeps in half a byte, where rows have an even number of them, and values
            of E2M1 are in blocks of 16.
        axis: The axis of scales per channel.
        outer: One element, by which scales in float8_e4m3fn are scaled; None for 1.
    """
    if bits == 4 and isinstance(value, torch.Tensor) and _packs(value, scale):
        stored = ctx.packed_tensor(value)
        if value.dtype is torch.int8 and current_provider() is Provider.TENSORRT:
            scale = _in_blocks_of_int4(value, scale)
    else:
        stored = ctx.tensor(value)
    single = scale.numel() == 1
    step = _scale_tensor(ctx, value, scale.detach(), outer)
    layer = ctx.own(ctx.network.add_dequantize(stored, step, to_trt(dtype)))
    if not single and scale.dim() == 1:
        layer.axis = axis
    elif not single:
        layer.block_shape = trt.Dims(_block(value, scale))
    return layer.get_output(0)


def _in_blocks_of_int4(value: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns scales of larger blocks once for each block that TensorRT documents; others as they are."""
    if scale.dim() < 2 or scale.numel() == 1:
        return scale
    for axis, extent in enumerate(_block(value, scale)):
        for size in INT4_BLOCKS:
            if extent not in INT4_BLOCKS and extent % size == 0:
                return scale.repeat_interleave(extent // size, axis)
    return scale


def _packs(value: torch.Tensor, scale: torch.Tensor) -> bool:
    """Whether a layer takes elements of 4 bits.

    Those of E2M1 come in blocks of 16 on one of the last two axes. Blocks of integers have 64 or 128 in TensorRT, or
    multiples of these, which `_in_blocks_of_int4` divides; smaller ones keep 8 bits there.
    """
    if value.shape[-1] % 2:
        return False
    if value.dtype is torch.int8:
        if current_provider() is not Provider.TENSORRT or scale.dim() < 2 or scale.numel() == 1:
            return True
        return all(extent == 1 or extent % INT4_BLOCKS[-1] == 0 for extent in _block(value, scale))
    return scale.dim() == value.dim() >= 2 and sorted(_block(value, scale)[-2:]) == [1, E2M1_BLOCK]


def _block(value: Operand, scale: torch.Tensor) -> list[int]:
    return [extent // blocks for extent, blocks in zip(value.shape, scale.shape, strict=True)]


def _scale_tensor(ctx: ConversionContext, value: Operand, scale: torch.Tensor, outer: torch.Tensor | None) -> Any:
    """Returns scales as an `ITensor`: in 8 bits where a layer takes them so, else in float32."""
    is_blocked = scale.dim() == rank_of(value) >= 2 and scale.numel() > 1
    if scale.dtype is torch.float8_e8m0fnu and is_blocked and _block(value, scale)[-1] == E8M0_BLOCK:
        return ctx.powers_of_two(scale)
    if scale.dtype is torch.float8_e4m3fn and is_blocked:
        factor = torch.ones(()) if outer is None else outer.detach().to(torch.float32).reshape(())
        layer = ctx.network.add_dequantize(ctx.tensor(scale), ctx.tensor(factor), to_trt(torch.float32))
        return ctx.output(layer, "scale")
    step = scaled(scale, outer)
    return ctx.tensor(step.reshape(()) if scale.numel() == 1 else step)


def dynamic_quantize_layers(
    ctx: ConversionContext, value: Operand, outer: torch.Tensor | None, block_size: int, bits: int, dtype: torch.dtype
) -> Any:
    """Adds a dynamic quantize layer with blocks on the last axis, and the dequantize layers that undo it.

    Args:
        ctx: The context.
        value: Rank 1 or more, a float type; the last extent is known, and a multiple of the block.
        outer: One element, the scale of scales in float8_e4m3fn; for `bits=4`.
        block_size: 16 for `bits=4`, 32 for 8.
        bits: 4 for FP4 with scales in FP8, 8 for FP8 with scales in E8M0.
        dtype: Type of the result, a float type.
    """
    kinds = trt.DataType
    types = (kinds.FP4, kinds.FP8) if bits == 4 else (kinds.FP8, kinds.E8M0)
    block = trt.Dims([1] * (rank_of(value) - 1) + [block_size])
    made = ctx.own(ctx.network.add_dynamic_quantize_v2(ctx.tensor(value), block, *types), "quantize")
    step = made.get_output(1)
    if bits == 4:
        factor = ctx.tensor(torch.ones(()) if outer is None else outer.detach().to(torch.float32).reshape(()))
        made.set_input(1, factor)
        step = ctx.output(ctx.network.add_dequantize(step, factor, to_trt(torch.float32)), "scale")
    layer = ctx.own(ctx.network.add_dequantize(made.get_output(0), step, to_trt(dtype)))
    layer.block_shape = block
    return layer.get_output(0)


def layer_quantizes(value: Operand, scale: Operand, dtype: torch.dtype) -> bool:
    """Whether a quantize layer takes a value with a scale."""
    return (
        isinstance(scale, torch.Tensor)
        and scale.numel() == 1
        and has_positive(scale)
        and dtype in QUANTIZED
        and rank_of(value) > 0
        and dtype_of(value) in FLOATS
    )


def layer_dequantizes(value: Operand, scale: Operand) -> bool:
    """Whether a dequantize layer takes a value with a scale; a scale for each channel or block is for weights.

    A scale of 0, which makes zeros of a channel, is for arithmetic.
    """
    if not isinstance(scale, torch.Tensor) or dtype_of(value) not in QUANTIZED or rank_of(value) == 0:
        return False
    return (scale.numel() == 1 or isinstance(value, torch.Tensor)) and has_positive(scale)


def has_positive(scale: torch.Tensor) -> bool:
    """Whether scales are finite and above 0, as layers want them."""
    wide = scale.to(torch.float32)
    return bool((wide.isfinite() & (wide > 0)).all())


def scaled(scale: torch.Tensor, outer: torch.Tensor | None) -> torch.Tensor:
    """Returns scales in float32, those of 8 bits times the scale that they have in turn."""
    wide = scale.to(torch.float32)
    return wide if outer is None else wide * outer.to(torch.float32).reshape(())


def quantize_by_arithmetic(
    ctx: ConversionContext,
    value: Operand,
    scale: Operand,
    zero_point: Operand | None,
    bounds: tuple[float, float],
    dtype: torch.dtype,
) -> Any:
    """Returns clamp(round(value / scale) + zero_point, *bounds), from pointwise layers.

    Args:
        ctx: The context.
        value: A float type; computed with in float32.
        scale, zero_point: They broadcast with the value; known while building or not. None for no zero point.
        bounds: Smallest and largest quantized value.
        dtype: An integer type, or float8_e4m3fn, which is rounded to by its own cast.
    """
    step = cast(ctx, scale, torch.float32)
    inverse = step.reciprocal() if isinstance(step, torch.Tensor) else unary(ctx, "RECIP", step)
    steps = binary(ctx, "PROD", cast(ctx, value, torch.float32), inverse)
    if not dtype.is_floating_point:
        steps = unary(ctx, "ROUND", steps)
    if zero_point is not None:
        steps = binary(ctx, "SUM", steps, cast(ctx, zero_point, torch.float32))
    steps = activation(ctx, "CLIP", steps, *bounds)
    if dtype is torch.float8_e4m3fn:
        return quantize_layer(ctx, steps, torch.ones(()), dtype)
    return cast(ctx, steps, dtype)


def dequantize_by_arithmetic(
    ctx: ConversionContext, value: Operand, scale: Operand, zero_point: Operand | None, dtype: torch.dtype
) -> Any:
    """Returns (value - zero_point) * scale, from pointwise layers; see `quantize_by_arithmetic`."""
    wide = to_float(ctx, value)
    if zero_point is not None:
        wide = binary(ctx, "SUB", wide, cast(ctx, zero_point, torch.float32))
    return cast(ctx, binary(ctx, "PROD", wide, cast(ctx, scale, torch.float32)), dtype)


def to_float(ctx: ConversionContext, value: Operand) -> Any:
    """Returns a quantized value as it is, in float32."""
    if dtype_of(value) is torch.float8_e4m3fn and not isinstance(value, torch.Tensor):
        return dequantize_layer(ctx, value, torch.ones(()), torch.float32)
    return cast(ctx, value, torch.float32)


def spread_operand(ctx: ConversionContext, scale: Operand, value: Operand, axis: int) -> Any:
    """Returns a scale or zero point in a shape that broadcasts to its tensor; see `trt_core.quantization.spread`.

    Raises:
        ConversionError: Blocks of a scale that the graph computes.
    """
    if isinstance(scale, torch.Tensor) and scale.numel() == 1:
        return scale.to(torch.float32).reshape(())
    if isinstance(scale, torch.Tensor) and scale.dim() == 1:
        return scale.to(torch.float32).reshape([-1 if index == axis else 1 for index in range(rank_of(value))])
    if isinstance(scale, torch.Tensor):
        return spread(scale, torch.empty(shape_of(value), device="meta"), axis)
    if rank_of(scale) == 1 and rank_of(value) > 1 and axis >= 0:
        return reshape(ctx, scale, [-1 if index == axis else 1 for index in range(rank_of(value))])
    if rank_of(scale) not in (0, 1) and any(
        left not in (1, right) for left, right in zip(shape_of(scale), shape_of(value), strict=True)
    ):
        raise ctx.fail("scales of blocks are computed by the graph")
    return scale
