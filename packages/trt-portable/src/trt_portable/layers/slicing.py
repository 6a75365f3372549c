"""Slicing, with all the ways to read out of bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from trt_core.sizes.expressions import is_same_size
from trt_portable.dims import DimsLike, as_dims
from trt_portable.dtypes import INDICES
from trt_portable.enums import DataType, LayerType, SampleMode
from trt_portable.errors import Refusal, optional, present
from trt_portable.layer_properties import Overridden, member, optional_dims
from trt_portable.layers.contracts import Bound, elements, moved
from trt_portable.layers.movement import MOVABLE
from trt_portable.network.definition import LayerFactory
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import (
    require,
    require_documented,
    require_equal_types,
    require_tensor,
    require_type,
)
from trt_portable.shape_tensors import (
    HostValues,
    NotOnHost,
    Value,
    as_tensor,
    host_numbers,
    is_shape_alone,
    require_few,
)
from trt_portable.size_arithmetic import is_unknown

_RESAMPLED: Final = frozenset({DataType.BOOL, DataType.INT8, DataType.INT32, DataType.HALF, DataType.FLOAT})


class _Window(NamedTuple):
    """Neighbouring elements along an axis."""

    axis: int
    start: int
    size: int


class ISliceLayer(ILayer):
    """Elements at ``start + i * stride`` on every axis; ``shape`` is the size of the output.

    Inputs: 0 data; optional 1 start, 2 size, 3 stride (1-D shape tensors), 4 fill value (scalar, mode
    FILL only), 5 axes (1-D, constant).
    """

    _KIND = LayerType.SLICE
    _DEFERRED = True
    _SHAPE_ALGEBRA = True
    _MOVES_ALONE = True
    _MAX_INPUTS = 6
    _HOST_INPUTS = frozenset({1, 2, 3, 5})

    start = Overridden(optional_dims("First index on each axis."), 1)
    shape = Overridden(optional_dims("Extent of the output on each axis."), 2)
    stride = Overridden(optional_dims("Distance between indices on each axis; may be zero or negative."), 3)
    axes = Overridden(optional_dims("The axes sliced; all of them if not set."), 5)
    mode = member(SampleMode, SampleMode.STRICT_BOUNDS, "What is read out of bounds.")

    _windows: tuple[_Window, ...] | None = None
    """The whole slice in an engine, once it was computed, if it has neither gaps nor numbers that only a run knows."""

    _padding: tuple[tuple[int, ...], list[int]] | None = None
    """In an engine: the extents that came last, and the zeros around them, if the slice is no more than that."""

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        require_tensor(present(inputs[0]), "the input", MOVABLE, least_rank=1)

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x = present(inputs[0])
        strict = self.mode in {SampleMode.STRICT_BOUNDS, SampleMode.WRAP}
        require_type(x, MOVABLE if strict else _RESAMPLED, f"the input in mode {self.mode.name}")
        lengths = {}
        for index, (name, static) in enumerate(
            (("start", self.start), ("shape", self.shape), ("stride", self.stride)), start=1
        ):
            tensor = inputs[index] if index < len(inputs) else None
            if tensor is not None:
                require_tensor(tensor, name, INDICES, ranks={1})
                lengths[name] = (tensor._extents or (0,))[0]
            else:
                lengths[name] = len(static or ())
        axes = optional(inputs, 5)
        if axes is not None:
            require_tensor(axes, "axes", INDICES, ranks={1})
            expected = (axes._extents or (0,))[0]
        else:
            expected = x._rank if self.axes is None else len(self.axes)
        for name, length in lengths.items():
            require(length == expected, f"{name} has {length} elements, not {expected}")
        if self.shape is not None:
            require(all(e >= 0 for e in self.shape), f"size {self.shape} has a negative extent")
        fill = optional(inputs, 4)
        if fill is not None:
            require(self.mode is SampleMode.FILL, f"a fill value in mode {self.mode.name}")
            require(fill._rank == 0 or fill._extents == (1,), "the fill value has more than one element")
            require_documented(fill._rank == 0, "the fill value must be 0-D")
            require_equal_types((x, fill), "input and fill value")

    def _contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        x, sizes, steps = inputs[0], self.shape, self.stride
        if self.mode is not SampleMode.STRICT_BOUNDS or inputs[1:].count(None) != len(inputs) - 1:
            return None
        assert x is not None and sizes is not None and steps is not None
        extents, is_part = [*x.shape], True
        axes = self.axes
        for axis, size, step in zip(
            range(x.ndim) if axes is None else axes._extents, sizes._extents, steps._extents, strict=True
        ):
            if size > extents[axis] or step < 1:  # what is read twice may become any size
                extents[axis], is_part = max(size, extents[axis]), False
        return moved([x]) if is_part else elements([extents])

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        whole = inputs[0]
        if self._windows is not None and whole is not None:
            narrowed = _narrowed(whole, self._windows)
            if narrowed is not None:
                return (narrowed,)
        padding = self._padding
        if padding is not None and type(whole) is torch.Tensor and whole.shape == padding[0]:
            return (F.pad(whole, padding[1]),)
        x, *given = (*inputs, *([None] * 6))[:6]
        assert x is not None
        parts = self._along_axes(x.ndim, given)
        if is_shape_alone(x, *chain.from_iterable(parts)):
            return (_inferred(x, parts, self.mode),)
        inside: torch.Tensor | None = None
        turns: dict[int, int] = {}
        margins: dict[int, tuple[int, int]] = {}
        for axis, start, size, stride in parts:
            if _covers(x.shape[axis], start, size, stride):
                continue
            if not isinstance(x, HostValues) and all(type(n) is int for n in (x.shape[axis], start, size, stride)):
                if self.mode is SampleMode.WRAP and stride == 1 and size == x.shape[axis]:
                    turns[axis] = -start
                    continue
                if self.mode is SampleMode.FILL and given[3] is None and _overlaps(x.shape[axis], start, size, stride):
                    margins[axis] = (-start, start + size - x.shape[axis])
                    continue
            if isinstance(x, HostValues):
                try:
                    x = _slice_host(x, axis, start, size, stride, self.mode)
                    continue
                except NotOnHost:
                    x = x.tensor()
            if self.mode is SampleMode.STRICT_BOUNDS and not any(
                is_unknown(number) for number in (start, size, stride)
            ):
                x = _slice_strictly(x, axis, start, size, stride)
                continue
            x, valid = _sample(x, axis, start, size, stride, self.mode)
            if valid is not None:
                valid = valid.reshape([-1] + [1] * (x.ndim - 1 - axis))
                inside = valid if inside is None else inside & valid
        if turns:
            x = _rolled(as_tensor(x), turns)
        if margins:
            if self._IS_FROZEN and x is whole and given == [None] * 5 and type(x) is torch.Tensor:
                self._padding = (x.shape, _pairs(x, margins))
            x = _padded(as_tensor(x), margins)
        if inside is not None:
            value = torch.zeros((), dtype=x.dtype, device=x.device)
            if given[3] is not None:
                value = as_tensor(given[3]).reshape(())
            x = torch.where(inside, as_tensor(x), value)
        return (x,)

    def _along_axes(self, rank: int, given: Sequence[Value | None]) -> list[tuple[int, Any, Any, Any]]:
        """The axes that are sliced, each with its start, size and stride; an engine keeps windows that are its own.

        Raises:
            Refusal: An axis is named twice, or is none.
        """
        starts, sizes, strides, axes = (
            list(static or ()) if value is None else host_numbers(value)
            for static, value in (
                (self.start, given[0]),
                (self.shape, given[1]),
                (self.stride, given[2]),
                (self.axes, given[4]),
            )
        )
        chosen = [a + rank if a < 0 else a for a in axes] if axes else list(range(rank))
        if len(set(chosen)) != len(chosen) or not all(0 <= axis < rank for axis in chosen):
            raise Refusal(f"axes {axes} are not distinct axes of rank {rank}")
        if self._IS_FROZEN and self.mode is SampleMode.STRICT_BOUNDS and not any(value is not None for value in given):
            windows = tuple(map(_Window, chosen, starts, sizes))
            is_plain = all(window.start >= 0 and window.size > 0 for window in windows)
            self._windows = windows if is_plain and all(stride == 1 for stride in strides) else None
        return list(zip(chosen, starts, sizes, strides, strict=True))


def _narrowed(x: Value, windows: Sequence[_Window]) -> Value | None:
    """Elements within windows; None where that needs a closer look at the extents."""
    if isinstance(x, HostValues):
        return _narrowed_numbers(x, windows)
    for axis, start, size in windows:
        extent = x.shape[axis]
        if type(extent) is not int or start + size > extent:
            return None
        if size != extent:
            x = x.narrow(axis, start, size)
    return x


def _narrowed_numbers(x: HostValues, windows: Sequence[_Window]) -> HostValues | None:
    """The same of numbers that the host knows."""
    array = x.array
    for axis, start, size in windows:
        if start + size > array.shape[axis]:
            return None
        array = array[(*(slice(None),) * axis, slice(start, start + size))]
    return x._with(array)


def _inferred(x: torch.Tensor, parts: Iterable[tuple[int, Any, Any, Any]], mode: SampleMode) -> torch.Tensor:
    """What a slice makes of extents that only running tells, or by numbers that only running tells.

    Args:
        x: A tensor of inference.
        parts: The axes that are sliced, each with its start, size and stride.
        mode: What is read out of bounds.

    Raises:
        Refusal: A size is negative, or what is known of an axis is outside of it where that is not allowed.
    """
    extents = list(x.shape)
    for axis, start, size, stride in parts:
        if _covers(extents[axis], start, size, stride):
            continue
        if mode is SampleMode.STRICT_BOUNDS and not any(map(is_unknown, (start, size, stride))) and size:
            _bounds(extents[axis], start, size, stride, axis)
        extents[axis] = size
    return x.new_empty(extents)


def _covers(extent: Any, start: Any, size: Any, stride: Any) -> bool:
    """Whether a slice takes an axis as it is, as far as can be told without assuming anything."""
    if is_unknown(start) or is_unknown(stride) or start != 0 or stride != 1:
        return False
    return is_same_size(extent, size)


def _overlaps(extent: int, start: int, size: int, stride: int) -> bool:
    """Whether a slice without gaps reads something of an axis."""
    return stride == 1 and start < extent and start + size > 0 and size > 0


def _rolled(x: torch.Tensor, turns: dict[int, int]) -> torch.Tensor:
    """Turns axes around, by so many elements each; for inference, which meets unknown extents, nothing changes."""
    if is_shape_alone(x):
        return x
    return torch.roll(x, list(turns.values()), list(turns))


def _padded(x: torch.Tensor, margins: dict[int, tuple[int, int]]) -> torch.Tensor:
    """Zeros around a tensor, or less of it where a margin is negative, in one kernel.

    Args:
        x: Any type.
        margins: Elements before and after, by axis.
    """
    if is_shape_alone(x):
        return x.new_empty([extent + sum(margins.get(axis, (0, 0))) for axis, extent in enumerate(x.shape)])
    return F.pad(x, _pairs(x, margins))


def _pairs(x: torch.Tensor, margins: dict[int, tuple[int, int]]) -> list[int]:
    """Margins as PyTorch takes them: before and after, from the last axis on."""
    pairs = [margins.get(axis, (0, 0)) for axis in range(x.ndim - 1, min(margins) - 1, -1)]
    return [margin for pair in pairs for margin in pair]


def _bounds(extent: Any, start: Any, size: Any, stride: Any, axis: int) -> tuple[Any, Any]:
    """First and last index of a slice in ascending order, refused when outside the axis."""
    if size < 0:
        raise Refusal(f"size {size} on axis {axis} is negative")
    last = start + (size - 1) * stride
    low, high = (start, last) if stride >= 0 else (last, start)
    if low < 0 or (not is_unknown(extent) and high >= extent):
        raise Refusal(
            f"indices {low} to {high} on axis {axis} are outside its extent {extent}; "
            "mode STRICT_BOUNDS does not allow it"
        )
    return low, high


def _slice_strictly(x: torch.Tensor, axis: int, start: Any, size: Any, stride: Any) -> torch.Tensor:
    extent = x.shape[axis]
    if size == 0:
        return x.narrow(axis, 0, 0)
    low, high = _bounds(extent, start, size, stride, axis)
    if is_unknown(extent):
        indices = start + torch.arange(size, device=x.device) * stride
        return x.index_select(axis, indices)
    if stride == 0:
        shape = list(x.shape)
        shape[axis] = size
        return x.narrow(axis, start, 1).expand(shape)
    window = x.narrow(axis, low, high - low + 1)
    if stride in (1, -1):
        return window if stride == 1 else window.flip(axis)
    step = abs(stride)
    picked = window[(slice(None),) * axis + (slice(None, None, step),)]
    return picked if stride > 0 else picked.flip(axis)


def _sample(
    x: torch.Tensor, axis: int, start: Any, size: Any, stride: Any, mode: SampleMode
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A slice whose indices may lie outside; with mode FILL also the mask of those inside."""
    extent = x.shape[axis]
    indices = start + torch.arange(size, device=x.device) * stride
    valid = None
    if mode is SampleMode.WRAP:
        indices = indices % extent
    elif mode is SampleMode.CLAMP:
        indices = indices.clamp(min=0).minimum(torch.full_like(indices, extent - 1))
    elif mode is SampleMode.REFLECT:
        indices = _reflected(indices, extent)
    elif mode is SampleMode.FILL:
        valid = (indices >= 0) & (indices < extent)
        if not is_unknown(extent) and extent == 0:
            shape = list(x.shape)
            shape[axis] = size
            return x.new_zeros(shape), valid
        indices = torch.where(valid, indices, torch.zeros_like(indices))
    return x.index_select(axis, indices), valid


