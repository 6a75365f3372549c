"""Sliding windows along an axis, as one gather: for pooling and unfolding that no layer does."""

from __future__ import annotations

from typing import Any

from trt_converters.context import ConversionContext, Operand, Size
from trt_converters.layers.gathering import gather, linear_range


def window_indices(ctx: ConversionContext, count: Size, size: int, stride: int, dilation: int, start: int = 0) -> Any:
    """Returns `start + i * stride + j * dilation` for window i and its element j: shape (count, size), int64."""
    return linear_range(ctx, [count, size], [stride, dilation], start)


def take_windows(
    ctx: ConversionContext, value: Operand, axis: int, count: Size, size: int, stride: int, dilation: int = 1
) -> Any:
    """Replaces an axis by two: windows, and the elements of each.

    Args:
        ctx: The context.
        value: A tensor whose axis holds every window.
        axis: A non-negative axis.
        count: Number of windows.
        size, stride, dilation: Elements of a window, and distances between windows and between elements.
    """
    return gather(ctx, value, window_indices(ctx, count, size, stride, dilation), axis)
