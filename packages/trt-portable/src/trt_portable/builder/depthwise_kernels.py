"""Triton kernels for depthwise convolutions in half precision with channels last.

`depthwise_pixels` computes each place by itself. All of its loads are written out, so that they overlap: for windows
of 7 by 7 that is three times as fast as a loop over rows, where few elements leave most of a GPU idle.
`depthwise_strips` computes four places in a row at once, and so reads and converts each element once for all of them:
for 7 by 7 that takes less than half of the instructions per product, which counts where a GPU is full.
"""

from __future__ import annotations

from typing import Final

import triton  # type: ignore[import-untyped]
from triton import language as tl

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
