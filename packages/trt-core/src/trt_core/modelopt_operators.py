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

from trt_core.quantization import fake_quantize, limits

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
    axis, flat = _axis_of(scale, input)
    if narrow_range and not is_float8:
        bound = (scale * high).to(input.dtype)
        input = input.clamp(-bound, bound)
    return fake_quantize(input, flat, axis, _FLOAT8 if is_float8 else torch.int8)


def _axis_of(scale: torch.Tensor, input: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Returns the axis of scales that keep their dimensions, and the scales with that dimension alone."""
    wide = [axis for axis, extent in enumerate(scale.shape) if extent != 1]
    if not wide:
        return -1, scale.reshape(())
    if len(wide) == 1 and (scale.dim() == input.dim() or scale.dim() == 1):
        axis = wide[0] + input.dim() - scale.dim() if scale.dim() == 1 else wide[0]
        return axis, scale.reshape(-1)
    if scale.dim() == input.dim():
        return -1, scale
    raise NotImplementedError(f"scales of shape {tuple(scale.shape)} for {tuple(input.shape)}")


def modelopt_quantize_blocks(
    input: torch.Tensor,
    block_size: int,
    amax: torch.Tensor | None,
    num_bits: int,
    exponent_bits: int,
    scale_num_bits: int,
    scale_exponent_bits: int,
) -> torch.Tensor:
    """Computes ModelOpt's `tensorrt::dynamic_block_quantize_op`: NVFP4, by arithmetic.

    Each block of the last axis has a scale in float8_e4m3, and all scales one of their own, from `amax`.
    """
    if (num_bits, exponent_bits, scale_num_bits, scale_exponent_bits) != (4, 2, 8, 4):
        raise NotImplementedError("blocks of other types than E2M1 with scales in E4M3")
    blocks = input.to(torch.float32).unflatten(-1, (-1, block_size))
    largest = blocks.abs().amax(-1, keepdim=True)
    outer = (largest.amax() if amax is None else amax.to(torch.float32)).reshape(()) / (6.0 * 448.0)
    outer = torch.where(outer > 0, outer, torch.ones_like(outer))
    scale = (largest / 6.0 / outer).clamp(max=448.0).to(_FLOAT8).to(torch.float32) * outer
    steps = blocks / torch.where(scale > 0, scale, torch.ones_like(scale))
    size = steps.abs().clamp(max=6.0)
    grid = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))  # the steps of E2M1
    rounded = torch.copysign((size / grid).round() * grid, steps)
    kept: torch.Tensor = (rounded * scale).flatten(-2).to(input.dtype)
    return kept


def _infer(input: torch.Tensor, *options: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _is_registered(name: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel(f"tensorrt::{name}"))
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
            torch.library.register_fake(f"tensorrt::{_name}", _infer, lib=_library)
