"""Slices that lie side by side in a tensor as one split: query, key and value, or the gates of a recurrent layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from trt_portable.enums import SampleMode
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.network.layer import ILayer
from trt_portable.runtime.program import LayerCall
from trt_portable.values import Value

_LEAST_PARTS: Final = 2


class _Part(NamedTuple):
    """A slice that narrows one axis.

    Attributes:
        start: Its first place.
        size: How many places it takes.
        call: The number of the call that makes it.
    """

    start: int
    size: int
    call: int


def fuse_splits(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Computes slices of a tensor that follow each other without gaps, from its first place on, by one split.

    Args:
        calls: Layers in executable order.
    """
    groups: dict[tuple[int | None, int], list[_Part]] = defaultdict(list)
    for index, call in enumerate(calls):
        is_plain = isinstance(call.layer, ISliceLayer) and call.compute == call.layer._compute
        found = narrowed_axis(call.layer) if is_plain else None
        if found is not None:
            axis, start, size = found
            groups[call.inputs[0], axis].append(_Part(start, size, index))
    fused: list[LayerCall | None] = list(calls)
    for (_, axis), group in groups.items():
        parts = sorted(group)
        if len(parts) < _LEAST_PARTS or not _are_side_by_side(parts):
            continue
        chain = [calls[part.call] for part in parts]
        for part in parts:
            fused[part.call] = None
        fused[min(part.call for part in parts)] = replace(
            chain[0],
            outputs=tuple(call.outputs[0] for call in chain),
            output_names=tuple(call.output_names[0] for call in chain),
            compute=Split(axis, [part.size for part in parts], chain),
            name=" | ".join(call.name for call in chain),
        )
    return [call for call in fused if call is not None]


def narrowed_axis(layer: ILayer) -> tuple[int, int, int] | None:
    """Axis, start and size of a slice that narrows one axis, and says in numbers how; None for other layers."""
    if not isinstance(layer, ISliceLayer) or layer.mode is not SampleMode.STRICT_BOUNDS:
        return None
    if any(tensor is not None for tensor in layer._inputs[1:]):
        return None
    starts, sizes, strides = (list(dims or ()) for dims in (layer.start, layer.shape, layer.stride))
    axes = list(layer.axes or range(len(starts)))
    whole = layer._inputs[0]
    assert whole is not None
    extents = whole.shape
    if any(stride != 1 for stride in strides) or any(axis < 0 for axis in axes):
        return None
    narrowed = [at for at, axis in enumerate(axes) if starts[at] != 0 or sizes[at] != extents[axis]]
    if len(narrowed) != 1 or sizes[narrowed[0]] < 1:
        return None
    (at,) = narrowed
    return axes[at], starts[at], sizes[at]


def _are_side_by_side(parts: Sequence[_Part]) -> bool:
    """Whether sorted parts begin at the first place, and each where the one before ends."""
    ends = [part.start + part.size for part in parts]
    return [part.start for part in parts] == [0, *ends[:-1]]


class Split:
    """Parts of a tensor, side by side along an axis.

    Args:
        axis: The axis.
        sizes: Of the parts.
        slices: The same, one by one: of numbers that the host knows, and where the parts leave something over.
    """

    def __init__(self, axis: int, sizes: Sequence[int], slices: Sequence[LayerCall]) -> None:
        self._axis = axis
        self._sizes = list(sizes)
        self._extent = sum(sizes)
        self._slices = tuple(slices)

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The parts, in order."""
        first = inputs[0]
        assert first is not None
        if isinstance(first, torch.Tensor) and first.shape[self._axis] == self._extent:
            return first.split_with_sizes(self._sizes, self._axis)
        return [call.compute(inputs)[0] for call in self._slices]
