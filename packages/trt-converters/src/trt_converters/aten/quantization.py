"""Quantization: our own operators, which say it in TensorRT's terms, and those that `torch.ao` writes.

Where a layer expresses a call it becomes a Q/DQ layer, which engines keep around products. The rest, with zero points,
with other integer types, or with scales that the graph computes, becomes arithmetic and casts.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import torch

from trt_converters.aten.creation import convert_type
from trt_converters.aten.products import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import constant, dtypes, rank, refuses
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of, shape_of
from trt_converters.converter import Check
from trt_converters.layers import activation, binary, cast, promote, reshape, unary
from trt_converters.registry import converter, refuse_each
from trt_core import Provider, Reason, Verdict, current_provider, to_trt, trt
from trt_core.dtypes import FLOATS
from trt_core.internals import FakeTensor
from trt_core.quantization import QUANTIZED, dequantize, fake_quantize_blocks, limits, quantize, spread

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
    # integers of 8 bits can be replaced by others, those of 4 bits not
    may_pack = bits == 4 and (ctx.refit is None or value.dtype is not torch.int8)
    if may_pack and isinstance(value, torch.Tensor) and _packs(value, scale):
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
    return ctx.output(ctx.network.add_dequantize(made.get_output(0), step, to_trt(dtype)), block_shape=block)


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


_INTEGER_TYPES = frozenset({torch.int8, torch.uint8, torch.int32})


def _quantized_values(parameter: str) -> Check:
    """Refuses a type, given or of a tensor, that no layer quantizes to."""

    @refuses(f"`{parameter}` of a type that no layer quantizes to")
    def check(call: Call) -> Verdict | None:
        value = call[parameter]
        dtype = value.dtype if isinstance(value, torch.Tensor) else value
        if dtype in QUANTIZED | _INTEGER_TYPES:
            return None
        return Verdict.refuse(Reason.NO_LOW_PRECISION, f"no layer quantizes to {dtype}")

    return check


def _positive_scale(call: Call) -> Verdict | None:
    """Refuses to divide by known scales that are 0, negative or not finite."""
    name = "scales" if "scales" in call.bound else "scale"
    known = call.constant(name)
    if known is None or isinstance(known, FakeTensor):
        return None
    scale = torch.as_tensor(known)
    if scale.is_meta or has_positive(scale):
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"a scale is 0, negative or not finite: {name} divides")


def _fitting_scales(call: Call) -> Verdict | None:
    """Refuses scales that do not fit, and blocks of scales that the graph computes."""
    scale, input = call.tensor("scale"), call.tensor("input")
    if scale.dim() > 1 and scale.dim() != input.dim():
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"a scale of rank {scale.dim()} for rank {input.dim()}")
    if scale.dim() == 1 and scale.shape[0] != 1 and not 0 <= call["axis"] < input.dim():
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"axis={call['axis']} for scales per channel")
    if scale.dim() > 1 and not call.is_constant("scale"):
        return Verdict.refuse(Reason.NOT_CONSTANT, "scales of blocks are computed by the graph")
    return None


def _not_e2m1(call: Call) -> Verdict | None:
    """Refuses E2M1 of what the graph computes: only blocks with scales of their own have a layer."""
    if call["bits"] == 8 or call["dtype"] is torch.int8:
        return None
    return Verdict.refuse(Reason.NO_LOW_PRECISION, "no layer quantizes to E2M1 but in blocks, with scales of their own")


def _known_outer(call: Call) -> Verdict | None:
    """Refuses a scale of scales that the graph computes, or that is 0, negative or not finite."""
    if not call.is_constant("outer"):
        return Verdict.refuse(Reason.NOT_CONSTANT, "the scale of the scales is computed by the graph")
    return _positive_outer(call)


def _positive_outer(call: Call) -> Verdict | None:
    """Refuses a scale of scales that is known to be 0, negative or not finite."""
    known = call.constant("outer") if call.is_constant("outer") else None
    if known is None or isinstance(known, FakeTensor) or known.is_meta or has_positive(known):
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "the scale of the scales is 0, negative or not finite")


def _blocks_of_layers(call: Call) -> Verdict | None:
    """Refuses blocks that no layer has."""
    bits, size, input = call["bits"], call["block_size"], call.tensor("input")
    wanted = {4: E2M1_BLOCK, 8: E8M0_BLOCK}.get(bits)
    if size != wanted:
        return Verdict.refuse(Reason.NO_LOW_PRECISION, f"blocks of {size} elements of {bits} bits, not {wanted}")
    if not isinstance(input.shape[-1], int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, "the last extent, which is divided into blocks, is not known")
    if input.shape[-1] % size:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"blocks of {size} do not divide extent {input.shape[-1]}")
    return None


@converter(
    quantize, checks=(dtypes("input", FLOATS), _quantized_values("dtype"), _not_e2m1, _fitting_scales, _positive_scale)
)
def trt_quantize(
    ctx: ConversionContext, input: Operand, scale: Operand, dtype: torch.dtype, bits: int, axis: int
) -> Any:
    """quantize(Tensor input, Tensor scale, ScalarType dtype, int bits=8, int axis=-1) -> Tensor"""
    if bits == 8 and layer_quantizes(input, scale, dtype):
        return quantize_layer(ctx, input, scale, dtype)
    step = spread_operand(ctx, scale, input, axis)
    return quantize_by_arithmetic(ctx, input, step, None, limits(dtype, bits), dtype)


@converter(dequantize, checks=(_quantized_values("input"), _fitting_scales, _known_outer), fold=False)
def trt_dequantize(
    ctx: ConversionContext,
    input: Operand,
    scale: Operand,
    dtype: torch.dtype,
    bits: int,
    axis: int,
    outer: torch.Tensor | None,
) -> Any:
    """dequantize(Tensor input, Tensor scale, ScalarType dtype, int bits=8, int axis=-1, Tensor? outer=None) -> Tensor"""  # noqa: E501 - the schema
    if layer_dequantizes(input, scale):
        return dequantize_layer(ctx, input, scale, dtype, bits, axis, outer)
    if isinstance(scale, torch.Tensor):
        scale = scaled(scale, outer)
    elif outer is not None:
        scale = binary(ctx, "PROD", scale, outer.to(torch.float32))
    return dequantize_by_arithmetic(ctx, input, spread_operand(ctx, scale, input, axis), None, dtype)


@converter(
    fake_quantize_blocks,
    checks=(dtypes("input", FLOATS), rank("input", 1), _blocks_of_layers, _positive_outer),
    fold=False,
)
def trt_fake_quantize_blocks(
    ctx: ConversionContext, input: Operand, outer: Operand | None, block_size: int, bits: int
) -> Any:
    """fake_quantize_blocks(Tensor input, Tensor? outer, int block_size, int bits) -> Tensor"""
    if bits == 4 and outer is not None and not isinstance(outer, torch.Tensor):
        # the layer wants to know the scale of its scales: what is divided by a computed one has that of 1
        value, step = promote(ctx, input, reshape(ctx, outer, []), dtype=torch.float32)
        kept = dynamic_quantize_layers(ctx, binary(ctx, "DIV", value, step), None, block_size, bits, torch.float32)
        return cast(ctx, binary(ctx, "PROD", kept, step), ctx.result_dtype)
    return dynamic_quantize_layers(ctx, input, outer, block_size, bits, ctx.result_dtype)


def _operators() -> Any:
    """Returns the namespace of `torch.ao`'s operators, which exists once PyTorch's module for them is imported."""
    try:
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    except ImportError:  # a PyTorch that no longer has it: then no graph holds these operators
        return None
    return torch.ops.quantized_decomposed


def _quantize(
    ctx: ConversionContext,
    value: Operand,
    scale: Operand,
    zero_point: Operand | None,
    bounds: tuple[int, int],
    dtype: torch.dtype,
) -> Any:
    """Returns clamp(round(value / scale) + zero_point, *bounds); scale and zero point broadcast with the value."""
    value = cast(ctx, value, torch.float32)
    if _is_zero(zero_point) and layer_quantizes(value, scale, dtype):
        if dtype is torch.int8 and bounds != (-128, 127):
            value = activation(ctx, "CLIP", value, *(bound * float(scale) for bound in bounds))
        return quantize_layer(ctx, value, scale, dtype)
    return quantize_by_arithmetic(ctx, value, scale, None if _is_zero(zero_point) else zero_point, bounds, dtype)


def _dequantize(
    ctx: ConversionContext, value: Operand, scale: Operand, zero_point: Operand | None, axis: int | None
) -> Any:
    """Returns (value - zero_point) * scale; scale and zero point have one element, or are (C,) along an axis."""
    place = -1 if axis is None else axis
    if _is_zero(zero_point) and layer_dequantizes(value, scale):
        return dequantize_layer(ctx, value, scale, ctx.result_dtype, axis=place)
    scale = spread_operand(ctx, scale, value, place)
    shift = None if _is_zero(zero_point) else spread_operand(ctx, zero_point, value, place)
    return dequantize_by_arithmetic(ctx, value, scale, shift, ctx.result_dtype)


def _is_zero(zero_point: Operand | None) -> bool:
    return zero_point is None or (isinstance(zero_point, torch.Tensor) and not bool(zero_point.any()))


def _scalar(value: Any, dtype: torch.dtype) -> Any:
    return torch.as_tensor(value, dtype=dtype).reshape(()) if isinstance(value, (int, float, torch.Tensor)) else value


importlib.import_module("trt_core.modelopt_operators")  # registers them
_library = _operators()

if _library is not None:

    @converter(
        _library.quantize_per_tensor.default,
        _library.quantize_per_tensor.tensor,
        checks=(_quantized_values("dtype"), _positive_scale),
    )
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
        checks=_quantized_values("dtype"),
        fold=False,
    )
    def quantized_decomposed_dequantize_per_tensor(
        ctx: ConversionContext, input: Operand, scale: Any, zero_point: Any, **options: Any
    ) -> Any:
        """dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor"""  # noqa: E501 - the schema
        return _dequantize(ctx, input, _scalar(scale, torch.float32), _scalar(zero_point, torch.int64), None)

    @converter(_library.quantize_per_channel.default, checks=(_quantized_values("dtype"), _positive_scale))
    def quantized_decomposed_quantize_per_channel(
        ctx: ConversionContext,
        input: Operand,
        scales: Operand,
        zero_points: Operand,
        axis: int,
        quant_min: int,
        quant_max: int,
        dtype: torch.dtype,
    ) -> Any:
        """quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max, ScalarType dtype) -> Tensor"""  # noqa: E501 - the schema
        step, zero = (spread_operand(ctx, part, input, axis % rank_of(input)) for part in (scales, zero_points))
        return _quantize(ctx, input, step, zero, (quant_min, quant_max), dtype)

    @converter(_library.dequantize_per_channel.default, checks=_quantized_values("dtype"), fold=False)
    def quantized_decomposed_dequantize_per_channel(
        ctx: ConversionContext, input: Operand, scales: Operand, zero_points: Operand | None, axis: int, **options: Any
    ) -> Any:
        """dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor"""  # noqa: E501 - the schema
        return _dequantize(ctx, input, scales, zero_points, axis % rank_of(input))

    @converter(_library.convert_element_type.no_fuse)
    def quantized_decomposed_convert_element_type(ctx: ConversionContext, input: Operand, dtype: torch.dtype) -> Any:
        """convert_element_type.no_fuse(Tensor input, ScalarType dtype) -> Tensor"""
        return cast(ctx, input, dtype)


_packet: Any = getattr(torch.ops.tensorrt, "dynamic_block_quantize_op", None)  # of a ModelOpt that is not imported
if _packet is not None:
    refuse_each(
        Reason.NO_LOW_PRECISION,
        "blocks are of E2M1 with scales in E4M3, or of E4M3 with E8M0, alone",
        *(_packet.default, _packet.overload),
    )


# Matrix products of quantized values --------------------------------------------------------------------------------


aten = torch.ops.aten

_ONE = torch.ones(())


def _operand(ctx: ConversionContext, value: Operand, dtype: torch.dtype) -> Any:
    """Returns quantized values as they are, in a float type, behind a dequantize layer where there is one for them."""
    if layer_dequantizes(value, _ONE):
        return dequantize_layer(ctx, value, _ONE, dtype)
    return cast(ctx, to_float(ctx, value), dtype)


@converter(aten._int_mm.default)
def aten__int_mm(ctx: ConversionContext, self: Operand, mat2: Operand) -> Any:
    """_int_mm(Tensor self, Tensor mat2) -> Tensor"""
    left, right = (_operand(ctx, value, torch.float32) for value in (self, mat2))
    return cast(ctx, matrix_multiply(ctx, left, right), torch.int32)


def _float8_e4m3(call: Call) -> Verdict | None:
    """Refuses other types than float8_e4m3fn, scales for each block, and `scale_result`."""
    for name in ("self", "mat2"):
        dtype = call.tensor(name).dtype
        if dtype is not torch.float8_e4m3fn:
            return Verdict.refuse(Reason.NO_LOW_PRECISION, f"{name} is {dtype}: networks have float8_e4m3fn alone")
    for name in ("scale_a", "scale_b"):
        scale = call.tensor(name)
        if scale.dtype is not torch.float32 or scale.dim() > 2:
            return Verdict.refuse(Reason.NO_LOW_PRECISION, f"{name} has a scale for each block")
    if call["scale_result"] is not None:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "scale_result is given")
    return None


def _fits_rows_or_columns(call: Call) -> Verdict | None:
    """Refuses scales that are not those of rows and columns."""
    rows, columns = call.tensor("scale_a"), call.tensor("scale_b")
    broadcast = (rows.dim() < 2 or rows.shape[1] == 1) and (columns.dim() < 2 or columns.shape[0] == 1)
    if broadcast:
        return None
    return Verdict.refuse(Reason.NO_LOW_PRECISION, "scales are not those of rows and columns")


@converter(aten._scaled_mm.default, checks=(_float8_e4m3, _fits_rows_or_columns))
def aten__scaled_mm(
    ctx: ConversionContext,
    self: Operand,
    mat2: Operand,
    scale_a: Operand,
    scale_b: Operand,
    bias: Operand | None,
    scale_result: Operand | None,
    out_dtype: torch.dtype | None,
    use_fast_accum: bool,
) -> Any:
    """_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor"""  # noqa: E501 - the schema
    dtype = ctx.result_dtype if ctx.result_dtype in FLOATS else torch.float32
    factors = []
    operands = []
    for value, scale, axis in ((self, scale_a, 0), (mat2, scale_b, 1)):
        if layer_dequantizes(value, scale):  # scales of weights, and known ones of whole tensors
            flat = scale if scale.numel() == 1 else scale.reshape(-1)
            operands.append(dequantize_layer(ctx, value, flat, dtype, axis=axis))
        else:
            operands.append(_operand(ctx, value, dtype))
            factors.append(scale)
    product = matrix_multiply(ctx, *operands)
    for factor in factors:
        wide = cast(ctx, factor, torch.float32)
        product = binary(ctx, "PROD", cast(ctx, product, torch.float32), wide, "scale")
    product = cast(ctx, product, dtype)
    if bias is not None:
        product = binary(ctx, "SUM", product, cast(ctx, bias, dtype), "bias")
    return convert_type(ctx, product, ctx.result_dtype)  # float8 where no other type is asked for


@converter(aten._weight_int8pack_mm.default, checks=(dtypes("self", FLOATS), constant("mat2", "scales")))
def aten__weight_int8pack_mm(ctx: ConversionContext, self: Operand, mat2: Operand, scales: Operand) -> Any:
    """_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor"""
    assert rank_of(mat2) == 2
    weight = dequantize_layer(ctx, mat2, scales, dtype_of(self), axis=0)
    return matrix_multiply(ctx, self, weight, transpose_right=True)


_PACKED = (
    *("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
    *("_weight_int4pack_mm_with_scales_and_zeros", "_dyn_quant_matmul_4bit"),
)
for _names, _why in (
    (_PACKED, "its weights are packed for one kernel of PyTorch"),
    (("_scaled_grouped_mm", "_scaled_grouped_mm_v2"), "no layer multiplies groups of rows, whose ends are data"),
):
    for _name in _names:
        if hasattr(aten, _name):
            refuse_each(Reason.NO_LOW_PRECISION, _why, getattr(aten, _name).default)
