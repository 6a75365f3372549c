"""Explicit quantization in graphs: the two operators that say it in TensorRT's terms, and which operators undo it.

    torch.ops.trt.quantize(input, scale, dtype, bits=8, axis=-1)      # clamp(round(input / scale))
    torch.ops.trt.dequantize(input, scale, dtype, bits=8, axis=-1)    # input * scale

The shape of the scale says what shares one: a single element for the whole tensor, one dimension for each slice along
`axis`, the rank of the input for blocks, whose extents are those of the input divided by those of the scale. There are
no zero points. Quantized values are int8 or float8_e4m3fn; with `bits=4` they are the integers from -8 to 7 in int8.
Importing this module registers the operators.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from trt_core.operators import operator_name, packet_name

QUANTIZED: Final = frozenset({torch.int8, torch.float8_e4m3fn})
"""Types of quantized values."""

_library = torch.library.Library("trt", "FRAGMENT")
_TAGS: Final = (torch.Tag.pt2_compliant_tag,)
_library.define("quantize(Tensor input, Tensor scale, ScalarType dtype, int bits=8, int axis=-1) -> Tensor", tags=_TAGS)
_library.define(
    "dequantize(Tensor input, Tensor scale, ScalarType dtype, int bits=8, int axis=-1) -> Tensor", tags=_TAGS
)

_UNDOING: Final = frozenset(
    f"torch.ops.{name}"
    for name in (
        "trt.dequantize",
        "quantized_decomposed.dequantize_per_tensor",
        "quantized_decomposed.dequantize_per_channel",
        "quantized_decomposed.dequantize_per_channel_group",
        "tensorrt.quantize_op",
        "tensorrt.dynamic_block_quantize_op",
    )
)


def is_dequantization(target: Any) -> bool:
    """Whether an operator makes floats of quantized values, or of floats what they are when quantized.

    Such an operator is not computed ahead even where its operands are known: that would lose what it says.
    """
    return isinstance(target, torch._ops.OpOverload) and packet_name(operator_name(target)) in _UNDOING


def is_scale(user: fx.Node, operand: fx.Node) -> bool:
    """Whether an operand of a call is the scale of a quantized value, and nothing else to it."""
    return user.target in (quantize, dequantize) and user.args[1] is operand and user.args[0] is not operand


def limits(dtype: torch.dtype, bits: int = 8) -> tuple[float, float]:
    """Returns the smallest and the largest quantized value.

    Args:
        dtype: int8 or float8_e4m3fn.
        bits: 8, or 4 for integers.
    """
    if dtype is torch.int8:
        return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    largest = torch.finfo(dtype).max
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


def _quantize(input: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, bits: int = 8, axis: int = -1) -> Any:
    _require_type(dtype, bits)
    low, high = limits(dtype, bits)
    steps = input.to(torch.float32) / spread(scale, input, axis)
    return (steps.round() if dtype is torch.int8 else steps).clamp(low, high).to(dtype)


def _dequantize(input: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, bits: int = 8, axis: int = -1) -> Any:
    _require_type(input.dtype, bits)
    return (input.to(torch.float32) * spread(scale, input, axis)).to(dtype)


def _require_type(dtype: torch.dtype, bits: int) -> None:
    if dtype not in QUANTIZED or bits not in ((4, 8) if dtype is torch.int8 else (8,)):
        raise ValueError(f"{dtype} of {bits} bits is no type of quantized values")


def _infer(input: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, bits: int = 8, axis: int = -1) -> torch.Tensor:
    return torch.empty_like(input, dtype=dtype)


for _name, _function in (("quantize", _quantize), ("dequantize", _dequantize)):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"trt::{_name}", _infer, lib=_library)

quantize: Final = torch.ops.trt.quantize.default
dequantize: Final = torch.ops.trt.dequantize.default


def fake_quantize(
    input: torch.Tensor, scale: torch.Tensor, axis: int = -1, dtype: torch.dtype = torch.int8
) -> torch.Tensor:
    """Quantizes and dequantizes; the scale is that of `torch.ops.trt.quantize`."""
    kept: torch.Tensor = dequantize(quantize(input, scale, dtype, 8, axis), scale, input.dtype, 8, axis)
    return kept
