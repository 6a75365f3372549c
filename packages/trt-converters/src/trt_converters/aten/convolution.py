"""Convolutions, transposed ones among them, sliding blocks of images, and max and average pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_converters.aten.products import multiply_axis
from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, Size, dtype_of, rank_of, shape_of
from trt_converters.layers import (
    binary,
    cast,
    combine,
    crop_and_pad,
    dimension,
    expand,
    gather,
    index_range,
    permute,
    reduce,
    reshape,
    scatter_elements,
    slice_tensor,
    squeeze,
    take_windows,
    unsqueeze,
)
from trt_converters.layers.gathering import linear_range
from trt_converters.layers.reductions import extremum, extremum_at
from trt_converters.layers.spatial import SpatialForm, per_axis
from trt_converters.registry import convert_each, converter
from trt_core import Reason, Verdict, to_trt, trt
from trt_core.dtypes import FLOATS, INTEGERS
from trt_core.sizes.expressions import extent_of, is_same_size

aten = torch.ops.aten
NUMBERS = FLOATS | INTEGERS


def lowest(dtype: torch.dtype) -> float | int:
    """Returns what no element of the type is smaller than."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def pool(
    ctx: ConversionContext,
    kind: str,
    value: Operand,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool = True,
) -> Any:
    """Adds one pooling layer; `kind` is the name of a `trt.PoolingType`.

    Args:
        ctx: The context.
        kind: MAX or AVERAGE.
        value: (N, C, *spatial), or (C, *spatial), floats.
        kernel, stride, padding: One int per spatial axis.
        ceil_mode: Whether the last window may be incomplete.
        count_include_pad: Whether padding counts in the divisor of an average.
    """
    form = SpatialForm(rank_of(value), len(kernel))
    kernel = _within(shape_of(value)[-len(kernel) :], kernel, padding)
    layer = ctx.own(
        ctx.network.add_pooling_nd(
            ctx.tensor(form.enter(ctx, value)), getattr(trt.PoolingType, kind), form.sizes(kernel, 1)
        )
    )
    layer.stride_nd = form.sizes(stride, 1)
    layer.pre_padding = layer.post_padding = form.sizes(padding, 0)
    layer.padding_mode = trt.PaddingMode.EXPLICIT_ROUND_UP if ceil_mode else trt.PaddingMode.EXPLICIT_ROUND_DOWN
    if kind == "AVERAGE":
        layer.average_count_excludes_padding = not count_include_pad
    result = form.leave(ctx, layer.get_output(0))
    if ceil_mode and any(
        step + low > size for size, step, low in zip(kernel, stride, padding, strict=True)
    ):  # PyTorch drops a last window that starts in the padding, the layer keeps it
        result = _trim(ctx, result, len(kernel))
    return result


