"""Sorting, top-k, medians, modes, searches, clamping, and extremes along an axis with where they stand."""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import argument, computable, dtypes, fixed_number, rank, refuses
from trt_converters.context import (
    ConversionContext,
    Operand,
    Size,
    combine,
    dtype_of,
    is_exactly,
    is_size_number,
    normalize_axis,
    rank_of,
)
from trt_converters.converter import Check
from trt_converters.layers import (
    activation,
    binary,
    cast,
    greater_equal,
    index_range,
    logical_not,
    promote,
    reduce,
    reshape,
    select,
    squeeze,
    topk,
    unary,
    unsqueeze,
)
from trt_converters.layers.casts import result_type
from trt_converters.layers.gathering import gather, gather_elements
from trt_converters.layers.pointwise import extreme, is_nan
from trt_converters.layers.reductions import extremum, first_extremum, positions, running_sum
from trt_converters.registry import convert_each, converter, refuse_each
from trt_core import Reason, Verdict
from trt_core.dtypes import INTEGERS
from trt_core.sizes.ranges import largest_extent

TOPK_LIMIT = 3840
"""Most elements that a top-k layer returns."""


def stable_sort(ctx: ConversionContext, value: Operand, axis: int, size: Size, descending: bool) -> tuple[Any, Any]:
    """Sorts along an axis; NaN counts as the largest, as in PyTorch.

    A first top-k orders the values, and leaves equal ones in any order. Numbering the groups of equal values gives
    every element a key of its own (group, then place), and a second top-k orders those.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        axis: A non-negative axis of at most `TOPK_LIMIT` elements.
        size: Its extent.
        descending: Whether the largest element comes first.

    Returns:
        The sorted values, and the int64 places they came from.
    """
    dtype = dtype_of(value)
    if dtype is torch.bool:
        values, indices = stable_sort(ctx, cast(ctx, value, torch.int32), axis, size, descending)
        return cast(ctx, values, torch.bool), indices
    ordered = value
    if dtype.is_floating_point:
        ordered = select(ctx, is_nan(ctx, value), torch.tensor(float("inf"), dtype=dtype), value)
    values, places = topk(ctx, ordered, size, axis, descending)
    group = _group_numbers(ctx, values, axis, size)
    if dtype.is_floating_point:
        # NaN went with infinity, and comes after it: two groups for each
        nan_here = gather_elements(ctx, cast(ctx, is_nan(ctx, value), torch.int32), places, axis)
        last = cast(ctx, nan_here, torch.int64)
        if descending:
            last = binary(ctx, "SUB", 1, last)
        group = binary(ctx, "SUM", binary(ctx, "PROD", group, 2), last)
    key = binary(ctx, "SUM", binary(ctx, "PROD", group, _size_operand(ctx, size)), places)
    _, order = topk(ctx, key, size, axis, False)
    indices = gather_elements(ctx, places, order, axis)
    return gather_elements(ctx, value, indices, axis), indices


def _group_numbers(ctx: ConversionContext, values: Operand, axis: int, size: Size) -> Any:
    """Numbers the groups of equal elements along an axis that is sorted, from 0, int64."""
    places = index_range(ctx, size)
    if isinstance(places, torch.Tensor):
        before = (places - 1).clamp(min=0)
    else:
        before = binary(ctx, "MAX", binary(ctx, "SUB", places, 1), 0)
    changed = logical_not(ctx, binary(ctx, "EQUAL", values, gather(ctx, values, before, axis)))
    return running_sum(ctx, cast(ctx, changed, torch.int64), axis)


def _size_operand(ctx: ConversionContext, size: Size) -> Any:
    known = ctx.size(size)
    return torch.tensor(known) if isinstance(known, int) else known


aten = torch.ops.aten

_COUNTED_LIMIT = 2048  # the mode compares every element with every other


def _at_most(limit: int, axis: str | int | None, why: str) -> Check:
    """Refuses an axis (its parameter's name, a number, or None for all axes together) that may exceed a limit."""

    @refuses(f"more elements than {limit}: {why} that many")
    def check(call: Call) -> Verdict | None:
        shape = call.tensor("self").shape
        index = call[axis] if isinstance(axis, str) else axis
        extents = shape if index is None else shape[index : index + 1 or None]
        known = [largest_extent(extent) for extent in extents]
        longest = None if None in known else math.prod(known)  # type: ignore[arg-type]
        if longest is not None and longest <= limit:
            return None
        found = "an unbounded number of" if longest is None else f"up to {longest}"
        return Verdict.refuse(Reason.TENSORRT_LIMIT, f"it works on {found} elements; {why} {limit}")

    return check