def _reflected(indices: torch.Tensor, extent: Any) -> torch.Tensor:
    if not is_unknown(extent) and extent == 1:
        return torch.zeros_like(indices)
    period = 2 * extent - 2
    folded = indices.abs() % period
    return torch.where(folded >= extent, period - folded, folded)


def _slice_host(x: HostValues, axis: int, start: Any, size: Any, stride: Any, mode: SampleMode) -> HostValues:
    if mode not in (SampleMode.STRICT_BOUNDS, SampleMode.CLAMP, SampleMode.WRAP):
        raise NotOnHost
    if any(isinstance(number, torch.SymInt) for number in (start, size, stride)):
        raise NotOnHost
    extent = x.shape[axis]
    require_few(size * max(x.numel() // max(extent, 1), 1))
    indices = [start + i * stride for i in range(size)]
    if mode is SampleMode.CLAMP:
        indices = [min(max(i, 0), extent - 1) for i in indices]
    elif mode is SampleMode.WRAP:
        indices = [i % extent for i in indices]
    elif size:
        _bounds(extent, start, size, stride, axis)
    return x._with(np.take(x.array, np.array(indices, dtype=np.int64), axis=axis))


class SlicingLayers(LayerFactory):
    """The method that adds slices."""

    def add_slice(self, input: ITensor, start: DimsLike, shape: DimsLike, stride: DimsLike) -> ISliceLayer | None:
        """Adds a slice.

        Args:
            input: Rank 1 or more.
            start: First index on each axis, not counted from the end.
            shape: Extents of the output.
            stride: Distance between indices on each axis.
        """
        layer = ISliceLayer._create(start=as_dims(start), shape=as_dims(shape), stride=as_dims(stride))
        return self._add(layer, input=input)


def narrowed_axis(layer: ILayer) -> tuple[int, int, int] | None:
    """Axis, start and size of a slice that narrows one axis, and says in numbers how; None for other layers."""
    if not isinstance(layer, ISliceLayer) or layer.mode is not SampleMode.STRICT_BOUNDS:
        return None
    if any(tensor is not None for tensor in layer._inputs[1:]):
        return None
    starts, sizes, strides = (list(dims or ()) for dims in (layer.start, layer.shape, layer.stride))
    axes = list(layer.axes or range(len(starts)))
    whole = present(layer._inputs[0])
    extents = whole.shape
    if any(stride != 1 for stride in strides) or any(axis < 0 for axis in axes):
        return None
    narrowed = [at for at, axis in enumerate(axes) if starts[at] != 0 or sizes[at] != extents[axis]]
    if len(narrowed) != 1 or sizes[narrowed[0]] < 1:
        return None
    (at,) = narrowed
    return axes[at], starts[at], sizes[at]
