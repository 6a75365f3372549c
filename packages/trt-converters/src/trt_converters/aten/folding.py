"""Sliding blocks of images: im2col (unfold) and col2im (fold)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.aten.convolution import transposed_convolve
from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import combine, crop_and_pad, dimension, permute, reshape, squeeze, take_windows, unsqueeze
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS

aten = torch.ops.aten


def window_count(ctx: ConversionContext, extent: Any, kernel: int, dilation: int, padding: int, stride: int) -> Any:
    """Returns how many windows fit along an axis."""
    room = combine(ctx, "add", [extent, 2 * padding - dilation * (kernel - 1) - 1])
    return combine(ctx, "add", [combine(ctx, "floordiv", [room, stride]), 1])


@converter(aten.im2col.default)
def aten_im2col(
    ctx: ConversionContext,
    self: Operand,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor"""
    lead = rank_of(self) - 2
    counts = [
        window_count(
            ctx, dimension(ctx, self, lead + axis), kernel_size[axis], dilation[axis], padding[axis], stride[axis]
        )
        for axis in range(2)
    ]
    edge = [0] * lead + list(padding)
    value = crop_and_pad(ctx, self, edge, edge, 0)
    for axis in (1, 0):
        value = take_windows(ctx, value, lead + axis, counts[axis], kernel_size[axis], stride[axis], dilation[axis])
    # (..., rows, kernel rows, columns, kernel columns) to (..., kernel rows, kernel columns, rows, columns)
    order = [*range(lead), lead + 1, lead + 3, lead, lead + 2]
    return reshape(ctx, permute(ctx, value, order), ctx.result_shape)


def known_columns(call: Call) -> Verdict | None:
    """Refuses outputs of symbolic size, and columns of symbolic number."""
    extents = [*call["output_size"], *call.tensor("self").shape[-2:]]
    if all(isinstance(extent, int) for extent in extents):
        return None
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"self has shape {tuple(call.tensor('self').shape)}")


@converter(aten.col2im.default, checks=(dtypes("self", FLOATS), known_columns))
def aten_col2im(
    ctx: ConversionContext,
    self: Operand,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor"""  # noqa: E501
    batched = rank_of(self) == 3
    self = self if batched else unsqueeze(ctx, self, (0,))
    rows, columns = kernel_size
    taps = rows * columns
    channels = int(ctx.result_shape[-3])
    geometry = list(zip(output_size, kernel_size, dilation, padding, stride, strict=True))
    counts = [(size + 2 * pad - gap * (width - 1) - 1) // step + 1 for size, width, gap, pad, step in geometry]
    # adding overlapping blocks is a transposed convolution whose kernels put each tap in its place
    kernel = torch.eye(taps, dtype=dtype_of(self)).reshape(taps, 1, rows, columns).repeat(channels, 1, 1, 1)
    reached = [
        (count - 1) * step + gap * (width - 1) + 1 - 2 * pad
        for count, (_, width, gap, pad, step) in zip(counts, geometry, strict=True)
    ]
    missing = [size - end for size, end in zip(output_size, reached, strict=True)]
    blocks = reshape(ctx, self, [dimension(ctx, self, 0), channels * taps, *counts])
    image = transposed_convolve(ctx, blocks, kernel, None, stride, padding, missing, channels, dilation)
    return image if batched else squeeze(ctx, image, (0,))
