"""Explicit quantization in graphs: the two operators that say it in TensorRT's terms, and which operators undo it.

    torch.ops.trt.quantize(input, scale, dtype, bits=8, axis=-1)                   # clamp(round(input / scale))
    torch.ops.trt.dequantize(input, scale, dtype, bits=8, axis=-1, outer=None)     # input * scale * outer
    torch.ops.trt.fake_quantize_blocks(input, outer, block_size, bits)             # both, with scales from the data

The shape of the scale says what shares one: a single element for the whole tensor, one dimension for each slice along
`axis`, the rank of the input for blocks, whose extents are those of the input divided by those of the scale. There are
no zero points. Quantized values are int8 or float8_e4m3fn. With `bits=4` these types carry the integers from -8 to 7,
and the sixteen values of E2M1. Scales have a float type, or one of eight bits: float8_e8m0fnu, powers of two, as in
MXFP8; or float8_e4m3fn, which `outer` scales in turn, as in NVFP4. Importing this module registers the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import schema_name

QUANTIZED: Final = frozenset({torch.int8, torch.float8_e4m3fn})
"""Types of quantized values."""

_LARGEST_E2M1: Final = 6.0
_LEAST_E4M3: Final = 2.0**-9
_HALF_E4M3: Final = 0x30  # the bits of 0.5

_library = torch.library.Library("trt", "FRAGMENT")
_TAGS: Final = (torch.Tag.pt2_compliant_tag,)
_library.define("quantize(Tensor input, Tensor scale, ScalarType dtype, int bits=8, int axis=-1) -> Tensor", tags=_TAGS)
_library.define(
    "dequantize(Tensor input, Tensor scale, ScalarType dtype, int bits=8, int axis=-1, Tensor? outer=None) -> Tensor",
    tags=_TAGS,
)
_library.define("fake_quantize_blocks(Tensor input, Tensor? outer, int block_size, int bits) -> Tensor", tags=_TAGS)

_UNDOING: Final = frozenset(
    (
        *("trt::dequantize", "trt::fake_quantize_blocks", "quantized_decomposed::dequantize_per_tensor"),
        *("quantized_decomposed::dequantize_per_channel", "quantized_decomposed::dequantize_per_channel_group"),
        *("tensorrt::quantize_op", "tensorrt::dynamic_block_quantize_op"),
    )
)


def is_dequantization(target: Any) -> bool:
    """Whether an operator makes floats of quantized values, or of floats what they are when quantized.

    Such an operator is not computed ahead even where its operands are known: that would lose what it says.
    """
    return schema_name(target) in _UNDOING


def is_scale(user: fx.Node, operand: fx.Node) -> bool:
    """Whether an operand of a call is the scale of a quantized value, and nothing else to it."""
    if user.target not in (quantize, dequantize, fake_quantize_blocks) or user.args[0] is operand:
        return False
    return operand in user.args or operand in user.kwargs.values()


def limits(dtype: torch.dtype, bits: int = 8) -> tuple[float, float]:
    """Returns the smallest and the largest quantized value.

    Args:
        dtype: int8 or float8_e4m3fn.
        bits: 8, or 4 for integers and E2M1.
    """
    if dtype is torch.int8:
        return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    largest = torch.finfo(dtype).max if bits == 8 else _LARGEST_E2M1
    return -largest, largest


def spread(scale: torch.Tensor, input: torch.Tensor, axis: int) -> torch.Tensor:
    """Returns a scale in float32, in a shape that broadcasts to the tensor that it belongs to.

    Args:
        scale: One element, (C,) along `axis`, or one element for each block, with the rank of the input.
        input: Any shape.
        axis: The axis of a scale with one dimension.

    Raises:
        ValueError: The scale fits the tensor in none of these ways.
    """
    wide = scale.to(torch.float32)
    if scale.dim() == 0 or (scale.dim() == 1 and axis < 0 and scale.shape[0] == 1):
        return wide.reshape(())
    if scale.dim() == 1 and axis >= 0:
        if axis >= input.dim() or scale.shape[0] != input.shape[axis]:
            raise ValueError(f"{tuple(scale.shape)} scales do not fit axis {axis} of {tuple(input.shape)}")
        return wide.reshape([-1 if index == axis else 1 for index in range(input.dim())])
    if scale.dim() != input.dim():
        raise ValueError(f"scales of shape {tuple(scale.shape)} do not fit {tuple(input.shape)}")
    for index, (blocks, extent) in enumerate(zip(scale.shape, input.shape, strict=True)):
        if blocks in (1, extent):
            continue
        if blocks == 0 or extent % blocks:
            raise ValueError(f"{blocks} blocks do not divide extent {extent} of axis {index}")
        wide = wide.repeat_interleave(extent // blocks, index)
    return wide


def simple_scale(scale: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, int]:
    """Returns a scale as `torch.ops.trt.quantize` takes it, with no more dimensions than it needs, and its axis.

    Args:
        scale: One element for each block, with the rank of the input.
        shape: Of the input.
    """
    wide = [axis for axis, count in enumerate(scale.shape) if count != 1]
    if not wide:
        return scale.reshape(()), -1
    if len(wide) == 1 and scale.shape[wide[0]] == shape[wide[0]]:
        return scale.reshape(-1), wide[0]
    return scale, -1


def _quantize(input: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, bits: int = 8, axis: int = -1) -> Any:
    _require_type(dtype, bits)
    low, high = limits(dtype, bits)
    steps = input.to(torch.float32) / spread(scale, input, axis)
    if dtype is torch.int8:
        return steps.round().clamp(low, high).to(dtype)
    return (steps.clamp(low, high) if bits == 8 else _round_to_e2m1(steps)).to(dtype)


def _round_to_e2m1(steps: torch.Tensor) -> torch.Tensor:
    """Returns the nearest values of E2M1, with steps of 1/2 below 2, 1 below 4 and 2 above; ties go to the even one."""
    size = steps.abs().clamp(max=_LARGEST_E2M1)
    grid = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    return torch.copysign((size / grid).round() * grid, steps)


def _dequantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
    bits: int = 8,
    axis: int = -1,
    outer: torch.Tensor | None = None,
) -> Any:
    _require_type(input.dtype, bits)
    wide = scale if outer is None else scale.to(torch.float32) * outer.to(torch.float32).reshape(())
    return (input.to(torch.float32) * spread(wide, input, axis)).to(dtype)


def _require_type(dtype: torch.dtype, bits: int) -> None:
    if dtype not in QUANTIZED or bits not in (4, 8):
        raise ValueError(f"{dtype} of {bits} bits is no type of quantized values")


def quantize_in_blocks(
    input: torch.Tensor, outer: torch.Tensor | None, block_size: int, bits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes blocks of the last axis, each by a scale that makes its largest element fit.

    Args:
        input: (..., K), a float type; K is a multiple of `block_size`.
        outer: 0-d, what scales are scaled by; None without it.
        block_size: Elements of a block.
        bits: 4 for E2M1 with scales in float8_e4m3fn (NVFP4), 8 for float8_e4m3fn with scales in float8_e8m0fnu
            (MXFP8), which are the next power of two, so that nothing saturates.

    Returns:
        The values (..., K) in float8_e4m3fn, as `quantize` returns them, and the scales (..., K / block_size). A block
        of nothing but zeros, or so small that its scale would be 0, has a positive scale, and values that are 0.
    """
    largest = input.to(torch.float32).unflatten(-1, (-1, block_size)).abs().amax(-1)
    exact = largest / limits(torch.float8_e4m3fn, bits)[1]
    if bits == 8:
        scale = torch.exp2(torch.ceil(torch.log2(exact.clamp(min=2.0**-127)))).to(torch.float8_e8m0fnu)
        return quantize(input, scale, torch.float8_e4m3fn), scale
    factor = torch.ones_like(exact) if outer is None else outer.to(torch.float32).reshape(()).expand_as(exact)
    scale = (exact / factor).clamp(max=limits(torch.float8_e4m3fn)[1]).to(torch.float8_e4m3fn)
    wide = scale.to(torch.float32) * factor
    is_lost = wide <= 0
    scale = torch.where(is_lost, _LEAST_E4M3, scale.to(torch.float32)).to(torch.float8_e4m3fn)
    return quantize(input, torch.where(is_lost, torch.inf, wide), torch.float8_e4m3fn, 4), scale


