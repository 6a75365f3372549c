"""Sampling at coordinates: grid_sampler, and the grids of affine maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_converters.aten.linear import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, Size, dtype_of
from trt_converters.layers import cast, reshape
from trt_converters.registry import converter
from trt_core import Reason, Verdict, provider_version, trt
from trt_core.dtypes import FLOATS

aten = torch.ops.aten
INTERPOLATION: Final = ("LINEAR", "NEAREST", "CUBIC")
PADDING: Final = ("FILL", "CLAMP", "REFLECT")
VOLUMES: Final = (11, 2)
"""First version whose layer samples volumes."""


def known_rank(call: Call) -> Verdict | None:
    """Refuses volumes where the layer samples images only, and cubic interpolation of them."""
    if call.tensor("input").dim() == 4:
        return None
    if provider_version() < VOLUMES:
        return Verdict.refuse(Reason.PROVIDER_VERSION, "sampling volumes needs TensorRT 11.2 or newer")
    if call["interpolation_mode"] == 2:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "cubic interpolation of volumes")
    return None


@converter(
    aten.grid_sampler_2d.default,
    aten.grid_sampler_3d.default,
    aten.grid_sampler.default,
    checks=(dtypes("input", FLOATS), known_rank),
)
def aten_grid_sampler_2d(
    ctx: ConversionContext,
    input: Operand,
    grid: Operand,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Any:
    """grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""  # noqa: E501
    dtype = dtype_of(input)
    if dtype is not torch.float32:  # half precision moves the coordinates by whole pixels
        input, grid = cast(ctx, input, torch.float32), cast(ctx, grid, torch.float32)
    layer = ctx.own(ctx.network.add_grid_sample(ctx.tensor(input), ctx.tensor(grid)))
    layer.interpolation_mode = getattr(trt.InterpolationMode, INTERPOLATION[interpolation_mode])
    layer.sample_mode = getattr(trt.SampleMode, PADDING[padding_mode])
    layer.align_corners = align_corners
    return cast(ctx, layer.get_output(0), dtype)


def known_grid(call: Call) -> Verdict | None:
    """Refuses grids of symbolic extent."""
    if all(isinstance(extent, int) for extent in call["size"][2:]):
        return None
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"the grid has size {call['size']}")


@converter(aten.affine_grid_generator.default, checks=(dtypes("theta", FLOATS), known_grid))
def aten_affine_grid_generator(
    ctx: ConversionContext, theta: Operand, size: Sequence[Size], align_corners: bool
) -> Any:
    """affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor"""
    dtype = dtype_of(theta)
    axes = []
    for extent in size[2:]:
        count = int(extent)
        ends = torch.linspace(-1, 1, count) if count > 1 else torch.zeros(1)
        axes.append(ends if align_corners else ends * (count - 1) / count)
    mesh = torch.meshgrid(*axes, indexing="ij")
    # coordinates are listed from the innermost axis to the outermost, and one for the translation
    base = torch.stack([*(part.reshape(-1) for part in reversed(mesh)), torch.ones(mesh[0].numel())], 1)
    moved = matrix_multiply(ctx, base.to(dtype).unsqueeze(0), theta, transpose_right=True)
    return reshape(ctx, moved, ctx.result_shape)
