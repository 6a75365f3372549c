"""Convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trt_portable.enums import (
    DataType,
    ErrorCode,
    PaddingMode,
    PoolingType,
    ReduceOperation,
    SampleMode,
    UnaryOperation,
)
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import Initializer
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import Extent, NetworkWriter, Operand
from trt_portable.weights import Weights

AUTO_PADDINGS: Final = {"SAME_UPPER": PaddingMode.SAME_UPPER, "SAME_LOWER": PaddingMode.SAME_LOWER}


def per_axis(numbers: list[int] | None, count: int, default: int, what: str) -> list[int]:
    """One number per spatial axis.

    Raises:
        Unsupported: There are more or fewer.
    """
    found = [default] * count if numbers is None else list(numbers)
    if len(found) != count:
        raise Unsupported(f"{what} {found} for {count} spatial axes", ErrorCode.INVALID_NODE)
    return found


def before_and_after(pads: list[int] | None, count: int) -> tuple[list[int], list[int]]:
    """The paddings at both ends of each spatial axis."""
    whole = per_axis(pads, 2 * count, 0, "pads")
    return whole[:count], whole[count:]


def _filter_operands(
    net: NetworkWriter, x: ITensor, w: Operand, b: Operand | None, is_flat: bool
) -> tuple[Weights, Weights | None, list[tuple[int, ITensor]]]:
    """Kernel and bias as weights, or where they are computed as inputs of the layer."""
    inputs: list[tuple[int, ITensor]] = []
    weights: list[Weights | None] = []
    for place, operand in ((1, w), (2, b)):
        if operand is None:
            weights.append(None)
        elif isinstance(operand, Initializer) and operand.dtype is x.dtype:
            weights.append(operand.weights())
        else:
            tensor = net.tensor(operand)
            if place == 1 and is_flat:
                tensor = net.unsqueeze(tensor, [2])
            inputs.append((place, tensor))
            weights.append(Weights(x.dtype))
    kernel, bias = weights
    assert kernel is not None
    return kernel, bias, inputs


def _spatial_axes(net: NetworkWriter, x: ITensor) -> int:
    """The number of spatial axes of images."""
    rank = net.rank(x)
    if rank not in (3, 4, 5):
        raise Unsupported(
            f"{net.node.operator} of rank {rank}: one, two or three spatial axes only", ErrorCode.UNSUPPORTED_NODE_SHAPE
        )
    return rank - 2


def _spatial(net: NetworkWriter, x: ITensor, w: Operand, kernel_shape: list[int] | None) -> tuple[list[int], bool]:
    """The extents of a kernel, two or three, and whether the first of them was added."""
    count = _spatial_axes(net, x)
    kernel = list(w.shape[2:])
    if kernel_shape is not None and list(kernel_shape) != kernel:
        raise Unsupported(f"kernel_shape {kernel_shape} of a kernel of shape {tuple(w.shape)}", ErrorCode.INVALID_NODE)
    if len(kernel) != count or any(extent < 1 for extent in kernel):
        raise Unsupported(f"a kernel of shape {tuple(w.shape)} for rank {count + 2}", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    return ([1, *kernel], True) if count == 1 else (kernel, False)


def _widened(numbers: list[int], is_flat: bool, fill: int) -> tuple[int, ...]:
    return (fill, *numbers) if is_flat else tuple(numbers)


def _finish(net: NetworkWriter, layer: Any, w: Operand, b: Operand | None, is_flat: bool) -> ITensor:
    result = net.output_of(layer)
    for operand, role in ((w, "KERNEL"), (b, "BIAS")):
        if isinstance(operand, Initializer) and layer._roles[role].size:
            net.name_weights(operand)
    return net.squeeze(result, [2]) if is_flat else result


FILTER_ATTRIBUTES: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
"""The attributes of Conv, all optional."""
_WINDOW_ATTRIBUTES: Final = ("auto_pad", "ceil_mode", "dilations", "pads", "strides")
"""Optional attributes of pooling."""


@operator("Conv", attributes=FILTER_ATTRIBUTES)
def conv(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    b: Operand | None = None,
    *,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    **lying: Any,
) -> ITensor:
    """Conv(X, W, B; auto_pad, dilations, group, kernel_shape, pads, strides) -> Y"""
    kernel, is_flat = _spatial(net, x, w, kernel_shape)
    windows = _windows(net, x, kernel[is_flat:], **lying)
    weights, bias, inputs = _filter_operands(net, x, w, b, is_flat)
    image = net.unsqueeze(x, [2]) if is_flat else x
    layer = net.layer(net.network.add_convolution_nd(image, w.shape[0], tuple(kernel), weights, bias))
    layer.num_groups = group
    layer.dilation_nd = _widened(windows.dilations, is_flat, 1)
    windows.lay(layer, is_flat)
    for place, tensor in inputs:
        layer.set_input(place, tensor)
    return _finish(net, layer, w, b, is_flat)


@operator("ConvTranspose")
def conv_transpose(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    b: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ITensor:
    """ConvTranspose(X, W, B; auto_pad, ..., output_padding, output_shape, pads, strides) -> Y"""
    kernel, is_flat = _spatial(net, x, w, kernel_shape)
    count = net.rank(x) - 2
    steps = per_axis(strides, count, 1, "strides")
    reach = per_axis(dilations, count, 1, "dilations")
    extra = per_axis(output_padding, count, 0, "output_padding")
    before, after = before_and_after(pads, count)
    if auto_pad != "NOTSET" or output_shape is not None:
        sizes = _full_trims(x, kernel[-count:], steps, reach, extra, output_shape, auto_pad)
        before, after = _halved(sizes, auto_pad)
    weights, bias, inputs = _filter_operands(net, x, w, b, is_flat)
    image = net.unsqueeze(x, [2]) if is_flat else x
    trims = [end - more for end, more in zip(after, extra, strict=True)]
    if any(trim < 0 for trim in trims):
        bias = None if bias is None else Weights(x.dtype)
    layer = net.layer(net.network.add_deconvolution_nd(image, w.shape[1] * group, tuple(kernel), weights, bias))
    layer.num_groups = group
    layer.stride_nd = _widened(steps, is_flat, 1)
    layer.dilation_nd = _widened(reach, is_flat, 1)
    layer.pre_padding = _widened([max(trim, 0) for trim in before], is_flat, 0)
    layer.post_padding = _widened([max(trim, 0) for trim in trims], is_flat, 0)
    if not any(trim < 0 for trim in (*before, *trims)):
        for place, tensor in inputs:
            layer.set_input(place, tensor)
        return _finish(net, layer, w, b, is_flat)
    for place, tensor in inputs[:1] if inputs and inputs[0][0] == 1 else ():
        layer.set_input(place, tensor)
    result = _finish(net, layer, w, None, is_flat)
    return _extended(net, result, b, [max(-t, 0) for t in before], [max(-t, 0) for t in trims])


def _extended(net: NetworkWriter, x: ITensor, b: Operand | None, before: list[int], after: list[int]) -> ITensor:
    """A result of a convolution with zeros at its ends, and the bias added after that."""
    from trt_portable.onnx_parser.operators.movement import padded

    wider = padded(net, x, [0, 0, *before, 0, 0, *after])
    if b is None:
        return wider
    shift = net.unsqueeze(net.tensor(b), range(1, net.rank(x) - 1))
    return net.binary(wider, shift, Op.SUM)


def _full_trims(
    x: ITensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
    output_shape: list[int] | None,
    auto_pad: str,
) -> list[int]:
    """How much of each axis of a deconvolution's full result is cut off in all."""
    if auto_pad == "VALID":
        return [0] * len(kernel)
    trims = []
    for place, (span, stride, dilation, more) in enumerate(zip(kernel, strides, dilations, extra, strict=True)):
        width = (span - 1) * dilation + 1
        if output_shape is None:
            trims.append(width + more - stride)
            continue
        extent = x.shape[2 + place]
        if extent < 0:
            raise Unsupported("output_shape of a dynamic extent", ErrorCode.UNSUPPORTED_NODE_DYNAMIC)
        trims.append((extent - 1) * stride + width + more - output_shape[-len(kernel) :][place])
    return trims


