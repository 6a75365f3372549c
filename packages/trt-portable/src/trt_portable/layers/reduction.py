"""Layers that reduce, sort, accumulate or normalize along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import CumulativeOperation, DataType, LayerType, ReduceOperation, TopKOperation
from trt_portable.errors import Refusal, optional, present
from trt_portable.layer_properties import Attribute, Overridden, Selective, boolean, element_type, integer, member
from trt_portable.layers.contracts import broadcast
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.inference import reduced
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import (
    axes_of_mask,
    require,
    require_tensor,
)
from trt_portable.shape_tensors import Value, as_tensor, host_numbers, operand
from trt_portable.size_arithmetic import is_unknown

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

K_LIMIT: Final = 3840
"""Largest K of a top-k layer."""


def _extreme(x: Any, axes: tuple[int, ...], keep: bool, largest: bool) -> Any:
    empty = [axis for axis in axes if isinstance(x.shape[axis], int) and x.shape[axis] == 0]
    if empty:
        if x.dtype.is_floating_point:
            worst: float = float("-inf") if largest else float("inf")
        else:
            limits = torch.iinfo(x.dtype)
            worst = limits.min if largest else limits.max
        shape = [1 if i in axes else e for i, e in enumerate(x.shape) if keep or i not in axes]
        return as_tensor(x).new_full(shape, worst)
    return torch.amax(x, axes, keep) if largest else torch.amin(x, axes, keep)


def _product(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _average(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    if x.dtype.is_floating_point:
        return torch.mean(x, axes, keep)
    count = math.prod(x.shape[axis] for axis in axes)
    total = torch.sum(as_tensor(x), axes, keep, dtype=torch.int64)
    if isinstance(count, int) and count == 0:
        lowest = -128 if x.dtype is torch.int8 else 0
        return torch.full_like(total, lowest).to(x.dtype)
    return torch.div(total, count, rounding_mode="trunc").to(x.dtype)


class IReduceLayer(ILayer):
    """A reduction over the axes of a mask; the element type stays."""

    _KIND = LayerType.REDUCE
    _SHAPE_ALGEBRA = True

    op = member(ReduceOperation, ReduceOperation.SUM, "The operation.")
    axes = integer(0, "Bit mask of the axes.")
    keep_dims = boolean(False, "Whether reduced axes stay, with extent 1.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_tensor(x, "the input", FLOATS | INDICES | {DataType.INT8}, least_rank=1)
        require(self.op is not ReduceOperation.NONE, "operation NONE is for collectives only")
        axes_of_mask(self.axes, x._rank)

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        x = present(self._inputs[0])
        return reduced(x, axes_of_mask(self.axes, x._rank), self.keep_dims)

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x: Any = inputs[0]
        axes = axes_of_mask(self.axes, x.ndim)
        keep = self.keep_dims
        op = self.op
        if op is ReduceOperation.SUM:
            return (torch.sum(x, axes, keep, dtype=x.dtype),)
        if op is ReduceOperation.AVG:
            return (_average(x, axes, keep),)
        if op is ReduceOperation.PROD:
            return (_product(x, axes, keep),)
        return (_extreme(x, axes, keep, op is ReduceOperation.MAX),)


class ISoftMaxLayer(ILayer):
    """Exponentials along one axis, divided by their sum."""

    _KIND = LayerType.SOFTMAX
    _LIKE_FIRST_INPUT = True
    _DEFERRED = True

    axes = integer(1, "Bit mask with one axis; at first the third from the end, or 0 below rank 3.")

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_tensor(x, "the input", FLOATS, least_rank=1)

    def _check(self, inputs: Sequence[ITensor]) -> None:
        axes = axes_of_mask(self.axes, inputs[0]._rank)
        require(len(axes) == 1, f"softmax works on one axis, not on {axes}")

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x: Any = inputs[0]
        return (F.softmax(x, self.axes.bit_length() - 1),)


class IRaggedSoftMaxLayer(ILayer):
    """Softmax over the first elements of each row; what lies beyond is 0.

    Inputs: 0 x (N, Z, S); 1 bounds (N, Z, 1), int32, the number of elements of each row.
    """

    _KIND = LayerType.RAGGED_SOFTMAX
    _LIKE_FIRST_INPUT = True

    def _check(self, inputs: Sequence[ITensor]) -> None:
        x, bounds = inputs
        require_tensor(x, "the input", FLOATS, ranks={3})
        require_tensor(bounds, "the bounds", {DataType.INT32}, ranks={3})
        require((bounds._extents or (0,))[-1] == 1, "the last extent of the bounds must be 1")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x, bounds = map(as_tensor, inputs)
        inside = torch.arange(x.shape[-1], device=x.device) < bounds
        weights = F.softmax(x.masked_fill(~inside, float("-inf")), -1)
        return (torch.where(inside, weights, torch.zeros_like(weights)),)


def indices_type() -> Attribute[DataType]:
    """The attribute that holds the element type of computed indices."""
    return Selective(element_type(DataType.INT32, "INT32 or INT64."), INDICES)


class ITopKLayer(ILayer):
    """The K largest or smallest elements along one axis, sorted, and their indices.

    Inputs: 0 x; optional 1 K (0-D int32 shape tensor). Outputs: 0 values, 1 indices.
    """

    _KIND = LayerType.TOPK
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})
    _NUM_OUTPUTS = 2
    _DEFERRED = True

    op = member(TopKOperation, TopKOperation.MAX, "Which end of the order.")
    k = Overridden(integer(1, "Number of elements kept."), 1, -1)
    axes = integer(1, "Bit mask with one axis, among the last four.")
    indices_type = indices_type()

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        x = present(inputs[0])
        require_tensor(x, "the input", FLOATS | INDICES, least_rank=2)
        axes = axes_of_mask(self.axes, x._rank)
        require(len(axes) == 1, f"top-k works on one axis, not on {axes}")
        require(axes[0] >= x._rank - 4, f"axis {axes[0]} is not among the last four of {x._rank}")
        if len(inputs) < 2:
            extent = (x._extents or ())[axes[0]]
            require(0 <= self.k <= K_LIMIT, f"K is {self.k}; {K_LIMIT} is the most")
            require(
                type(extent) is not int or self.k <= extent,
                f"K is {self.k}, the extent of axis {axes[0]} only {extent}",
            )

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        require_tensor(optional(inputs, 1), "K", {DataType.INT32}, ranks={0})

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, given = operand(inputs[0]), optional(inputs, 1)
        k = self.k if given is None else host_numbers(given)[0]
        axis = self.axes.bit_length() - 1
        if not is_unknown(k) and k > K_LIMIT:
            raise Refusal(f"K is {k}; {K_LIMIT} is the most")
        tensor, is_descending = as_tensor(x), self.op is TopKOperation.MAX
        extent: Any = tensor.shape[axis]
        is_whole = type(k) is int and type(extent) is int and k == extent
        if is_whole and tensor.is_cuda:  # a search would come before the sort
            values, indices = tensor.sort(axis, is_descending)
        else:
            values, indices = torch.topk(tensor, k, axis, is_descending, True)
        return values, indices.to(self._carrier(self.indices_type))


class ICumulativeLayer(ILayer):
    """Running sums along an axis given by a 0-D constant, input 1."""

    _KIND = LayerType.CUMULATIVE
    _LIKE_FIRST_INPUT = True
    _HOST_INPUTS = frozenset({1})

    op = member(CumulativeOperation, CumulativeOperation.SUM, "The operation.")
    exclusive = boolean(False, "Whether an element leaves itself out of its sum.")
    reverse = boolean(False, "Whether sums run from the end.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        x, axis = inputs
        require_tensor(x, "the input", FLOATS | INDICES, least_rank=1)
        require_tensor(axis, "the axis", INDICES, ranks={0})
        for place in axis._host or ():
            require(isinstance(place, int), "the axis must be a constant of the network")
            require(-x._rank <= place < x._rank, f"axis {place} is outside rank {x._rank}")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x, given = inputs
        tensor, axis = as_tensor(x), host_numbers(given)[0]
        if self.reverse:
            tensor = tensor.flip(axis)
        total = torch.cumsum(tensor, axis, dtype=tensor.dtype)
        if self.exclusive:
            zero = torch.zeros_like(total.narrow(axis, 0, 1))
            total = torch.cat((zero, total.narrow(axis, 0, total.shape[axis] - 1)), axis)
        return (total.flip(axis) if self.reverse else total,)


class ReductionLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_reduce(self, input: ITensor, op: ReduceOperation, axes: int, keep_dims: bool) -> IReduceLayer | None:
        """Adds a reduction.

        Args:
            input: Rank 1 or more; not bool.
            op: The operation.
            axes: Bit mask of the axes.
            keep_dims: Whether reduced axes stay, with extent 1.
        """
        return self._add(IReduceLayer._create(op=op, axes=axes, keep_dims=keep_dims), input=input)

    def add_softmax(self, input: ITensor) -> ISoftMaxLayer | None:
        """Adds a softmax; set ``axes`` on the layer."""
        source = expect_tensor(input, "input")
        source._refresh()
        rank = len(source._extents or ())
        return self._add(ISoftMaxLayer._create(axes=1 << max(rank - 3, 0)), input)

    def add_ragged_softmax(self, input: ITensor, bounds: ITensor) -> IRaggedSoftMaxLayer | None:
        """Adds a softmax over the first elements of each row.

        Args:
            input: (N, Z, S), float types.
            bounds: (N, Z, 1), int32.
        """
        return self._add(IRaggedSoftMaxLayer._create(), input=input, bounds=bounds)

    def add_topk(
        self, input: ITensor, op: TopKOperation, k: int, axes: int, indices_type: DataType = DataType.INT32
    ) -> ITopKLayer | None:
        """Adds a selection of the K largest or smallest elements.

        Args:
            input: Rank 2 or more.
            op: Which end of the order.
            k: Number of elements, at most 3840.
            axes: Bit mask with one axis, among the last four.
            indices_type: INT32 or INT64.
        """
        return self._add(ITopKLayer._create(op=op, k=k, axes=axes, indices_type=indices_type), input=input)

    def add_cumulative(
        self, input: ITensor, axis: ITensor, op: CumulativeOperation, exclusive: bool, reverse: bool
    ) -> ICumulativeLayer | None:
        """Adds running sums.

        Args:
            input: Rank 1 or more.
            axis: 0-D int32 or int64 constant.
            op: The operation.
            exclusive: Whether an element leaves itself out of its sum.
            reverse: Whether sums run from the end.
        """
        return self._add(ICumulativeLayer._create(op=op, exclusive=exclusive, reverse=reverse), input=input, axis=axis)
