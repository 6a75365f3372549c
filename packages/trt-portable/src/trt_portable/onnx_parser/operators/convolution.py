"""Convolutions; those along one axis run as convolutions of images of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trt_portable.enums import ElementWiseOperation, ErrorCode, PaddingMode
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import Initializer
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand
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


def _spatial(net: NetworkWriter, x: ITensor, w: Operand, kernel_shape: list[int] | None) -> tuple[list[int], bool]:
    """The extents of a kernel, two or three, and whether the first of them was added."""
    rank = net.rank(x)
    if rank not in (3, 4, 5):
        raise Unsupported(
            f"{net.node.operator} of rank {rank}: one, two or three spatial axes only", ErrorCode.UNSUPPORTED_NODE_SHAPE
        )
    kernel = list(w.shape[2:])
    if kernel_shape is not None and list(kernel_shape) != kernel:
        raise Unsupported(f"kernel_shape {kernel_shape} of a kernel of shape {tuple(w.shape)}", ErrorCode.INVALID_NODE)
    if len(kernel) != rank - 2 or any(extent < 1 for extent in kernel):
        raise Unsupported(f"a kernel of shape {tuple(w.shape)} for rank {rank}", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    return ([1, *kernel], True) if rank == 3 else (kernel, False)


def _widened(numbers: list[int], is_flat: bool, fill: int) -> tuple[int, ...]:
    return (fill, *numbers) if is_flat else tuple(numbers)


def _finish(net: NetworkWriter, layer: Any, w: Operand, b: Operand | None, is_flat: bool) -> ITensor:
    result = net.output_of(layer)
    for operand, role in ((w, "KERNEL"), (b, "BIAS")):
        if isinstance(operand, Initializer) and layer._roles[role].size:
            net.name_weights(operand)
    return net.squeeze(result, [2]) if is_flat else result


@operator("Conv")
def conv(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    b: Operand | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ITensor:
    """Conv(X, W, B; auto_pad, dilations, group, kernel_shape, pads, strides) -> Y"""
    kernel, is_flat = _spatial(net, x, w, kernel_shape)
    count = net.rank(x) - 2
    weights, bias, inputs = _filter_operands(net, x, w, b, is_flat)
    image = net.unsqueeze(x, [2]) if is_flat else x
    layer = net.layer(net.network.add_convolution_nd(image, w.shape[0], tuple(kernel), weights, bias))
    layer.num_groups = group
    layer.stride_nd = _widened(per_axis(strides, count, 1, "strides"), is_flat, 1)
    layer.dilation_nd = _widened(per_axis(dilations, count, 1, "dilations"), is_flat, 1)
    if auto_pad in AUTO_PADDINGS:
        layer.padding_mode = AUTO_PADDINGS[auto_pad]
    else:
        before, after = before_and_after(pads if auto_pad == "NOTSET" else None, count)
        layer.pre_padding, layer.post_padding = _widened(before, is_flat, 0), _widened(after, is_flat, 0)
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
    from trt_portable.onnx_parser.operators.movement import pad_2

    padded = pad_2(net, x, pads=[0, 0, *before, 0, 0, *after])
    if b is None:
        return padded
    shift = net.unsqueeze(net.tensor(b), range(1, net.rank(x) - 1))
    return net.binary(padded, shift, ElementWiseOperation.SUM)


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
