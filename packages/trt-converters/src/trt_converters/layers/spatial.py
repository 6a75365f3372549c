"""Shapes that convolution and pooling layers want: a batch axis, a channel axis, and two or three spatial axes.

And sliding windows along an axis, as one gather: for pooling and unfolding that no layer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trt_converters.context import ConversionContext, Operand, Size
from trt_converters.layers.gathering import gather, linear_range
from trt_converters.layers.movement import squeeze, unsqueeze


class SpatialForm:
    """How a value was raised to (N, C, *spatial) with at least two spatial axes, to be undone afterwards.

    Args:
        rank: Rank of the value: the number of spatial axes plus one (no batch) or two.
        spatial: Number of its spatial axes, 1 to 3.
    """

    def __init__(self, rank: int, spatial: int) -> None:
        self.batched = rank == spatial + 2
        self.flat = spatial == 1
        self._added = ([] if self.batched else [0]) + ([2] if self.flat else [])

    def enter(self, ctx: ConversionContext, value: Operand) -> Any:
        """Returns the value with the missing axes; one spatial axis becomes the width of height 1."""
        return unsqueeze(ctx, value, self._added)

    def leave(self, ctx: ConversionContext, value: Operand) -> Any:
        """Returns a value without the axes that `enter` added."""
        return squeeze(ctx, value, self._added)

    def sizes(self, values: Sequence[int], neutral: int) -> tuple[int, ...]:
        """Returns an attribute per spatial axis, with the neutral value for the added one."""
        return (neutral, *values) if self.flat else tuple(values)


def per_axis(values: Sequence[int] | int, axes: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Returns a list argument as one int per spatial axis: a single one counts for all, an empty one is the default."""
    listed = [values] if isinstance(values, int) else list(values)
    if not listed:
        return tuple(default)
    return tuple(listed * axes if len(listed) == 1 else listed)


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
