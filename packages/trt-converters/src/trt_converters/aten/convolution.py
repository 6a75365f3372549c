"""Convolutions and transposed convolutions of one to three spatial axes, and sliding blocks of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of, shape_of
from trt_converters.layers import (
    binary,
    cast,
    combine,
    crop_and_pad,
    dimension,
    permute,
    reshape,
    squeeze,
    take_windows,
    unsqueeze,
)
from trt_converters.layers.spatial import SpatialForm, per_axis
from trt_converters.registry import converter
from trt_core import Reason, Verdict, to_trt, trt
from trt_core.dtypes import FLOATS

aten = torch.ops.aten


def fixed_channels(call: Call) -> Verdict | None:
    """Refuses channels or kernels that are not known while building."""
    weight, input = call.tensor("weight"), call.tensor("input")
    if not all(isinstance(extent, int) for extent in weight.shape):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"weight has shape {tuple(weight.shape)}")
    if not isinstance(input.shape[1 - weight.dim()], int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, "the channels of input are symbolic")
    if weight.dim() not in (3, 4, 5):
        return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"{weight.dim() - 2} spatial axes, not 1 to 3")
    return None


def fixed_sizes(call: Call) -> Verdict | None:
    """Refuses strides, paddings, dilations and groups that depend on a shape."""
    for name in ("stride", "padding", "output_padding", "dilation", "groups"):
        value = call.arguments.get(name, 0)
        listed = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, (int, str)) for item in listed):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{name} is symbolic")
    return None


CHECKS = (dtypes("input", FLOATS), fixed_channels, fixed_sizes)


def convolve(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """Adds one convolution layer.

    Args:
        ctx: The context.
        input: (N, C, *spatial), or (C, *spatial).
        weight: (K, C / groups, *kernel), known while building or not.
        bias: (K,), or None.
        stride, dilation: One int per spatial axis, or one for all.
        padding: The same, or "valid" or "same", which adds the odd element at the end.
        groups: Number of groups.
    """
    spatial = rank_of(weight) - 2
    form = SpatialForm(rank_of(input), spatial)
    stride, dilation = per_axis(stride, spatial), per_axis(dilation, spatial)
    kernel = shape_of(weight)[2:]
    before, after = _paddings(padding, kernel, dilation)
    layer_of = ctx.network.add_convolution_nd
    layer, rest = _add_layer(ctx, layer_of, form, input, weight, bias, shape_of(weight)[0])
    layer.stride_nd = form.sizes(stride, 1)
    layer.dilation_nd = form.sizes(dilation, 1)
    layer.num_groups = groups
    layer.pre_padding, layer.post_padding = form.sizes(before, 0), form.sizes(after, 0)
    return form.leave(ctx, _add_bias(ctx, layer.get_output(0), rest))


def _paddings(
    padding: Sequence[int] | str, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if padding == "valid":
        return (0,) * len(kernel), (0,) * len(kernel)
    if padding == "same":
        totals = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    assert not isinstance(padding, str)
    both = per_axis(padding, len(kernel))
    return both, both


def _add_layer(
    ctx: ConversionContext,
    add: Any,
    form: SpatialForm,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    maps: int,
) -> tuple[Any, Operand | None]:
    """Adds a layer, and returns it with the bias when the layer could not take it."""
    kernel_shape = form.sizes(shape_of(weight)[2:], 1)
    input = ctx.tensor(form.enter(ctx, input))
    empty = trt.Weights(to_trt(dtype_of(input)))
    known = isinstance(weight, torch.Tensor)
    inside = known and (bias is None or isinstance(bias, torch.Tensor))
    kernel = ctx.weights(weight) if known else empty
    offsets = ctx.weights(bias) if inside and bias is not None else empty
    layer = ctx.own(add(input, maps, kernel_shape, kernel, offsets))
    if not known:
        layer.set_input(1, ctx.tensor(unsqueeze(ctx, weight, (2,)) if form.flat else weight))
    return layer, None if inside else bias


def _add_bias(ctx: ConversionContext, value: Any, bias: Operand | None) -> Any:
    if bias is None:
        return value
    return binary(ctx, "SUM", value, unsqueeze(ctx, bias, (0, *range(2, rank_of(value)))), "bias")


def transposed_convolve(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Any:
    """Adds one deconvolution layer.

    Args:
        ctx: The context.
        input: (N, C, *spatial), or (C, *spatial).
        weight: (C, K / groups, *kernel).
        bias: (K,), or None.
        stride, padding, output_padding, dilation: One int per spatial axis, or one for all.
        groups: Number of groups.
    """
    spatial = rank_of(weight) - 2
    form = SpatialForm(rank_of(input), spatial)
    stride, dilation = per_axis(stride, spatial), per_axis(dilation, spatial)
    before, extra = per_axis(padding, spatial), per_axis(output_padding, spatial)
    after = [low - more for low, more in zip(before, extra, strict=True)]
    missing = form.sizes([max(-amount, 0) for amount in after], 0)  # the layer trims, it never extends
    dtype = dtype_of(input)
    if dtype is torch.bfloat16:  # not every version of the layer has the type
        input, weight = cast(ctx, input, torch.float32), cast(ctx, weight, torch.float32)
        bias = None if bias is None else cast(ctx, bias, torch.float32)
    maps = shape_of(weight)[1] * groups
    layer, rest = _add_layer(
        ctx, ctx.network.add_deconvolution_nd, form, input, weight, None if any(missing) else bias, maps
    )
    layer.stride_nd = form.sizes(stride, 1)
    layer.dilation_nd = form.sizes(dilation, 1)
    layer.num_groups = groups
    layer.pre_padding = form.sizes(before, 0)
    layer.post_padding = form.sizes([max(amount, 0) for amount in after], 0)
    result = layer.get_output(0)
    if any(missing):
        result = crop_and_pad(ctx, result, (0,) * (2 + len(missing)), (0, 0, *missing), 0)
        rest = bias
    return form.leave(ctx, cast(ctx, _add_bias(ctx, result, rest), dtype))


@converter(
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv1d.padding,
    aten.conv2d.padding,
    aten.conv3d.padding,
    checks=CHECKS,
)
def aten_conv2d(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor"""  # noqa: E501
    return convolve(ctx, input, weight, bias, stride, padding, dilation, groups)


@converter(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input, checks=CHECKS)
def aten_conv_transpose2d(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Any:
    """conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1) -> Tensor"""  # noqa: E501
    return transposed_convolve(ctx, input, weight, bias, stride, padding, output_padding, groups, dilation)


@converter(aten.convolution.default, checks=CHECKS)
def aten_convolution(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"""  # noqa: E501
    if transposed:
        return transposed_convolve(ctx, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolve(ctx, input, weight, bias, stride, padding, dilation, groups)


@converter(aten._convolution.default, checks=CHECKS)
def aten__convolution(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    cudnn_enabled: bool,
    allow_tf32: bool,
) -> Any:
    """_convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled, bool allow_tf32) -> Tensor"""  # noqa: E501
    return aten_convolution(ctx, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


# Sliding blocks of images: im2col (unfold) and col2im (fold) --------------------------------------------------------


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