def _halved(sizes: list[int], auto_pad: str) -> tuple[list[int], list[int]]:
    """Trims at both ends: the odd one at the end with SAME_UPPER, else at the beginning."""
    before = [size // 2 if auto_pad == "SAME_UPPER" else size - size // 2 for size in sizes]
    return before, [size - first for size, first in zip(sizes, before, strict=True)]


@dataclass(frozen=True)
class _Windows:
    """How windows lie along each spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]
    auto_pad: str
    rounds_up: bool

    def lay(self, layer: Any, is_flat: bool) -> None:
        """Gives a layer of one spatial axis more, if that was added, strides and paddings."""
        layer.stride_nd = _widened(self.strides, is_flat, 1)
        if self.auto_pad in AUTO_PADDINGS:
            layer.padding_mode = AUTO_PADDINGS[self.auto_pad]
        else:
            layer.pre_padding, layer.post_padding = (_widened(pad, is_flat, 0) for pad in (self.before, self.after))


def _windows(
    net: NetworkWriter,
    x: ITensor,
    kernel_shape: list[int],
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> _Windows:
    count = _spatial_axes(net, x)
    before, after = before_and_after(pads if auto_pad in ("NOTSET", "") else None, count)
    return _Windows(
        per_axis(kernel_shape, count, 1, "kernel_shape"),
        per_axis(strides, count, 1, "strides"),
        per_axis(dilations, count, 1, "dilations"),
        before,
        after,
        auto_pad,
        bool(ceil_mode) and auto_pad not in AUTO_PADDINGS,
    )


def _pool(
    net: NetworkWriter, x: ITensor, kind: PoolingType, windows: _Windows, counts_padding: bool = False
) -> ITensor:
    """Pools with a layer; windows with gaps as the extreme or the sum of shifted slices."""
    if any(dilation != 1 for dilation in windows.dilations):
        return _dilated(net, x, kind, windows, counts_padding)
    is_flat = net.rank(x) == 3
    image = net.unsqueeze(x, [2]) if is_flat else x
    layer = net.layer(net.network.add_pooling_nd(image, kind, _widened(windows.kernel, is_flat, 1)))
    layer.average_count_excludes_padding = not counts_padding
    windows.lay(layer, is_flat)
    if windows.rounds_up:
        layer.padding_mode = PaddingMode.EXPLICIT_ROUND_UP
    result = net.output_of(layer)
    result = net.squeeze(result, [2]) if is_flat else result
    return _without_windows_in_padding(net, x, result, windows) if windows.rounds_up else result


def _count(net: NetworkWriter, extent: Extent, place: int, windows: _Windows) -> Extent:
    """How many windows an axis has; none begins in the padding behind the data."""
    span = (windows.kernel[place] - 1) * windows.dilations[place] + 1
    stride, before, after = windows.strides[place], windows.before[place], windows.after[place]
    slack = before + after - span + (stride - 1 if windows.rounds_up else 0)
    count = net.combine(net.combine(net.combine(extent, slack, Op.SUM), stride, Op.FLOOR_DIV), 1, Op.SUM)
    if not windows.rounds_up:
        return count
    most = net.combine(net.combine(net.combine(extent, before - 1, Op.SUM), stride, Op.FLOOR_DIV), 1, Op.SUM)
    return net.combine(count, most, Op.MIN)


def _without_windows_in_padding(net: NetworkWriter, x: ITensor, result: ITensor, windows: _Windows) -> ITensor:
    extents = net.extents(x)
    for place in range(len(windows.kernel)):
        wanted = _count(net, extents[2 + place], place, windows)
        if wanted != result.shape[2 + place]:
            result = net.narrow(result, 2 + place, 0, wanted)
    return result


def _dilated(net: NetworkWriter, x: ITensor, kind: PoolingType, windows: _Windows, counts_padding: bool) -> ITensor:
    """Windows with gaps: axis after axis, the greatest or the sum of shifted slices."""
    if windows.auto_pad in AUTO_PADDINGS:
        windows = _explicit(x, windows)
    if kind is PoolingType.MAX:
        lowest = {DataType.HALF: -65504.0, DataType.INT8: -128}.get(x.dtype, -3.4028234e38)
        return _slid(net, x, windows, Op.MAX, lowest)
    total = _slid(net, x, windows, Op.SUM, 0)
    if counts_padding and not windows.rounds_up:
        return net.with_number(total, math.prod(windows.kernel), Op.DIV)
    rank = net.rank(x)
    extents: list[Extent] = [1, 1, *net.extents(x)[2:]]
    ones = net.expand(net.constant(np.ones((1,) * rank), x.dtype), extents)
    if counts_padding:  # what is padded counts, but not what only the last window reaches
        starts: list[Extent] = [0, 0, *(-pad for pad in windows.before)]
        ends = zip(extents[2:], windows.before, windows.after, strict=True)
        sizes = [*extents[:2], *(net.combine(extent, before + after, Op.SUM) for extent, before, after in ends)]
        ones = net.slice(ones, starts, sizes, mode=SampleMode.FILL, fill=net.constant(1, x.dtype))
        zeros = [0] * len(windows.kernel)
        windows = replace(windows, before=zeros, after=zeros)
    return net.binary(total, _slid(net, ones, windows, Op.SUM, 0), Op.DIV)


def _explicit(x: ITensor, windows: _Windows) -> _Windows:
    """Windows with the padding in numbers that SAME_UPPER or SAME_LOWER asks for."""
    before, after = [], []
    for place, extent in enumerate(x.shape[2:]):
        if extent < 0:
            raise Unsupported("dilations and automatic padding of a dynamic extent", ErrorCode.UNSUPPORTED_NODE_DYNAMIC)
        stride = windows.strides[place]
        span = (windows.kernel[place] - 1) * windows.dilations[place] + 1
        total = max((-(-extent // stride) - 1) * stride + span - extent, 0)
        less, more = total // 2, total - total // 2
        before.append(less if windows.auto_pad == "SAME_UPPER" else more)
        after.append(more if windows.auto_pad == "SAME_UPPER" else less)
    return replace(windows, before=before, after=after, auto_pad="NOTSET")


def _slid(net: NetworkWriter, x: ITensor, windows: _Windows, op: Op, neutral: float) -> ITensor:
    fill = net.constant(neutral, x.dtype)
    for place, (taps, stride, dilation) in enumerate(
        zip(windows.kernel, windows.strides, windows.dilations, strict=True)
    ):
        axis = 2 + place
        extents = net.extents(x)
        count = _count(net, extents[axis], place, windows)
        reach = net.combine(net.combine(count, -1, Op.SUM), stride, Op.PROD)
        starts: list[Extent] = [0] * len(extents)
        starts[axis] = -windows.before[place]
        extents[axis] = net.combine(reach, (taps - 1) * dilation + 1, Op.SUM)
        x = net.slice(x, starts, extents, mode=SampleMode.FILL, fill=fill)
        extents[axis] = count
        strides: list[Extent] = [1] * len(extents)
        strides[axis] = stride
        shifted = []
        for tap in range(taps):
            starts[axis] = tap * dilation
            shifted.append(net.slice(x, list(starts), extents, strides))
        x = shifted[0]
        for other in shifted[1:]:
            x = net.binary(x, other, op)
    return x


@operator("MaxPool", attributes=_WINDOW_ATTRIBUTES)
def max_pool(
    net: NetworkWriter, x: ITensor, *, kernel_shape: list[int], storage_order: int = 0, **lying: Any
) -> ITensor:
    """MaxPool(X; auto_pad, ceil_mode, dilations, kernel_shape, pads, storage_order, strides) -> Y"""
    windows = _windows(net, x, kernel_shape, **lying)
    if x.dtype is DataType.INT32:  # as which bytes are held, all of which floats have
        return net.through(x, DataType.FLOAT, lambda wide: _pool(net, wide, PoolingType.MAX, windows))
    return _pool(net, x, PoolingType.MAX, windows)


@operator("AveragePool", attributes=_WINDOW_ATTRIBUTES)
def average_pool(
    net: NetworkWriter, x: ITensor, *, kernel_shape: list[int], count_include_pad: int = 0, **lying: Any
) -> ITensor:
    """AveragePool(X; auto_pad, ceil_mode, count_include_pad, dilations, kernel_shape, pads, strides) -> Y"""
    windows = _windows(net, x, kernel_shape, **lying)
    return _pool(net, x, PoolingType.AVERAGE, windows, bool(count_include_pad))


@operator("LpPool", since=2, attributes=_WINDOW_ATTRIBUTES)
def lp_pool(net: NetworkWriter, x: ITensor, *, kernel_shape: list[int], p: int = 2, **lying: Any) -> ITensor:
    """LpPool(X; auto_pad, ceil_mode, dilations, kernel_shape, p, pads, strides) -> Y"""
    _require_power(p)
    windows = _windows(net, x, kernel_shape, **lying)
    powers = _power(net, net.unary(x, UnaryOperation.ABS), p)
    if windows.rounds_up or any(dilation != 1 for dilation in windows.dilations):
        explicit = _explicit(x, windows) if windows.auto_pad in AUTO_PADDINGS else windows
        return _root(net, _slid(net, powers, explicit, Op.SUM, 0), p)
    mean = _pool(net, powers, PoolingType.AVERAGE, windows, counts_padding=True)
    return _root(net, net.with_number(mean, math.prod(windows.kernel), Op.PROD), p)


def _require_power(p: int) -> None:
    if p < 1:
        raise Unsupported(f"a norm with p = {p}", ErrorCode.INVALID_NODE)


def _power(net: NetworkWriter, x: ITensor, p: int) -> ITensor:
    if p == 1:
        return x
    return net.binary(x, x, Op.PROD) if p == 2 else net.with_number(x, p, Op.POW)


def _root(net: NetworkWriter, x: ITensor, p: int) -> ITensor:
    if p == 1:
        return x
    return net.unary(x, UnaryOperation.SQRT) if p == 2 else net.with_number(x, 1 / p, Op.POW)


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(net: NetworkWriter, x: ITensor) -> ITensor:
    """GlobalAveragePool(X) -> Y"""
    op = ReduceOperation.AVG if net.node.operator == "GlobalAveragePool" else ReduceOperation.MAX
    return net.reduce(x, op, range(2, net.rank(x)), True)


@operator("GlobalLpPool", since=2)
def global_lp_pool(net: NetworkWriter, x: ITensor, *, p: int = 2) -> ITensor:
    """GlobalLpPool(X; p) -> Y"""
    _require_power(p)
    powers = _power(net, net.unary(x, UnaryOperation.ABS), p)
    return _root(net, net.reduce(powers, ReduceOperation.SUM, range(2, net.rank(x)), True), p)