_SORTABLE = _at_most(TOPK_LIMIT, "dim", "TensorRT sorts at most")


def _axis(ctx: ConversionContext, value: Operand, dim: int) -> tuple[Any, int, Any]:
    """Returns a value of rank >= 1, the axis, and its extent; a 0-d value is raised to rank 1."""
    if rank_of(value) == 0:
        return unsqueeze(ctx, value, (0,)), 0, 1
    axis = normalize_axis(dim, rank_of(value))
    return value, axis, ctx.symbolic_shape("self")[axis]


def _sorted(ctx: ConversionContext, value: Operand, dim: int, descending: bool) -> tuple[Any, Any]:
    raised, axis, size = _axis(ctx, value, dim)
    values, indices = stable_sort(ctx, raised, axis, size, descending)
    if rank_of(value) == 0:
        return squeeze(ctx, values, (0,)), squeeze(ctx, indices, (0,))
    return values, indices


def _k_in_limit(call: Call) -> Verdict | None:
    """Refuses more elements than a top-k layer returns."""
    most = largest_extent(call["k"])
    if most is not None and most <= TOPK_LIMIT:
        return None
    return Verdict.refuse(Reason.TENSORRT_LIMIT, f"k={call['k']}; a top-k layer returns at most {TOPK_LIMIT} elements")


@converter(aten.topk.default, checks=(computable, _k_in_limit))
def aten_topk(ctx: ConversionContext, self: Operand, k: Size, dim: int, largest: bool, sorted: bool) -> Any:
    """topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"""  # noqa: E501 - the schema
    dtype = dtype_of(self)
    raised, axis, _ = _axis(ctx, self, dim)
    if dtype is torch.bool:
        raised = cast(ctx, raised, torch.int32)
    values, indices = topk(ctx, raised, k, axis, largest)
    values = cast(ctx, values, dtype)
    if rank_of(self) == 0:
        return squeeze(ctx, values, (0,)), squeeze(ctx, indices, (0,))
    return values, indices


def _at_place(
    ctx: ConversionContext, value: Operand, place: Operand, axis: int, keep: bool, scalar: bool
) -> tuple[Any, Any]:
    """Sorts, and takes the element at a place (an int64 value of shape (1,), or of the value's shape with axis 1)."""
    size = ctx.symbolic_shape("self")[axis] if not scalar else 1
    values, indices = stable_sort(ctx, value, axis, size, False)
    take = gather if rank_of(place) == 1 and rank_of(value) > 1 else gather_elements
    results = [take(ctx, part, place, axis) for part in (values, indices)]
    if scalar or not keep:
        results = [squeeze(ctx, part, (axis,)) for part in results]
    return results[0], results[1]