def _within(extents: Sequence[int], kernel: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Cuts windows to the padded extents: a larger one, which only `ceil_mode` allows, sees nothing more."""
    return [
        min(size, extent + 2 * low) if extent >= 0 else size  # an open extent is -1
        for extent, size, low in zip(extents, kernel, padding, strict=True)
    ]


def _trim(ctx: ConversionContext, value: Any, spatial: int) -> Any:
    rank = rank_of(value)
    sizes = [None if axis < rank - spatial else ctx.result_shape[axis] for axis in range(rank)]
    return slice_tensor(ctx, value, [0] * rank, sizes)


def max_windows(
    ctx: ConversionContext,
    value: Operand,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Any, Any]:
    """Returns every window of a max pooling, and where its elements come from.

    Args:
        ctx: The context.
        value: (..., *spatial).
        kernel, stride, padding, dilation: One int per spatial axis.

    Returns:
        (..., *windows, *kernel), and flat positions in the unpadded spatial axes: (*windows, *kernel), int64.
    """
    spatial = len(kernel)
    first = rank_of(value) - spatial
    counts = ctx.result_shape[first:]
    # the windows of ceil_mode end behind the padding; every element that a window reaches must exist
    after = [
        low + (size - 1) * gap + step for low, size, gap, step in zip(padding, kernel, dilation, stride, strict=True)
    ]
    padded = crop_and_pad(ctx, value, [0] * first + list(padding), [0] * first + after, lowest(dtype_of(value)))
    for axis in reversed(range(spatial)):
        padded = take_windows(ctx, padded, first + axis, counts[axis], kernel[axis], stride[axis], dilation[axis])
    # (..., windows0, kernel0, windows1, kernel1, ...)
    order = [
        *range(first),
        *(first + 2 * axis for axis in range(spatial)),
        *(first + 2 * axis + 1 for axis in range(spatial)),
    ]
    return permute(ctx, padded, order), _positions(ctx, value, counts, kernel, stride, padding, dilation)


def _positions(
    ctx: ConversionContext,
    value: Operand,
    counts: Sequence[Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    spatial = len(kernel)
    first = rank_of(value) - spatial
    total: Any = None
    scale: Any = 1
    for axis in reversed(range(spatial)):
        along = linear_range(ctx, [counts[axis], kernel[axis]], [stride[axis], dilation[axis]], -padding[axis])
        shape: list[Any] = [1] * (2 * spatial)
        shape[axis], shape[spatial + axis] = counts[axis], kernel[axis]
        along = reshape(ctx, along, shape)
        if not (isinstance(scale, int) and scale == 1):
            along = scaled(ctx, along, scale)
        total = along if total is None else added(ctx, total, along)
        scale = combine(ctx, "mul", [scale, dimension(ctx, value, first + axis)])
    return total


def scaled(ctx: ConversionContext, value: Any, scale: Any) -> Any:
    """Multiplies positions by a size."""
    if isinstance(value, torch.Tensor) and isinstance(scale, int):
        return value * scale
    return binary(ctx, "PROD", value, torch.tensor(scale) if isinstance(scale, int) else scale, "position")


def added(ctx: ConversionContext, left: Any, right: Any) -> Any:
    """Adds positions, at once when both are known."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left + right
    return binary(ctx, "SUM", left, right, "position")


_BEHIND: Final = torch.iinfo(torch.int64).max
"""Greater than all positions."""


def _max_pool(
    ctx: ConversionContext,
    self: Operand,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    with_indices: bool = False,
) -> tuple[Any, Any]:
    spatial = _spatial_axes(ctx)
    kernel = per_axis(kernel_size, spatial)
    stride = per_axis(stride, spatial, kernel)
    padding, dilation = per_axis(padding, spatial), per_axis(dilation, spatial)
    if dtype_of(self).is_floating_point and set(dilation) == {1} and not with_indices:
        return pool(ctx, "MAX", self, kernel, stride, padding, ceil_mode), None
    windows, positions = max_windows(ctx, self, kernel, stride, padding, dilation)
    rank = rank_of(windows)
    axes = range(rank - spatial, rank)
    if not with_indices:
        return extremum(ctx, windows, axes, False, True), None
    return extremum_at(ctx, windows, positions, torch.tensor(_BEHIND), axes, largest=True, keep=False)


def _spatial_axes(ctx: ConversionContext) -> int:
    assert ctx.node is not None
    return _spatial_axes_of(ctx.node.target)


def _spatial_axes_of(operator: Any) -> int:
    """The number in an operator's name."""
    return int(next(digit for digit in str(operator) if digit in "123"))


def window_rank(call: Call) -> Verdict | None:
    """Refuses windows whose elements need more axes than tensors have."""
    spatial = _spatial_axes_of(call.node.target)
    dilation = call.arguments.get("dilation", 1)
    plain = set(per_axis(dilation, spatial)) == {1} and call.tensor("self").dtype in FLOATS
    if "with_indices" in str(call.node.target):
        plain = plain and not call.uses(1)
    return None if plain else _too_many_axes(call, spatial)


def _too_many_axes(call: Call, windows: int) -> Verdict | None:
    """Refuses windows of some axes whose elements need more axes than tensors have."""
    rank = call.tensor("self").dim() + windows
    if rank <= 8:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"its windows need {rank} dimensions, at most 8 exist")


