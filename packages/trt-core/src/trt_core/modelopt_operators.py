"""The operators that NVIDIA's ModelOpt leaves in graphs, for programs that are read where it is not installed.

    torch.ops.tensorrt.quantize_op
    torch.ops.tensorrt.dynamic_block_quantize_op

They quantize and dequantize at once. ModelOpt registers them itself; defining them here as well would make its import
fail, so that is done only where there is no ModelOpt. Importing this module registers them.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import torch

from trt_core.internals import has_operator
from trt_core.quantization import fake_quantize, fake_quantize_blocks, limits, simple_scale

_FLOAT8: Final = torch.float8_e4m3fn

_SCHEMAS: Final = (
    "quantize_op(Tensor input, Tensor amax, int num_bits, int exponent_bits, bool unsigned, bool narrow_range)"
    " -> Tensor",
    "dynamic_block_quantize_op(Tensor input, int block_size, Tensor amax, int num_bits, int exponent_bits,"
    " int scale_num_bits, int scale_exponent_bits) -> Tensor",
    "dynamic_block_quantize_op.overload(Tensor input, int block_size, None amax, int num_bits, int exponent_bits,"
    " int scale_num_bits, int scale_exponent_bits) -> Tensor",
)


def modelopt_quantize(
    input: torch.Tensor, amax: torch.Tensor, num_bits: int, exponent_bits: int, unsigned: bool, narrow_range: bool
) -> torch.Tensor:
    """Computes ModelOpt's `tensorrt::quantize_op`: input as it is after quantization.

    Args:
        input: A float type.
        amax: What maps to the largest quantized value; one element, or one for each slice of an axis, dimensions kept.
        num_bits, exponent_bits: (8, 4) is float8_e4m3; without an exponent they are integers.
        unsigned: Whether integers start at 0.
        narrow_range: Whether integers are symmetric.
    """
    is_float8 = (num_bits, exponent_bits) == (8, 4)
    if exponent_bits and not is_float8:
        raise NotImplementedError(f"floats of {num_bits} bits with {exponent_bits} in the exponent")
    high = limits(_FLOAT8)[1] if is_float8 else 2.0 ** (num_bits - (0 if unsigned else 1)) - 1
    scale = amax.to(torch.float32) / high
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # nothing but zeros has no scale of its own
    if not is_float8 and (unsigned or num_bits != 8):
        low = 0.0 if unsigned else -high - (0 if narrow_range else 1)
        steps = (input.to(torch.float32) / scale).round().clamp(low, high)
        return (steps * scale).to(input.dtype)
    missing = input.dim() - scale.dim()
    if scale.numel() > 1 and (missing < 0 or (missing and scale.dim() > 1)):
        raise NotImplementedError(f"scales of shape {tuple(scale.shape)} for {tuple(input.shape)}")
    flat, axis = simple_scale(scale.reshape([1] * missing + list(scale.shape)), input.shape)
    if narrow_range and not is_float8:
        bound = (scale * high).to(input.dtype)
        input = input.clamp(-bound, bound)
    return fake_quantize(input, flat, axis, _FLOAT8 if is_float8 else torch.int8)


def modelopt_quantize_blocks(
    input: torch.Tensor,
    block_size: int,
    amax: torch.Tensor | None,
    num_bits: int,
    exponent_bits: int,
    scale_num_bits: int,
    scale_exponent_bits: int,
) -> torch.Tensor:
    """Computes ModelOpt's `tensorrt::dynamic_block_quantize_op`: NVFP4 and MXFP8.

    Each block of the last axis has a scale: in float8_e4m3fn, all of which have one of their own, from `amax`; or a
    power of two.

    Args:
        input: (..., K), a float type.
        block_size: Elements of a block.
        amax: The largest magnitude of all blocks; None for that of the input. Powers of two need none.
        num_bits, exponent_bits: (4, 2) is E2M1, (8, 4) is float8_e4m3fn.
        scale_num_bits, scale_exponent_bits: (8, 4) is float8_e4m3fn; 8 bits of exponent are float8_e8m0fnu.
    """
    bits = bits_of_blocks(num_bits, exponent_bits, scale_num_bits, scale_exponent_bits)
    if bits is None:
        raise NotImplementedError("blocks of other types than E2M1 with scales in E4M3, and E4M3 with scales in E8M0")
    outer = outer_scale(input.abs().amax() if amax is None else amax) if bits == 4 else None
    kept: torch.Tensor = fake_quantize_blocks(input, outer, block_size, bits)
    return kept


def bits_of_blocks(num_bits: int, exponent_bits: int, scale_num_bits: int, scale_exponent_bits: int) -> int | None:
    """Returns the `bits` of `torch.ops.trt.fake_quantize_blocks` for a format of ModelOpt's, None for others.

    ModelOpt counts a sign among the bits of powers of two as well, which have none.
    """
    if (num_bits, exponent_bits, scale_num_bits, scale_exponent_bits) == (4, 2, 8, 4):
        return 4
    is_mxfp8 = (num_bits, exponent_bits, scale_exponent_bits) == (8, 4, 8) and scale_num_bits in (8, 9)
    return 8 if is_mxfp8 else None


def outer_scale(amax: torch.Tensor) -> torch.Tensor:
    """Returns what scales in float8_e4m3fn of blocks in E2M1 are scaled by, 0-d, so that the largest of them fits.

    Args:
        amax: The largest magnitude; of several elements the largest counts.
    """
    outer = amax.to(torch.float32).amax().reshape(()) / (limits(_FLOAT8, 4)[1] * limits(_FLOAT8)[1])
    return torch.where(outer > 0, outer, torch.ones_like(outer))


def _infer(input: torch.Tensor, *options: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _is_registered(name: str) -> bool:
    try:
        return bool(has_operator(f"tensorrt::{name}"))
    except RuntimeError:
        return False


if importlib.util.find_spec("modelopt") is None:
    _library = torch.library.Library("tensorrt", "FRAGMENT")
    for _schema in _SCHEMAS:
        _name = _schema.partition("(")[0]
        if not _is_registered(_name):
            _kernel = modelopt_quantize if _name == "quantize_op" else modelopt_quantize_blocks
            _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
            _library.impl(_name, _kernel, "CompositeExplicitAutograd")
            _library.impl(_name, _infer, "Meta")
