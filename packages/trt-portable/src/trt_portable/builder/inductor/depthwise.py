"""Depthwise convolutions in half precision with channels last, as Triton kernels of our own.

cuDNN compiles a kernel for each shape at its first run, which takes 0.14 s. Ours are compiled once for a window,
whatever the extents, and take bias and activation along. That takes seconds, so a thread does it while Inductor works
on the rest of a graph. For large convolutions there are two kernels, and the first run of a shape finds the faster one:
`depthwise_pixels` computes each place by itself. All of its loads are written out, so that they overlap: for windows
of 7 by 7 that is three times as fast as a loop over rows, where few elements leave most of a GPU idle.
`depthwise_strips` computes four places in a row at once, and so reads and converts each element once for all of them:
for 7 by 7 that takes less than half of the instructions per product, which counts where a GPU is full.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton  # type: ignore[import-untyped]
from triton import language as tl

from trt_portable.builder.autotune.autotuner import fastest
from trt_portable.builder.inductor.own_operators import (
    KernelCall,
    OwnOperators,
    define_kernel,
    define_operator,
    has_channels_last,
    largest_size,
    teach_compilers,
)
from trt_portable.layers.windows import convolved_extents
from trt_portable.shape_tensors import usual_size

STRIP: Final = 4
"""Places of a row that `depthwise_strips` computes at once; as written out there."""
_GEOMETRY: Final = ["height", "width", "rows", "columns", "eighths"]


@triton.jit  # type: ignore[untyped-decorator]
def _activated(total, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        total = total * tl.minimum(tl.maximum(total + 3.0, 0.0), 6.0) / 6.0
    if ACTIVATION == 3:
        total = total / (1.0 + tl.exp(-total))
    return total.to(tl.float16)


@triton.jit(do_not_specialize=["pixels", *_GEOMETRY])  # type: ignore[untyped-decorator]
def depthwise_pixels(  # type: ignore[no-untyped-def]
    x,
    taps,
    bias,
    y,
    pixels,
    height,
    width,
    rows,
    columns,
    eighths,
    STRIDE_ROWS: tl.constexpr,
    STRIDE_COLUMNS: tl.constexpr,
    PADDING_ROWS: tl.constexpr,
    PADDING_COLUMNS: tl.constexpr,
    DILATION_ROWS: tl.constexpr,
    DILATION_COLUMNS: tl.constexpr,
    WINDOW_ROWS: tl.constexpr,
    WINDOW_COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Computes some channels of some pixels; channels come in eighths, so that they are read eight at a time."""
    channels = eighths * 8
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    column = pixel % columns
    row = (pixel // columns) % rows
    image = pixel // (columns * rows)
    is_channel = channel < channels
    is_pixel = pixel < pixels
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    for tap_row in tl.static_range(WINDOW_ROWS):
        at_row = row * STRIDE_ROWS - PADDING_ROWS + tap_row * DILATION_ROWS
        in_rows = is_pixel & (at_row >= 0) & (at_row < height)
        begin = (image * height + at_row) * width
        for tap_column in tl.static_range(WINDOW_COLUMNS):
            at_column = column * STRIDE_COLUMNS - PADDING_COLUMNS + tap_column * DILATION_COLUMNS
            is_inside = in_rows & (at_column >= 0) & (at_column < width)
            place = ((begin + at_column) * channels)[:, None] + channel[None, :]
            value = tl.load(x + place, mask=is_inside[:, None] & is_channel[None, :], other=0.0)
            tap = tl.load(
                taps + (tap_row * WINDOW_COLUMNS + tap_column) * channels + channel, mask=is_channel, other=0.0
            )
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    place = (pixel * channels)[:, None] + channel[None, :]
    tl.store(y + place, _activated(total, ACTIVATION), mask=is_pixel[:, None] & is_channel[None, :])


@triton.jit(do_not_specialize=["strips", *_GEOMETRY])  # type: ignore[untyped-decorator]
def depthwise_strips(  # type: ignore[no-untyped-def]
    x,
    taps,
    bias,
    y,
    strips,
    height,
    width,
    rows,
    columns,
    eighths,
    STRIDE_ROWS: tl.constexpr,
    STRIDE_COLUMNS: tl.constexpr,
    PADDING_ROWS: tl.constexpr,
    PADDING_COLUMNS: tl.constexpr,
    DILATION_ROWS: tl.constexpr,
    DILATION_COLUMNS: tl.constexpr,
    WINDOW_ROWS: tl.constexpr,
    WINDOW_COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Computes some channels of some strips; columns of a window are not dilated."""
    tl.static_assert(DILATION_COLUMNS == 1)
    channels = eighths * 8
    strip = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    across = (columns + 3) // 4
    first = (strip % across) * 4
    row = (strip // across) % rows
    image = strip // (across * rows)
    is_channel = channel < channels
    is_strip = strip < strips
    total_0 = tl.zeros([PIXELS, CHANNELS], tl.float32)
    if HAS_BIAS:
        total_0 += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    total_1 = total_0
    total_2 = total_0
    total_3 = total_0
    for tap_row in range(WINDOW_ROWS):
        at_row = row * STRIDE_ROWS - PADDING_ROWS + tap_row * DILATION_ROWS
        in_rows = is_strip & (at_row >= 0) & (at_row < height)
        begin = (image * height + at_row) * width
        row_taps = taps + tap_row * WINDOW_COLUMNS * channels + channel
        for step in tl.static_range(WINDOW_COLUMNS + 3 * STRIDE_COLUMNS):
            at_column = first * STRIDE_COLUMNS - PADDING_COLUMNS + step
            is_inside = in_rows & (at_column >= 0) & (at_column < width)
            place = ((begin + at_column) * channels)[:, None] + channel[None, :]
            value = tl.load(x + place, mask=is_inside[:, None] & is_channel[None, :], other=0.0).to(tl.float32)
            if step < WINDOW_COLUMNS:
                tap = tl.load(row_taps + step * channels, mask=is_channel, other=0.0)
                total_0 += value * tap.to(tl.float32)[None, :]
            if (step >= STRIDE_COLUMNS) & (step < WINDOW_COLUMNS + STRIDE_COLUMNS):
                tap = tl.load(row_taps + (step - STRIDE_COLUMNS) * channels, mask=is_channel, other=0.0)
                total_1 += value * tap.to(tl.float32)[None, :]
            if (step >= 2 * STRIDE_COLUMNS) & (step < WINDOW_COLUMNS + 2 * STRIDE_COLUMNS):
                tap = tl.load(row_taps + (step - 2 * STRIDE_COLUMNS) * channels, mask=is_channel, other=0.0)
                total_2 += value * tap.to(tl.float32)[None, :]
            if step >= 3 * STRIDE_COLUMNS:
                tap = tl.load(row_taps + (step - 3 * STRIDE_COLUMNS) * channels, mask=is_channel, other=0.0)
                total_3 += value * tap.to(tl.float32)[None, :]
    place = (((image * rows + row) * columns + first) * channels)[:, None] + channel[None, :]
    is_inside = is_strip[:, None] & is_channel[None, :]
    tl.store(y + place, _activated(total_0, ACTIVATION), mask=is_inside)
    tl.store(y + place + channels, _activated(total_1, ACTIVATION), mask=is_inside & (first + 1 < columns)[:, None])
    tl.store(y + place + 2 * channels, _activated(total_2, ACTIVATION), mask=is_inside & (first + 2 < columns)[:, None])
    tl.store(y + place + 3 * channels, _activated(total_3, ACTIVATION), mask=is_inside & (first + 3 < columns)[:, None])


OPERATOR: Final = "trt_portable::depthwise_convolution"
KERNEL: Final = "trt_portable::depthwise_kernel"
_ACTIVATIONS: Final = {"none": 0, "relu": 1, "hardswish": 2, "swish": 3}
_MOST_ELEMENTS: Final = 2**31  # places are 32-bit numbers
_MANY_RESULTS: Final = 1 << 20  # fill a large GPU in blocks of strips, as far as registers let them


@dataclass(frozen=True)
class Form:
    """A kernel, and how much of a result one of its blocks computes.

    Attributes:
        kernel: Triton's function.
        span: Places of a row that are computed together.
        spans: So many of them in a block.
        channels: Channels in a block.
        warps: Warps of a block.
    """

    kernel: Any
    span: int
    spans: int
    channels: int = 32
    warps: int = 4


PIXELS: Final = Form(depthwise_pixels, 1, 16)
"""For any convolution."""
STRIPS: Final = Form(depthwise_strips, STRIP, 32)
"""For those that fill a GPU, and do not dilate columns."""
_FORMS: Final = (PIXELS, STRIPS)


def convolve(
    x: torch.Tensor,
    kernel: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
) -> torch.Tensor:
    """A convolution by the kernel that is the fastest for these extents, the usual ones of those that vary.

    It is measured the first time.

    Args:
        x: (N, C, H, W) in float16, channels varying fastest; C a multiple of 8.
        kernel: (C, 1, R, S) in memory as (R, S, C).
        bias: (C,), or None.
        stride: Of rows and columns.
        padding: Of rows and columns, on both sides.
        dilation: Of rows and columns.
        activation: ``none``, ``relu``, ``hardswish`` or ``swish``.

    Returns:
        The result, with channels varying fastest.
    """
    given = (x, kernel, bias, stride, padding, dilation, activation)
    result = like_result(x, kernel, stride, padding, dilation)
    starts = {
        form.kernel.__name__: functools.partial(_kernel_operator(), *given, result, _FORMS.index(form))
        for form in forms_for(tuple(map(usual_size, result.shape)), dilation)
    }
    usual = tuple(map(usual_size, x.shape))
    extents = usual, tuple(kernel.shape), *map(tuple, (stride, padding, dilation))
    kind = ("depthwise convolution", *extents, bias is not None, activation)
    starts[fastest(starts, x.device, *kind, replayed=True)]()
    return result


def convolution_call(
    x: torch.Tensor,
    kernel: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
    result: torch.Tensor,
    form: int,
) -> KernelCall:
    """The kernel of a convolution, whose arguments are those of `convolve`; `form` is one of two.

    Raises:
        RuntimeError: The operands lie in another way, or are too large.
    """
    is_last = has_channels_last(x) and kernel.permute(2, 3, 0, 1).is_contiguous()
    if not is_last or x.shape[1] % 8:
        raise RuntimeError("operands of a depthwise convolution lie in another way")
    if max(map(largest_size, (x.numel(), result.numel()))) >= _MOST_ELEMENTS:
        raise RuntimeError("a depthwise convolution is too large")
    batch, channels, height, width = x.shape
    rows, columns = result.shape[2:]
    way = _FORMS[form]
    spans = batch * rows * ((columns + way.span - 1) // way.span)
    grid = ((spans + way.spans - 1) // way.spans, -(-channels // way.channels), 1)
    arguments = (x, kernel, x if bias is None else bias, result, spans, height, width, rows, columns, channels // 8)
    return KernelCall.of(
        way.kernel,
        grid,
        arguments,
        STRIDE_ROWS=stride[0],
        STRIDE_COLUMNS=stride[1],
        PADDING_ROWS=padding[0],
        PADDING_COLUMNS=padding[1],
        DILATION_ROWS=dilation[0],
        DILATION_COLUMNS=dilation[1],
        WINDOW_ROWS=kernel.shape[2],
        WINDOW_COLUMNS=kernel.shape[3],
        HAS_BIAS=bias is not None,
        ACTIVATION=_ACTIVATIONS[activation],
        PIXELS=way.spans,
        CHANNELS=way.channels,
        num_warps=way.warps,
    )


def forms_for(result: Sequence[int], dilation: Sequence[int]) -> tuple[Form, ...]:
    """The kernels that may be the fastest.

    Args:
        result: Extents of the result.
        dilation: Of rows and columns.
    """
    is_large = math.prod(result) >= _MANY_RESULTS
    return (PIXELS, STRIPS) if is_large and dilation[1] == 1 else (PIXELS,)


def like_result(
    x: torch.Tensor, kernel: torch.Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    """Memory for the result."""
    extents = convolved_extents(x.shape[2:], kernel.shape[2:], stride, padding, dilation)
    shape = (x.shape[0], kernel.shape[0], *extents)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@functools.cache
def _kernel_operator() -> Any:
    """The kernels as an operator."""
    return define_kernel(KERNEL, convolution_call)


@functools.cache
def teach_depthwise_operator() -> OwnOperators:
    """Makes the operator known to PyTorch, to traces without data, and to Inductor; once per process.

    Returns:
        The operator for compilers, which is composed, and that of the kernels, which is launched.
    """
    operator = define_operator(OPERATOR, convolve)
    teach_compilers(operator, lambda x, kernel, bias, *geometry: like_result(x, kernel, *geometry[:3]))
    of_any_size = frozenset((_kernel_operator(), operator))
    return OwnOperators({_kernel_operator(): convolution_call}, {operator: convolve}, of_any_size=of_any_size)