convert_each(
    {
        (aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default): lambda ctx, **windows: _max_pool(
            ctx, **windows
        )[0],
        (
            aten.max_pool1d_with_indices.default,
            aten.max_pool2d_with_indices.default,
            aten.max_pool3d_with_indices.default,
        ): lambda ctx, **windows: _max_pool(ctx, **windows, with_indices=ctx.call.uses(1)),
    },
    checks=(dtypes("self", NUMBERS), window_rank),
)


@converter(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default, checks=dtypes("self", FLOATS))
def aten_avg_pool2d(
    ctx: ConversionContext,
    self: Operand,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Any:
    """avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor"""  # noqa: E501
    spatial = _spatial_axes(ctx)
    kernel = per_axis(kernel_size, spatial)
    strides = per_axis(stride, spatial, kernel)
    paddings = per_axis(padding, spatial)
    if divisor_override is None:
        return pool(ctx, "AVERAGE", self, kernel, strides, paddings, ceil_mode, count_include_pad)
    # zeros that belong to the input make every window complete: its average times its size is its sum
    lead = [0] * (rank_of(self) - spatial)
    after = [low + (step - 1 if ceil_mode else 0) for low, step in zip(paddings, strides, strict=True)]
    padded = crop_and_pad(ctx, self, lead + list(paddings), lead + after, 0)
    averages = pool(ctx, "AVERAGE", padded, kernel, strides, (0,) * spatial, False)
    volume = torch.Size(kernel).numel()
    scale = torch.tensor(volume / divisor_override, dtype=dtype_of(self))
    return binary(ctx, "PROD", _trim(ctx, averages, spatial), scale, "divisor")


def unpooled(ctx: ConversionContext, self: Operand, indices: Operand, spatial: int) -> Any:
    """Puts values at flat positions of the result's spatial axes, zeros elsewhere."""
    shape = ctx.result_shape
    lead = rank_of(self) - spatial
    target: Any = math.prod(shape[lead:])
    flat = [*ctx.symbolic_shape("self")[:lead], -1]
    zeros = expand(ctx, torch.zeros((1,) * (lead + 1), dtype=dtype_of(self)), [*shape[:lead], target])
    scattered = scatter_elements(ctx, zeros, reshape(ctx, indices, flat), reshape(ctx, self, flat), lead)
    return reshape(ctx, scattered, shape)


convert_each(
    {
        aten.max_unpool2d.default: lambda ctx, self, indices, **_: unpooled(ctx, self, indices, 2),
        aten.max_unpool3d.default: lambda ctx, self, indices, **_: unpooled(ctx, self, indices, 3),
    },
    checks=dtypes("self", NUMBERS),
)


# Adaptive pooling ---------------------------------------------------------------------------------------------------
# Window i of an axis is [floor(i * in / out), ceil((i + 1) * in / out)).


def known_output_size(call: Call) -> Verdict | None:
    """Refuses output sizes that no layer can compute."""
    unsaid = [size for size in call["output_size"] if not isinstance(size, int) and extent_of(size) is None]
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"no layer computes the extent {unsaid[0]}") if unsaid else None