@converter(aten.kthvalue.default, checks=(computable, _SORTABLE))
def aten_kthvalue(ctx: ConversionContext, self: Operand, k: Size, dim: int, keepdim: bool) -> Any:
    """kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    raised, axis, _ = _axis(ctx, self, dim)
    place = combine(ctx, "add", [k, -1])
    index = torch.tensor([place]) if isinstance(place, int) else place
    return _at_place(ctx, raised, index, axis, keepdim, rank_of(self) == 0)


def _middle(ctx: ConversionContext, value: Operand, axis: int, size: Size, skip_nan: bool) -> Any:
    """Returns the place of the lower median in the sorted order along an axis, int64.

    A NaN, unless skipped, is the median itself: the first one, which stands behind all numbers.

    Returns:
        Shape (1,) for types without NaN, else the value's shape with an extent of 1 along the axis.
    """
    middle = combine(ctx, "floordiv", [combine(ctx, "add", [size, -1]), 2])
    index = torch.tensor([middle]) if isinstance(middle, int) else middle
    if not dtype_of(value).is_floating_point:
        return index
    missing = reduce(ctx, "SUM", cast(ctx, is_nan(ctx, value), torch.int64), (axis,), True)
    total = ctx.size(size)
    present = binary(ctx, "SUB", torch.tensor([total]) if isinstance(total, int) else total, missing)
    if skip_nan:
        lower = binary(ctx, "FLOOR_DIV", binary(ctx, "SUB", present, 1), 2)
        return binary(ctx, "MAX", lower, 0)  # where all are NaN, the first of them
    return select(ctx, binary(ctx, "GREATER", missing, 0), present, index)


def _median(ctx: ConversionContext, value: Operand, dim: int, keep: bool, skip_nan: bool) -> Any:
    raised, axis, size = _axis(ctx, value, dim)
    place = _middle(ctx, raised, axis, size, skip_nan)
    return _at_place(ctx, raised, place, axis, keep, rank_of(value) == 0)


def _median_of_all(ctx: ConversionContext, value: Operand, skip_nan: bool) -> Any:
    flat = reshape(ctx, value, [-1])
    size: Any = math.prod(ctx.symbolic_shape("self"))
    values, _ = stable_sort(ctx, flat, 0, size, False)
    return squeeze(ctx, gather(ctx, values, _middle(ctx, flat, 0, size, skip_nan), 0), (0,))


_ALL_SORTABLE = _at_most(TOPK_LIMIT, None, "TensorRT sorts at most")


convert_each(
    {
        aten.median.default: lambda ctx, self: _median_of_all(ctx, self, False),
        aten.nanmedian.default: lambda ctx, self: _median_of_all(ctx, self, True),
    },
    checks=(computable, _ALL_SORTABLE),
)


convert_each(
    {
        aten.sort.default: lambda ctx, self, dim, descending: _sorted(ctx, self, dim, descending),
        aten.sort.stable: lambda ctx, self, stable, dim, descending: _sorted(ctx, self, dim, descending),
        aten.argsort.default: lambda ctx, self, dim, descending: _sorted(ctx, self, dim, descending)[1],
        aten.argsort.stable: lambda ctx, self, stable, dim, descending: _sorted(ctx, self, dim, descending)[1],
        aten.median.dim: lambda ctx, self, dim, keepdim: _median(ctx, self, dim, keepdim, False),
        aten.nanmedian.dim: lambda ctx, self, dim, keepdim: _median(ctx, self, dim, keepdim, True),
    },
    checks=(computable, _SORTABLE),
)


def _room_for_pairs(call: Call) -> Verdict | None:
    """Refuses tensors of rank 8: comparing pairs needs an axis more."""
    rank = (call.result if isinstance(call.result, torch.Tensor) else call.tensor("self")).dim()
    if rank < 8:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"a tensor has rank {rank}, and comparing pairs needs an axis more")


@converter(
    aten.mode.default,
    checks=(computable, _room_for_pairs, _at_most(_COUNTED_LIMIT, "dim", "comparing all pairs is sensible up to")),
)
def aten_mode(ctx: ConversionContext, self: Operand, dim: int, keepdim: bool) -> Any:
    """mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"""
    dtype = dtype_of(self)
    raised, axis, size = _axis(ctx, self, dim)
    value = cast(ctx, raised, torch.int32) if dtype is torch.bool else raised
    rank = rank_of(value)
    equal = binary(ctx, "EQUAL", unsqueeze(ctx, value, (axis,)), unsqueeze(ctx, value, (axis + 1,)))
    counts = reduce(ctx, "SUM", cast(ctx, equal, torch.int32), (axis + 1,), False)
    frequent = binary(ctx, "EQUAL", counts, reduce(ctx, "MAX", counts, (axis,), True))
    # among equally frequent elements the smallest, and of that the last place
    high = torch.tensor(_highest(dtype_of(value)), dtype=dtype_of(value))
    found = extremum(ctx, select(ctx, frequent, value, high), (axis,), True, False)
    places = positions(ctx, size, axis, rank)
    where = reduce(ctx, "MAX", select(ctx, binary(ctx, "EQUAL", value, found), places, torch.tensor(0)), (axis,), True)
    found = cast(ctx, found, dtype)
    if keepdim and rank_of(self):
        return found, where
    return squeeze(ctx, found, (axis,)), squeeze(ctx, where, (axis,))


def _highest(dtype: torch.dtype) -> float | int:
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


# Searches in sorted sequences, and histograms -----------------------------------------------------------------------


Number = float | int


def _count_before(ctx: ConversionContext, sequence: Operand, values: Operand, right: bool, out_int32: bool) -> Any:
    """Returns how many elements of a sorted sequence stand before each value.

    Args:
        ctx: The context.
        sequence: (..., N), sorted along the last axis, or (N,).
        values: (..., M); any shape when the sequence has rank 1.
        right: Whether elements equal to the value stand before it.
        out_int32: Whether to count in int32 instead of int64.

    Counting what is not larger (or not at least as large) puts NaN behind everything, as PyTorch's search does.
    """
    common = result_type(sequence, values)
    if common is torch.bool:
        common = torch.int32
    rank = rank_of(values)
    if rank_of(sequence) > 1:
        sequence = unsqueeze(ctx, sequence, (rank_of(sequence) - 1,))
    column = unsqueeze(ctx, cast(ctx, values, common), (rank,))
    sequence = cast(ctx, sequence, common)
    behind = binary(ctx, "GREATER", sequence, column) if right else greater_equal(ctx, sequence, column)
    count = cast(ctx, logical_not(ctx, behind), torch.int32 if out_int32 else torch.int64)
    return reduce(ctx, "SUM", count, (rank,), False)


@converter(aten.searchsorted.Tensor, checks=(computable, _room_for_pairs))
@converter(aten.searchsorted.Scalar, checks=(computable, _room_for_pairs))
def aten_searchsorted(
    ctx: ConversionContext,
    sorted_sequence: Operand,
    self: Operand,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Operand | None,
) -> Any:
    """searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor"""  # noqa: E501 - the schema
    if sorter is not None:
        axis = rank_of(sorted_sequence) - 1
        sorted_sequence = gather_elements(ctx, sorted_sequence, sorter, axis)
    values = self if hasattr(self, "shape") else _number(ctx, self)
    return _count_before(ctx, sorted_sequence, values, right or side == "right", out_int32)


@converter(
    aten.bucketize.Tensor,
    aten.bucketize.Scalar,
    checks=(computable, rank("boundaries", 1, 1), _room_for_pairs),  # others PyTorch refuses
)
def aten_bucketize(ctx: ConversionContext, self: Operand, boundaries: Operand, out_int32: bool, right: bool) -> Any:
    """bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""
    values = self if hasattr(self, "shape") else _number(ctx, self)
    return _count_before(ctx, boundaries, values, right, out_int32)


