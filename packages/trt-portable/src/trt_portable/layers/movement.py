"""Layers that move elements without computing: shuffle, slice, concatenation, squeeze, unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from trt_portable.attributes import Attribute, boolean, integer, member, optional_dims, permutation
from trt_portable.definition import LayerFactory, expect_tensor
from trt_portable.dims import MAX_RANK, Dims, DimsLike, as_dims
from trt_portable.dtypes import INDICES
from trt_portable.enums import DataType, LayerType, SampleMode
from trt_portable.errors import Refusal
from trt_portable.layer import ILayer
from trt_portable.rules import (
    require,
    require_axis,
    require_equal_ranks,
    require_equal_types,
    require_minimum_rank,
    require_rank,
    require_type,
)
from trt_portable.tensor import ITensor
from trt_portable.values import HostValues, NotOnHost, Value, as_tensor, host_numbers, is_unknown

MOVABLE: Final = frozenset(DataType) - {DataType.UINT8, DataType.E8M0}
_RESAMPLED: Final = frozenset(
    {DataType.BOOL, DataType.INT8, DataType.INT32, DataType.HALF, DataType.FLOAT}
)


class OverriddenDims(Attribute["Dims | None"]):
    """Static extents that an input tensor overrides; assigning them takes the tensor away again."""

    def __init__(self, index: int, doc: str) -> None:
        plain = optional_dims()
        super().__init__(plain.convert, None, plain.encode, plain.decode, doc)
        self.index = index

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is not None and layer._input(self.index) is not None:
            return None
        return super().__get__(layer, owner)

    def __set__(self, layer: ILayer, value: Any) -> None:
        if layer._input(self.index) is not None:
            layer._connect(self.index, None)
        super().__set__(layer, value)


class IShuffleLayer(ILayer):
    """Transpose, reshape, transpose.

    Input 1, optional: the reshape dims as a 1-D shape tensor.
    """

    _KIND = LayerType.SHUFFLE
    _DEFERRED = True
    _SHAPE_ALGEBRA = True
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})

    first_transpose = permutation("Order of the axes before the reshape.")
    reshape_dims = OverriddenDims(1, "Extents: -1 infers one, 0 copies one.")
    second_transpose = permutation("Order of the axes after the reshape.")
    zero_is_placeholder = boolean(True, "Whether an extent of 0 copies that of the input.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        assert inputs[0] is not None
        require_type(inputs[0], MOVABLE, "the input")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, target = (*inputs, None)[:2]
        assert x is not None
        rank = x._rank
        _order(self.first_transpose, rank, "first_transpose")
        reshaped = rank
        if target is not None:
            require_type(target, INDICES, "the reshape dims")
            require_rank(target, {1}, "the reshape dims")
            reshaped = (target._extents or (0,))[0]
        elif self.reshape_dims is not None:
            reshaped = len(self.reshape_dims)
            require(
                all(extent >= -1 for extent in self.reshape_dims),
                f"reshape dims {self.reshape_dims} have an extent below -1",
            )
        require(reshaped <= MAX_RANK, f"the reshape has {reshaped} dims; {MAX_RANK} is the most")
        _order(self.second_transpose, reshaped, "second_transpose")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, target = (*inputs, None)[:2]
        assert x is not None
        order = _order(self.first_transpose, x.ndim, "first_transpose")
        if order is not None:
            x = x.permute(order)
        dims = self.reshape_dims
        if target is not None or dims is not None:
            wanted: list[Any] = host_numbers(target) if target is not None else list(dims or ())
            x = _reshape(x, wanted, self.zero_is_placeholder)
        order = _order(self.second_transpose, x.ndim, "second_transpose")
        return (x if order is None else x.permute(order),)


def _order(permutation: Any, rank: int, what: str) -> tuple[int, ...] | None:
    """The leading axes of a permutation; None for the identity."""
    order = tuple(permutation)[:rank]
    if order == tuple(range(rank)):
        return None
    require(
        sorted(order) == list(range(rank)), f"{what} {order} is no permutation of {rank} axes"
    )
    return order


def _reshape(x: Value, wanted: list[Any], zero_copies: bool) -> Value:
    extents = list(wanted)
    if zero_copies:
        for axis, extent in enumerate(extents):
            if not is_unknown(extent) and extent == 0:
                require(axis < x.ndim, f"placeholder 0 at axis {axis} is beyond rank {x.ndim}")
                extents[axis] = x.shape[axis]
    free = [axis for axis, extent in enumerate(extents) if not is_unknown(extent) and extent == -1]
    require(len(free) <= 1, f"reshape dims {wanted} have more than one -1")
    count = x.numel()
    if isinstance(count, int) and all(isinstance(extent, int) for extent in extents):
        size = 1
        for extent in extents:
            size *= extent if extent != -1 else 1
        if free:
            fits = size != 0 and count % size == 0
        else:
            fits = size == count
        if not fits:
            raise Refusal(f"{count} elements of shape {tuple(x.shape)} do not fill {wanted}")
    return x.reshape(extents)


class ISliceLayer(ILayer):
    """Elements at ``start + i * stride`` on every axis; ``shape`` is the size of the output.

    Inputs: 0 data; optional 1 start, 2 size, 3 stride (1-D shape tensors), 4 fill value (scalar, mode
    FILL only), 5 axes (1-D, constant).
    """

    _KIND = LayerType.SLICE
    _DEFERRED = True
    _SHAPE_ALGEBRA = True
    _MAX_INPUTS = 6
    _HOST_INPUTS = frozenset({1, 2, 3, 5})

    start = OverriddenDims(1, "First index on each axis.")
    shape = OverriddenDims(2, "Extent of the output on each axis.")
    stride = OverriddenDims(3, "Distance between indices on each axis; may be zero or negative.")
    axes = OverriddenDims(5, "The axes sliced; all of them if not set.")
    mode = member(SampleMode, SampleMode.STRICT_BOUNDS, "What is read out of bounds.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        assert inputs[0] is not None
        require_type(inputs[0], MOVABLE, "the input")
        require_minimum_rank(inputs[0], 1, "the input")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x = inputs[0]
        assert x is not None
        strict = self.mode in {SampleMode.STRICT_BOUNDS, SampleMode.WRAP}
        require_type(x, MOVABLE if strict else _RESAMPLED, f"the input in mode {self.mode.name}")
        lengths = {}
        for index, (name, static) in enumerate(
            (("start", self.start), ("shape", self.shape), ("stride", self.stride)), start=1
        ):
            tensor = inputs[index] if index < len(inputs) else None
            if tensor is not None:
                require_type(tensor, INDICES, name)
                require_rank(tensor, {1}, name)
                lengths[name] = (tensor._extents or (0,))[0]
            else:
                lengths[name] = len(static or ())
        axes = inputs[5] if len(inputs) > 5 else None
        if axes is not None:
            require_type(axes, INDICES, "axes")
            require_rank(axes, {1}, "axes")
            expected = (axes._extents or (0,))[0]
        else:
            expected = x._rank if self.axes is None else len(self.axes)
        for name, length in lengths.items():
            require(length == expected, f"{name} has {length} elements, not {expected}")
        if self.shape is not None:
            require(all(e >= 0 for e in self.shape), f"size {self.shape} has a negative extent")
        fill = inputs[4] if len(inputs) > 4 else None
        if fill is not None:
            require(self.mode is SampleMode.FILL, f"a fill value in mode {self.mode.name}")
            require_rank(fill, {0}, "the fill value")
            require_equal_types((x, fill), "input and fill value")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, *given = (*inputs, *([None] * 6))[:6]
        assert x is not None
        starts, sizes, strides, axes = (
            list(static or ()) if value is None else host_numbers(value)
            for static, value in (
                (self.start, given[0]),
                (self.shape, given[1]),
                (self.stride, given[2]),
                (self.axes, given[4]),
            )
        )
        rank = x.ndim
        chosen = [a + rank if a < 0 else a for a in axes] if axes else list(range(rank))
        if len(set(chosen)) != len(chosen) or not all(0 <= axis < rank for axis in chosen):
            raise Refusal(f"axes {axes} are not distinct axes of rank {rank}")
        inside: torch.Tensor | None = None
        for axis, start, size, stride in zip(chosen, starts, sizes, strides, strict=True):
            if _covers(x.shape[axis], start, size, stride):
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
                valid = valid.reshape([-1] + [1] * (rank - 1 - axis))
                inside = valid if inside is None else inside & valid
        if inside is not None:
            value = torch.zeros((), dtype=x.dtype, device=x.device)
            if given[3] is not None:
                value = as_tensor(given[3])
            x = torch.where(inside, as_tensor(x), value)
        return (x,)


def _covers(extent: Any, start: Any, size: Any, stride: Any) -> bool:
    """Whether a slice takes an axis as it is, as far as can be told without assuming anything."""
    if is_unknown(start) or is_unknown(stride) or start != 0 or stride != 1:
        return False
    if isinstance(extent, int) and isinstance(size, int):
        return extent == size
    if is_unknown(extent) or is_unknown(size):
        return (
            isinstance(extent, torch.SymInt)
            and isinstance(size, torch.SymInt)
            and bool(extent.node.expr == size.node.expr)
        )
    return bool(extent == size)


def _bounds(extent: Any, start: Any, size: Any, stride: Any, axis: int) -> tuple[Any, Any]:
    """First and last index of a slice in ascending order, refused when outside the axis."""
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
    if size < 0:
        raise Refusal(f"size {size} on axis {axis} is negative")
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


def _slice_host(
    x: HostValues, axis: int, start: Any, size: Any, stride: Any, mode: SampleMode
) -> HostValues:
    if mode not in (SampleMode.STRICT_BOUNDS, SampleMode.CLAMP, SampleMode.WRAP):
        raise NotOnHost
    if any(isinstance(number, torch.SymInt) for number in (start, size, stride)):
        raise NotOnHost
    extent = x.shape[axis]
    indices = [start + i * stride for i in range(size)]
    if mode is SampleMode.CLAMP:
        indices = [min(max(i, 0), extent - 1) for i in indices]
    elif mode is SampleMode.WRAP:
        indices = [i % extent for i in indices]
    elif size:
        _bounds(extent, start, size, stride, axis)
    return x._with(np.take(x.array, np.array(indices, dtype=np.int64), axis=axis))


class IConcatenationLayer(ILayer):
    """Tensors joined along one axis."""

    _KIND = LayerType.CONCATENATION
    _DEFERRED = True
    _SHAPE_ALGEBRA = True

    axis = integer(0, "The axis; at first the third from the end, or 0 below rank 3.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        tensors = [tensor for tensor in inputs if tensor is not None]
        require_equal_types(tensors, "the inputs")
        require_type(tensors[0], MOVABLE, "an input")
        require_minimum_rank(tensors[0], 1, "an input")
        require_equal_ranks(tensors, "the inputs")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        tensors = [tensor for tensor in inputs if tensor is not None]
        require_axis(self.axis, tensors[0]._rank)
        for axis, column in enumerate(zip(*(t._extents or () for t in tensors), strict=True)):
            fixed = {extent for extent in column if type(extent) is int}
            require(
                axis == self.axis or len(fixed) <= 1,
                f"extents {list(column)} on axis {axis} differ; only axis {self.axis} may",
            )

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        return (torch.cat(inputs, self.axis),)  # type: ignore[arg-type]


class ISqueezeLayer(ILayer):
    """Drops axes of extent 1: those that input 1 lists, or all that are 1 for certain."""

    _KIND = LayerType.SQUEEZE
    _SHAPE_ALGEBRA = True
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, axes = (*inputs, None)[:2]
        assert x is not None
        require_type(x, MOVABLE, "the input")
        if axes is not None:
            require_type(axes, INDICES, "axes")
            require_rank(axes, {0, 1}, "axes")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, axes = (*inputs, None)[:2]
        assert x is not None
        if axes is None:
            source = self._inputs[0]
            assert source is not None
            chosen = [axis for axis, extent in enumerate(source._extents or ()) if _is_one(extent)]
        else:
            chosen = _normalized(host_numbers(axes), x.ndim, "squeeze")
        for axis in chosen:
            extent = x.shape[axis]
            if not is_unknown(extent) and extent != 1:
                raise Refusal(f"axis {axis} has extent {extent}; only extents of 1 are squeezed")
        if isinstance(x, HostValues):
            return (x.reshape([e for axis, e in enumerate(x.shape) if axis not in chosen]),)
        for axis in sorted(chosen, reverse=True):
            x = x.select(axis, 0)
        return (x,)


class IUnsqueezeLayer(ILayer):
    """Inserts axes of extent 1 where input 1 says, counted in the output."""

    _KIND = LayerType.UNSQUEEZE
    _SHAPE_ALGEBRA = True
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, axes = inputs
        assert x is not None and axes is not None
        require_type(x, MOVABLE, "the input")
        require_type(axes, INDICES, "axes")
        require_rank(axes, {0, 1}, "axes")
        rank = x._rank + (axes._extents[0] if axes._extents else 1)
        require(rank <= MAX_RANK, f"the output has rank {rank}; {MAX_RANK} is the most")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, axes = inputs
        assert x is not None and axes is not None
        numbers = host_numbers(axes)
        chosen = _normalized(numbers, x.ndim + len(numbers), "unsqueeze")
        if isinstance(x, HostValues):
            return (x._with(np.expand_dims(x.array, tuple(chosen))),)
        for axis in sorted(chosen):
            x = x.unsqueeze(axis)
        return (x,)


def _is_one(extent: Any) -> bool:
    return type(extent) is int and extent == 1


def _normalized(axes: Sequence[Any], rank: int, what: str) -> list[int]:
    if any(is_unknown(axis) for axis in axes):
        raise Refusal(f"the axes of {what} must be constants of the network")
    chosen = [int(axis) + rank if axis < 0 else int(axis) for axis in axes]
    if len(set(chosen)) != len(chosen) or not all(0 <= axis < rank for axis in chosen):
        raise Refusal(f"axes {list(axes)} are not distinct axes of rank {rank}")
    return chosen


class MovementLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_shuffle(self, input: ITensor) -> IShuffleLayer | None:
        """Adds a transpose, reshape, transpose; set them on the layer."""
        return self._add(IShuffleLayer._create(), expect_tensor(input, "input"))

    def add_slice(
        self, input: ITensor, start: DimsLike, shape: DimsLike, stride: DimsLike
    ) -> ISliceLayer | None:
        """Adds a slice.

        Args:
            input: Rank 1 or more.
            start: First index on each axis, not counted from the end.
            shape: Extents of the output.
            stride: Distance between indices on each axis.
        """
        layer = ISliceLayer._create(
            start=as_dims(start), shape=as_dims(shape), stride=as_dims(stride)
        )
        return self._add(layer, expect_tensor(input, "input"))

    def add_concatenation(self, inputs: Sequence[ITensor]) -> IConcatenationLayer | None:
        """Adds a concatenation; set ``axis`` on the layer.

        Args:
            inputs: Equal types and ranks, equal extents off the axis.
        """
        tensors = [expect_tensor(tensor, "an element of inputs") for tensor in inputs]
        if not tensors:
            self._reporter.refuse("add_concatenation", Refusal("there are no inputs"))
            return None
        rank = len(tensors[0]._extents or ())
        return self._add(IConcatenationLayer._create(axis=max(rank - 3, 0)), *tensors)

    def add_squeeze(self, input: ITensor, axes: ITensor | None = None) -> ISqueezeLayer | None:
        """Adds a layer that drops axes of extent 1.

        Args:
            input: Any shape.
            axes: 1-D int32 or int64 constant; without it all axes that are 1 for certain.
        """
        optional = () if axes is None else (expect_tensor(axes, "axes"),)
        return self._add(ISqueezeLayer._create(), expect_tensor(input, "input"), *optional)

    def add_unsqueeze(self, input: ITensor, axes: ITensor) -> IUnsqueezeLayer | None:
        """Adds a layer that inserts axes of extent 1.

        Args:
            input: Any shape.
            axes: 1-D int32 or int64 constant, positions in the output.
        """
        return self._add(
            IUnsqueezeLayer._create(), expect_tensor(input, "input"), expect_tensor(axes, "axes")
        )