def window_bounds(ctx: ConversionContext, extent: Size, windows: Size) -> tuple[Any, Any]:
    """Returns where each window starts and ends: two values of shape (windows,), int64."""
    extent, count = ctx.size(extent), ctx.size(windows)
    number = index_range(ctx, count)
    if isinstance(extent, int) and isinstance(count, int):
        return number * extent // count, -((number + 1) * extent // -count)
    extent, divisor = (torch.tensor([size]) if isinstance(size, int) else size for size in (extent, count))
    starts = binary(ctx, "FLOOR_DIV", binary(ctx, "PROD", extent, number), divisor)
    # ceil(a / b) = floor((a + b - 1) / b)
    rounded = binary(ctx, "SUM", binary(ctx, "PROD", extent, added(ctx, number, torch.tensor([1]))), divisor)
    return starts, binary(ctx, "FLOOR_DIV", binary(ctx, "SUB", rounded, torch.tensor([1])), divisor)


def averaging_matrix(ctx: ConversionContext, extent: Size, windows: Size) -> Any:
    """Returns the matrix whose column i averages window i: shape (extent, windows), float32."""
    starts, ends = window_bounds(ctx, extent, windows)
    if isinstance(starts, torch.Tensor) and isinstance(extent, int):
        positions = torch.arange(extent).unsqueeze(1)
        inside = (positions >= starts) & (positions < ends)
        return inside.float() / (ends - starts)
    positions = unsqueeze(ctx, index_range(ctx, extent), (1,))
    starts, ends = unsqueeze(ctx, starts, (0,)), unsqueeze(ctx, ends, (0,))
    before = binary(ctx, "LESS", binary(ctx, "SUB", starts, torch.ones((), dtype=torch.int64)), positions)
    inside = cast(ctx, binary(ctx, "AND", before, binary(ctx, "LESS", positions, ends)), torch.float32)
    return binary(ctx, "DIV", inside, cast(ctx, binary(ctx, "SUB", ends, starts), torch.float32), "average")