def _number(ctx: ConversionContext, value: Number) -> Any:
    return cast(ctx, value, result_type(value))


@converter(
    aten.histc.default,
    checks=(
        dtypes("self", (torch.float32, *INTEGERS)),
        argument("bins", lambda bins: bins <= 1024, "every element is compared with every bin"),
        fixed_number("min", "max"),
    ),
)
def aten_histc(ctx: ConversionContext, self: Operand, bins: int, min: Number, max: Number) -> Any:
    """histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"""
    is_float = dtype_of(self) is torch.float32
    kind = torch.float32 if is_float else torch.int64
    flat = cast(ctx, reshape(ctx, self, [-1]), kind)
    low, high = torch.tensor([min], dtype=kind), torch.tensor([max], dtype=kind)
    if min == max:
        low, high = (extremum(ctx, flat, (0,), True, largest) for largest in (False, True))
        same = binary(ctx, "EQUAL", low, high)
        low = select(ctx, same, binary(ctx, "SUB", low, 1), low)
        high = select(ctx, same, binary(ctx, "SUM", high, 1), high)
    width, above = binary(ctx, "SUB", high, low), binary(ctx, "SUB", flat, low)
    if is_float:
        place = unary(ctx, "FLOOR", binary(ctx, "PROD", binary(ctx, "DIV", above, width), float(bins)))
    else:  # as PyTorch counts integers, on a GPU only
        place = binary(ctx, "FLOOR_DIV", binary(ctx, "PROD", above, bins), width)
    last = torch.tensor([bins - 1], dtype=kind)
    place = select(ctx, binary(ctx, "GREATER", place, last), last, place)
    outside = binary(ctx, "OR", binary(ctx, "LESS", flat, low), binary(ctx, "GREATER", flat, high))
    place = select(ctx, outside, torch.tensor([-1], dtype=kind), place)
    hits = binary(ctx, "EQUAL", unsqueeze(ctx, place, (1,)), torch.arange(bins, dtype=kind))
    return cast(ctx, reduce(ctx, "SUM", cast(ctx, hits, kind), (0,), False), dtype_of(self))


refuse_each(Reason.DATA_DEPENDENT_SHAPE, "the number of bins depends on the largest element", aten.bincount.default)


# Extremes and clamping ----------------------------------------------------------------------------------------------


def clip(ctx: ConversionContext, value: Operand, low: Number | None, high: Number | None) -> Any:
    """Limits a value of float or integer type to [low, high]; NaN stays NaN, and `high` wins where low > high."""
    dtype = dtype_of(value)
    if dtype.is_floating_point and _is_clip_layer(dtype, low, high):
        # the layer turns NaN into a bound
        return select(ctx, is_nan(ctx, value), value, activation(ctx, "CLIP", value, low, high))
    if low is not None and not is_exactly(low, -math.inf):
        bound = cast(ctx, low, dtype)
        value = select(ctx, binary(ctx, "LESS", value, bound), bound, value)
    if high is not None and not is_exactly(high, math.inf):
        bound = cast(ctx, high, dtype)
        value = select(ctx, binary(ctx, "GREATER", value, bound), bound, value)
    return value


