"""Shapes that convolution and pooling layers want: a batch axis, a channel axis, and two or three spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trt_converters.context import ConversionContext, Operand
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