def _fake_quantize_blocks(input: torch.Tensor, outer: torch.Tensor | None, block_size: int, bits: int) -> Any:
    values, scale = quantize_in_blocks(input, outer, block_size, bits)
    return dequantize(values, scale, input.dtype, bits, -1, outer)


def e2m1_codes(values: torch.Tensor) -> torch.Tensor:
    """Returns the four bits of values of E2M1, as uint8: the sign above the place among 0, 0.5, 1, 1.5, 2, 3, 4 and 6.

    Args:
        values: float8_e4m3fn, as `quantize` makes them with `bits=4`; any shape.
    """
    # of the eight bits of E4M3: the sign, three more bits of the exponent than E2M1 has, two more of the mantissa
    bits = values.contiguous().view(torch.uint8)
    size = bits.bitwise_and(0x7F)
    normal = size.bitwise_right_shift(2) - 12  # 1.0 is 0x38, and the third value above 0
    place = torch.where(size == 0, 0, torch.where(size == _HALF_E4M3, 1, normal)).to(torch.uint8)
    return place.bitwise_or(bits.bitwise_right_shift(7).bitwise_left_shift(3))


def _infer(input: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, *options: Any) -> torch.Tensor:
    return torch.empty_like(input, dtype=dtype)


for _name, _function, _shape in (
    ("quantize", _quantize, _infer),
    ("dequantize", _dequantize, _infer),
    ("fake_quantize_blocks", _fake_quantize_blocks, lambda input, outer, block_size, bits: torch.empty_like(input)),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    _library.impl(_name, _shape, "Meta")

quantize: Final = torch.ops.trt.quantize.default
dequantize: Final = torch.ops.trt.dequantize.default
fake_quantize_blocks: Final = torch.ops.trt.fake_quantize_blocks.default


def fake_quantize(
    input: torch.Tensor, scale: torch.Tensor, axis: int = -1, dtype: torch.dtype = torch.int8
) -> torch.Tensor:
    """Quantizes and dequantizes; the scale is that of `torch.ops.trt.quantize`."""
    kept: torch.Tensor = dequantize(quantize(input, scale, dtype, 8, axis), scale, input.dtype, 8, axis)
    return kept
