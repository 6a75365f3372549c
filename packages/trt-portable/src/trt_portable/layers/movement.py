"""Layers that move elements without computing: shuffle, slice, concatenation, squeeze, unsqueeze."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from trt_portable.dims import MAX_RANK
from trt_portable.dtypes import INDICES
from trt_portable.enums import DataType, LayerType
from trt_portable.errors import Refusal, optional, present
from trt_portable.layer_properties import Overridden, boolean, integer, optional_dims, permutation
from trt_portable.layers.contracts import moved
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.inference import joined
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import (
    require,
    require_axis,
    require_equal_ranks,
    require_equal_types,
    require_tensor,
    require_type,
)
from trt_portable.shape_tensors import HostValues, Value, host_numbers, is_shape_alone, operand
from trt_portable.size_arithmetic import is_unknown, quotient

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

MOVABLE: Final = frozenset(DataType) - {DataType.UINT8, DataType.E8M0}


class _Moves(NamedTuple):
    """What a shuffle does to a tensor of some extents: orders of axes and extents, each None where nothing changes."""

    shape: tuple[int, ...]
    first: tuple[int, ...] | None
    extents: list[int] | None
    second: tuple[int, ...] | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.first is not None:
            x = x.permute(self.first)
        if self.extents is not None:
            x = x.reshape(self.extents)
        return x if self.second is None else x.permute(self.second)


class IShuffleLayer(ILayer):
    """Transpose, reshape, transpose.

    Input 1, optional: the reshape dims as a 1-D shape tensor.
    """

    _KIND = LayerType.SHUFFLE
    _DEFERRED = True
    _SHAPE_ALGEBRA = True
    _MOVES_ALONE = True
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})

    first_transpose = permutation("Order of the axes before the reshape.")
    reshape_dims = Overridden(optional_dims("Extents: -1 infers one, 0 copies one."), 1)
    second_transpose = permutation("Order of the axes after the reshape.")
    zero_is_placeholder = boolean(True, "Whether an extent of 0 copies that of the input.")

    _moves: _Moves | None = None
    """In an engine: what became of the extents that came last, unless numbers that only a run knows decide about it."""

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        require_type(present(inputs[0]), MOVABLE, "the input")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, target = present(inputs[0]), optional(inputs, 1)
        rank = x._rank
        _order(self.first_transpose, rank, "first_transpose")
        reshaped = rank
        if target is not None:
            require_tensor(target, "the reshape dims", INDICES, ranks={1})
            reshaped = (target._extents or (0,))[0]
        elif self.reshape_dims is not None:
            reshaped = len(self.reshape_dims)
            require(
                all(extent >= -1 for extent in self.reshape_dims),
                f"reshape dims {self.reshape_dims} have an extent below -1",
            )
        require(reshaped <= MAX_RANK, f"the reshape has {reshaped} dims; {MAX_RANK} is the most")
        _order(self.second_transpose, reshaped, "second_transpose")

    _contract = staticmethod(moved)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        given, known = inputs[0], self._moves
        if known is not None and type(given) is torch.Tensor and given.shape == known.shape:
            return (known(given),)
        x, target = operand(inputs[0]), optional(inputs, 1)
        first = _order(self.first_transpose, x.ndim, "first_transpose")
        if first is not None:
            x = x.permute(first)
        dims, extents = self.reshape_dims, None
        if target is not None or dims is not None:
            wanted: list[Any] = host_numbers(target) if target is not None else list(dims or ())
            extents = _reshaped(x, wanted, self.zero_is_placeholder)
            x = x.new_empty(extents) if is_shape_alone(x, *extents) else x.reshape(extents)
        second = _order(self.second_transpose, x.ndim, "second_transpose")
        if self._IS_FROZEN and target is None and type(given) is torch.Tensor:
            self._moves = _Moves(given.shape, first, extents, second)
        return (x if second is None else x.permute(second),)


def _order(permutation: Any, rank: int, what: str) -> tuple[int, ...] | None:
    """The leading axes of a permutation; None for the identity."""
    order = tuple(permutation)[:rank]
    if order == tuple(range(rank)):
        return None
    require(sorted(order) == list(range(rank)), f"{what} {order} is no permutation of {rank} axes")
    return order


def _reshaped(x: Value, wanted: list[Any], zero_copies: bool) -> list[Any]:
    """The extents of a tensor that is reshaped; one may be -1."""
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
        size = math.prod(extents) * (-1 if free else 1)
        fits = size != 0 and count % size == 0 if free else size == count
        if not fits:
            raise Refusal(f"{count} elements of shape {tuple(x.shape)} do not fill {wanted}")
    elif free and any(map(is_unknown, (count, *extents))):  # PyTorch would ask whether there are elements at all
        extents[free[0]] = quotient(count, math.prod(extent for axis, extent in enumerate(extents) if axis != free[0]))
    return extents


class IConcatenationLayer(ILayer):
    """Tensors joined along one axis."""

    _KIND = LayerType.CONCATENATION
    _DEFERRED = True
    _SHAPE_ALGEBRA = True

    axis = integer(0, "The axis; at first the third from the end, or 0 below rank 3.")

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        tensors = [tensor for tensor in inputs if tensor is not None]
        require_equal_types(tensors, "the inputs")
        require_tensor(tensors[0], "an input", MOVABLE, least_rank=1)
        require_equal_ranks(tensors, "the inputs")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        tensors = [tensor for tensor in inputs if tensor is not None]
        require_axis(self.axis, tensors[0]._rank)
        for axis, column in enumerate(zip(*(t._extents or () for t in tensors), strict=True)):
            fixed = {extent for extent in column if type(extent) is int}
            if axis != self.axis and len(fixed) > 1:
                raise Refusal(f"extents {list(column)} on axis {axis} differ; only axis {self.axis} may")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        return joined(self._inputs, self.axis, symbols)

    _contract = staticmethod(moved)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return (torch.cat(inputs, self.axis),)  # type: ignore[arg-type]


class ISqueezeLayer(ILayer):
    """Drops axes of extent 1: those that input 1 lists, or all that are 1 for certain."""

    _KIND = LayerType.SQUEEZE
    _SHAPE_ALGEBRA = True
    _MOVES_ALONE = True
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, axes = present(inputs[0]), optional(inputs, 1)
        require_type(x, MOVABLE, "the input")
        require_tensor(axes, "axes", INDICES, ranks={0, 1})

    _contract = staticmethod(moved)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, axes = operand(inputs[0]), optional(inputs, 1)
        if axes is None:
            source = present(self._inputs[0])
            chosen = [axis for axis, extent in enumerate(source._extents or ()) if type(extent) is int and extent == 1]
        else:
            chosen = _normalized(host_numbers(axes), x.ndim, "squeeze")
        for axis in chosen:
            extent = x.shape[axis]
            if not is_unknown(extent) and extent != 1:
                raise Refusal(f"axis {axis} has extent {extent}; only extents of 1 are squeezed")
        kept = [extent for axis, extent in enumerate(x.shape) if axis not in chosen]
        if isinstance(x, HostValues):
            return (x.reshape(kept),)
        if is_shape_alone(x):
            return (x.new_empty(kept),)
        for axis in sorted(chosen, reverse=True):
            x = x.select(axis, 0)
        return (x,)


class IUnsqueezeLayer(ILayer):
    """Inserts axes of extent 1 where input 1 says, counted in the output."""

    _KIND = LayerType.UNSQUEEZE
    _SHAPE_ALGEBRA = True
    _MOVES_ALONE = True
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})

    _known: tuple[Value, int, list[int]] | None = None
    """The axes that came last, the rank of what they were for, and where they go."""

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, axes = map(present, inputs)
        require_type(x, MOVABLE, "the input")
        require_tensor(axes, "axes", INDICES, ranks={0, 1})

    _contract = staticmethod(moved)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, axes = map(operand, inputs)
        known = self._known
        if known is not None and known[0] is axes and known[1] == x.ndim:
            chosen = known[2]
        else:
            numbers = host_numbers(axes)
            chosen = sorted(_normalized(numbers, x.ndim + len(numbers), "unsqueeze"))
            if isinstance(axes, HostValues):  # which nobody modifies
                self._known = (axes, x.ndim, chosen)
        if isinstance(x, HostValues):
            return (x._with(np.expand_dims(x.array, tuple(chosen))),)
        if is_shape_alone(x):
            rest = iter(x.shape)
            return (x.new_empty([1 if axis in chosen else next(rest) for axis in range(x.ndim + len(chosen))]),)
        for axis in chosen:
            x = x.unsqueeze(axis)
        return (x,)


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
        return self._add(IShuffleLayer._create(), input=input)

    def add_concatenation(self, inputs: Sequence[ITensor]) -> IConcatenationLayer | None:
        """Adds a concatenation; set ``axis`` on the layer.

        Args:
            inputs: Equal types and ranks, equal extents off the axis.
        """
        tensors = [expect_tensor(tensor, "an element of inputs") for tensor in inputs]
        if not tensors:
            self._reporter.refuse("add_concatenation", Refusal("there are no inputs"))
            return None
        tensors[0]._refresh()
        rank = len(tensors[0]._extents or ())
        return self._add(IConcatenationLayer._create(axis=max(rank - 3, 0)), *tensors)

    def add_squeeze(self, input: ITensor, axes: ITensor | None = None) -> ISqueezeLayer | None:
        """Adds a layer that drops axes of extent 1.

        Args:
            input: Any shape.
            axes: 1-D int32 or int64 constant; without it all axes that are 1 for certain.
        """
        optional = {} if axes is None else {"axes": axes}
        return self._add(ISqueezeLayer._create(), input=input, **optional)

    def add_unsqueeze(self, input: ITensor, axes: ITensor) -> IUnsqueezeLayer | None:
        """Adds a layer that inserts axes of extent 1.

        Args:
            input: Any shape.
            axes: 1-D int32 or int64 constant, positions in the output.
        """
        return self._add(IUnsqueezeLayer._create(), input=input, axes=axes)