def adaptive_average(ctx: ConversionContext, value: Operand, output_size: Sequence[Size]) -> Any:
    """Averages windows of the last axes.

    One reduction where every window is the whole axis, one pooling layer where windows are equal, and otherwise one
    matrix product per axis.
    """
    rank, spatial = rank_of(value), len(output_size)
    first = rank - spatial
    extents = shape_of(value)[first:]
    if all(isinstance(size, int) and size == 1 for size in output_size):
        return reduce(ctx, "AVG", value, range(first, rank), True)
    if all(isinstance(size, int) and e > 0 and e % size == 0 for e, size in zip(extents, output_size, strict=True)):
        window = [extent // int(size) for extent, size in zip(extents, output_size, strict=True)]
        return pool(ctx, "AVERAGE", value, window, window, (0,) * spatial, False)
    dtype, original = dtype_of(value), ctx.symbolic_shape("self")
    value = cast(ctx, value, torch.float32)
    for axis, size in enumerate(output_size, start=first):
        extent = dimension(ctx, value, axis)
        if is_same_size(size, original[axis]):
            continue
        value = multiply_axis(ctx, value, axis, averaging_matrix(ctx, extent, size))
    return cast(ctx, value, dtype)


def adaptive_windows(ctx: ConversionContext, value: Operand, axis: int, windows: Size) -> tuple[Any, Any]:
    """Replaces an axis by windows and their elements; short windows repeat their last element.

    Returns:
        The value with the axis replaced by two, and the positions on the axis: (windows, elements), int64.
    """
    extent = dimension(ctx, value, axis)
    starts, ends = window_bounds(ctx, extent, windows)
    longest = combine(ctx, "add", [combine(ctx, "ceildiv", [extent, windows]), 1])
    offsets = index_range(ctx, longest)
    if isinstance(starts, torch.Tensor) and isinstance(offsets, torch.Tensor):
        positions = torch.minimum(starts.unsqueeze(1) + offsets, ends.unsqueeze(1) - 1)
    else:
        last = binary(ctx, "SUB", ends, torch.ones((), dtype=torch.int64))
        reached = binary(ctx, "SUM", unsqueeze(ctx, starts, (1,)), unsqueeze(ctx, offsets, (0,)))
        positions = binary(ctx, "MIN", reached, unsqueeze(ctx, last, (1,)))
    return gather(ctx, value, positions, axis), positions


@converter(
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    checks=(dtypes("self", FLOATS), known_output_size),
)
def aten_adaptive_avg_pool2d(ctx: ConversionContext, self: Operand, output_size: Sequence[Size]) -> Any:
    """adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor"""
    return adaptive_average(ctx, self, output_size)


def adaptive_window_rank(call: Call) -> Verdict | None:
    """Refuses windows whose elements need more axes than tensors have."""
    return _too_many_axes(call, len(call["output_size"]))


@converter(
    aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
    checks=(dtypes("self", NUMBERS), known_output_size, adaptive_window_rank),
)
def aten_adaptive_max_pool2d(ctx: ConversionContext, self: Operand, output_size: Sequence[Size]) -> tuple[Any, Any]:
    """adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)"""
    spatial = len(output_size)
    first = rank_of(self) - spatial
    windows, positions, scale = self, None, 1
    for axis in reversed(range(spatial)):
        extent = dimension(ctx, self, first + axis)
        windows, along = adaptive_windows(ctx, windows, first + axis, output_size[axis])
        shape: list[Any] = [1] * (2 * spatial)
        shape[2 * axis], shape[2 * axis + 1] = output_size[axis], dimension(ctx, windows, first + axis + 1)
        along = scaled(ctx, reshape(ctx, along, shape), scale)
        positions = along if positions is None else added(ctx, positions, along)
        scale = combine(ctx, "mul", [scale, extent])
    axes = [first + 2 * axis + 1 for axis in range(spatial)]
    if not ctx.call.uses(1):
        return extremum(ctx, windows, axes, False, True), None
    return extremum_at(ctx, windows, positions, torch.tensor(_BEHIND), axes, largest=True, keep=False)


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


def _convolution(ctx: ConversionContext, *, transposed: bool, output_padding: Sequence[int], **arguments: Any) -> Any:
    if transposed:
        return transposed_convolve(ctx, output_padding=output_padding, **arguments)
    return convolve(ctx, **arguments)


convert_each(
    {
        (
            *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
            *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
        ): lambda ctx, **arguments: convolve(ctx, **arguments),
        (
            *(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input),
        ): lambda ctx, **arguments: transposed_convolve(ctx, **arguments),
        aten.convolution.default: _convolution,
        aten._convolution.default: lambda ctx, benchmark, deterministic, cudnn_enabled, allow_tf32, **arguments: (
            _convolution(ctx, **arguments)
        ),
    },
    checks=CHECKS,
)


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


def _beyond_blocks(count: Size, size: Size, width: int, gap: int, pad: int, step: int) -> int:
    """Returns how many elements of an axis no block reaches, or the most that may be, where its extent is symbolic."""
    if isinstance(count, int) and isinstance(size, int):
        return size + 2 * pad - gap * (width - 1) - 1 - (count - 1) * step
    return step - 1


@converter(aten.col2im.default, checks=dtypes("self", FLOATS))
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
    counts = [window_count(ctx, *axis) for axis in geometry]
    # adding overlapping blocks is a transposed convolution whose kernels put each tap in its place
    kernel = torch.eye(taps, dtype=dtype_of(self)).reshape(taps, 1, rows, columns).repeat(channels, 1, 1, 1)
    blocks = reshape(ctx, self, [dimension(ctx, self, 0), channels * taps, *counts])
    missing = [_beyond_blocks(count, *axis) for count, axis in zip(counts, geometry, strict=True)]
    image = transposed_convolve(ctx, blocks, kernel, None, stride, padding, missing, channels, dilation)
    sizes = [size if step > 1 else None for size, step in zip(output_size, stride, strict=True)]
    image = slice_tensor(ctx, image, (0, 0, 0, 0), (None, None, *sizes))
    return image if batched else squeeze(ctx, image, (0,))