def _is_clip_layer(dtype: torch.dtype, low: Number | None, high: Number | None) -> bool:
    """Whether the bounds are attributes of a layer: two finite numbers in order, of which no size decides."""
    if low is None or high is None or is_size_number(low) or is_size_number(high):
        return False
    limit = torch.finfo(dtype).max
    return -limit <= low <= high <= limit


def _extreme(ctx: ConversionContext, left: Operand, right: Operand, largest: bool, skips_nan: bool = False) -> Any:
    """Returns the larger or the smaller operand, and NaN where either is NaN, unless the other one is wanted there."""
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    layer, comparison, logic = ("MAX", "GREATER", "OR") if largest else ("MIN", "LESS", "AND")
    if ctx.result_dtype is torch.bool:
        return binary(ctx, logic, left, right)
    return extreme(ctx, layer, comparison, left, right, right if skips_nan else left)


def _is_not_nan(bound: Any) -> bool:
    return not (isinstance(bound, float) and math.isnan(bound))


_BOUNDS = tuple(argument(name, _is_not_nan, "a bound that is NaN") for name in ("min", "max"))


@converter(aten.clamp.default, aten.clip.default, checks=(computable, *_BOUNDS))
def aten_clamp(ctx: ConversionContext, self: Operand, min: Number | None, max: Number | None) -> Any:
    """clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"""
    return clip(ctx, cast(ctx, self, ctx.result_dtype), min, max)


@converter(aten.clamp_min.default, checks=(computable, _BOUNDS[0]))
def aten_clamp_min(ctx: ConversionContext, self: Operand, min: Number) -> Any:
    """clamp_min(Tensor self, Scalar min) -> Tensor"""
    return clip(ctx, cast(ctx, self, ctx.result_dtype), min, None)


@converter(aten.clamp_max.default, checks=(computable, _BOUNDS[1]))
def aten_clamp_max(ctx: ConversionContext, self: Operand, max: Number) -> Any:
    """clamp_max(Tensor self, Scalar max) -> Tensor"""
    return clip(ctx, cast(ctx, self, ctx.result_dtype), None, max)


@converter(aten.clamp.Tensor, aten.clip.Tensor, checks=computable)
def aten_clamp_tensor(ctx: ConversionContext, self: Operand, min: Operand | None, max: Operand | None) -> Any:
    """clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor"""
    value = cast(ctx, self, ctx.result_dtype)
    if min is not None:
        value = _extreme(ctx, value, min, True)
    if max is not None:
        value = _extreme(ctx, value, max, False)
    return value


def _along(ctx: ConversionContext, value: Operand, dim: int, keep: bool, largest: bool) -> tuple[Any, Any]:
    rank = rank_of(value)
    axis = normalize_axis(dim, rank)
    if not ctx.call.uses(1) and isinstance(ctx.result, (tuple, list)):
        return extremum(ctx, value, (axis,) if rank else (), keep, largest), None
    if rank == 0:
        return first_extremum(ctx, unsqueeze(ctx, value, (0,)), 0, 1, largest, keep=False)
    return first_extremum(ctx, value, axis, ctx.symbolic_shape("self")[axis], largest, keep)


def _place(ctx: ConversionContext, value: Operand, dim: int | None, keep: bool, largest: bool) -> Any:
    if dim is not None:
        return _along(ctx, value, dim, keep, largest)[1]
    count: Any = math.prod(ctx.symbolic_shape("self"))
    _, indices = first_extremum(ctx, reshape(ctx, value, [-1]), 0, count, largest, keep=False)
    return reshape(ctx, indices, ctx.result_shape)


convert_each(
    {
        (aten.maximum.default, aten.max.other): lambda ctx, self, other: _extreme(ctx, self, other, True),
        (aten.minimum.default, aten.min.other): lambda ctx, self, other: _extreme(ctx, self, other, False),
        aten.fmax.default: lambda ctx, self, other: _extreme(ctx, self, other, True, True),
        aten.fmin.default: lambda ctx, self, other: _extreme(ctx, self, other, False, True),
        aten.clamp_min.Tensor: lambda ctx, self, min: _extreme(ctx, self, min, True),
        aten.clamp_max.Tensor: lambda ctx, self, max: _extreme(ctx, self, max, False),
        aten.max.dim: lambda ctx, self, dim, keepdim: _along(ctx, self, dim, keepdim, True),
        aten.min.dim: lambda ctx, self, dim, keepdim: _along(ctx, self, dim, keepdim, False),
        aten.argmax.default: lambda ctx, self, dim, keepdim: _place(ctx, self, dim, keepdim, True),
        aten.argmin.default: lambda ctx, self, dim, keepdim: _place(ctx, self, dim, keepdim, False),
    },
    checks=computable,
)
