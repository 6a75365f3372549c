"""Scatters that reduce: elements that share an index are summed, multiplied, averaged or compared.

Scatter layers do not reduce. Here each target is compared with each index, which makes one row per target; the row is
reduced. The work grows with targets times indices, so calls beyond a limit run in PyTorch.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from trt_converters.aten.products import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import dtypes, only_results, rank
from trt_converters.context import (
    ConversionContext,
    Operand,
    dtype_of,
    is_exactly,
    normalize_axis,
    rank_of,
    shape_of,
    shape_vector,
)
from trt_converters.layers import (
    binary,
    cast,
    combine,
    concatenate,
    crop_and_pad,
    dimension,
    expand,
    gather,
    index_range,
    permute,
    reduce,
    reshape,
    select,
    slice_axis,
    slice_tensor,
    squeeze,
    unsqueeze,
)
from trt_converters.layers.elementary import maximum, minimum
from trt_converters.layers.extremum import extremum
from trt_converters.layers.gathering import one_hot_matrix
from trt_converters.layers.movement import is_same_size
from trt_converters.layers.pointwise import logical_not
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS, INTEGERS, dtype_name

aten = torch.ops.aten
LIMIT: Final = 1 << 26
"""Most comparisons of a target with an index that one call may need."""

SELECTION_LIMIT: Final = 1 << 22
"""Most elements of rows that are selected one by one to be summed."""

OPERATIONS: Final = {
    "sum": "SUM",
    "add": "SUM",
    "prod": "PROD",
    "multiply": "PROD",
    "mean": "SUM",
    "amax": "MAX",
    "amin": "MIN",
}


def _identity(operation: str, dtype: torch.dtype) -> float | int:
    if operation in ("SUM", "PROD"):
        return 0 if operation == "SUM" else 1
    if dtype.is_floating_point:
        return float("-inf") if operation == "MAX" else float("inf")
    bounds = torch.iinfo(dtype)
    return bounds.min if operation == "MAX" else bounds.max


def number_type(call: Call) -> Verdict | None:
    """Refuses types that reduce layers do not take."""
    dtype = call.tensor("self").dtype
    if dtype in FLOATS | INTEGERS:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"no layer reduces {dtype_name(dtype)}")


def affordable(call: Call) -> Verdict | None:
    """Refuses calls that compare too many targets with too many indices."""
    own, index = call.tensor("self"), call.tensor("index")
    dim = call.arguments.get("dim", 0)
    source = call.arguments.get("source", index)
    targets = own.shape[dim] if own.dim() else 1
    elements = source.numel() if isinstance(source, torch.Tensor) else index.numel()
    if not isinstance(targets, int) or not isinstance(elements, int) or targets * elements <= LIMIT:
        return None
    return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{targets} targets for {elements} elements, at most {LIMIT} pairs")


CHECKS = (number_type, affordable)


def segment_reduce(
    ctx: ConversionContext,
    self: Operand,
    axis: int,
    index: Operand,
    source: Operand,
    reduction: str,
    include_self: bool,
) -> Any:
    """Reduces the elements of a source that share a target.

    Args:
        ctx: The context.
        self: (A, targets, B) once the axis is in the middle: what is reduced into.
        axis: Which axis of `self` the index points into.
        index: As the source; equal extents, or shorter than those of `self`, on every other axis.
        source: Of the type of `self`.
        reduction: A key of `OPERATIONS`.
        include_self: Whether `self` takes part, or is only what remains where nothing is written.
    """
    dtype, rank = dtype_of(self), rank_of(self)
    order = [*(i for i in range(rank) if i != axis), axis]
    inverse = [order.index(i) for i in range(rank)]
    work = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    target = cast(ctx, permute(ctx, self, order), work)
    index, source = permute(ctx, index, order), cast(ctx, permute(ctx, source, order), work)
    index, source = _cover(ctx, target, index, -1), _cover(ctx, target, source, 0)
    numbers = cast(ctx, index_range(ctx, dimension(ctx, target, rank - 1)), dtype_of(index))
    column = unsqueeze(ctx, numbers, (1,))
    hits = binary(ctx, "EQUAL", unsqueeze(ctx, index, (rank - 1,)), column)  # (..., targets, elements)
    operation = OPERATIONS[reduction]
    neutral = torch.tensor(_identity(operation, work), dtype=work)
    chosen = select(ctx, hits, unsqueeze(ctx, source, (rank - 1,)), neutral)
    found = _reduced(ctx, operation, chosen, rank)
    if include_self:
        found = _joined(ctx, operation, found, target)
    if reduction == "mean" or not include_self:
        counts = reduce(ctx, "SUM", cast(ctx, hits, torch.int32), (rank,), False)
        if reduction == "mean":
            found = _average(ctx, found, counts, include_self)
        if not include_self:
            touched = binary(ctx, "GREATER", counts, torch.zeros((), dtype=torch.int32))
            found = select(ctx, touched, found, target)
    return permute(ctx, cast(ctx, found, dtype), inverse)


def _reduced(ctx: ConversionContext, operation: str, value: Operand, axis: int) -> Any:
    if operation in ("MAX", "MIN"):
        return extremum(ctx, value, (axis,), False, operation == "MAX")
    return reduce(ctx, operation, value, (axis,), False)


def _joined(ctx: ConversionContext, operation: str, left: Operand, right: Operand) -> Any:
    if operation in ("MAX", "MIN"):
        return maximum(ctx, left, right) if operation == "MAX" else minimum(ctx, left, right)
    return binary(ctx, operation, left, right, "include")


def _average(ctx: ConversionContext, total: Any, counts: Any, include_self: bool) -> Any:
    one = torch.ones((), dtype=torch.int32)
    counts = binary(ctx, "SUM", counts, one) if include_self else binary(ctx, "MAX", counts, one)
    dtype = dtype_of(total)
    operation = "DIV" if dtype.is_floating_point else "FLOOR_DIV"
    return binary(ctx, operation, total, cast(ctx, counts, dtype), "mean")


def _cover(ctx: ConversionContext, target: Operand, part: Operand, fill: int) -> Any:
    """Extends a part to the target's extents on every axis but the last."""
    rank = rank_of(target)
    missing = [0] * rank
    for axis in range(rank - 1):
        wanted, found = dimension(ctx, target, axis), dimension(ctx, part, axis)
        if isinstance(wanted, int) and isinstance(found, int):
            missing[axis] = wanted - found
    return crop_and_pad(ctx, part, [0] * rank, missing, fill)


def accumulate_rows(ctx: ConversionContext, table: Operand, index: Operand, rows: Operand) -> Any:
    """Adds rows to those rows of a table that an index names.

    Args:
        ctx: The context.
        table: (targets, width).
        index: (n,), not negative.
        rows: (n, width), of the table's type.
    """
    dtype = dtype_of(table)
    work = torch.float32 if dtype in FLOATS else torch.int32 if dtype is torch.bool else dtype
    matches = one_hot_matrix(ctx, index, dimension(ctx, table, 0))
    total = sum_members(ctx, matches, cast(ctx, rows, work))
    return cast(ctx, binary(ctx, "SUM", cast(ctx, table, work), total), dtype)


def sum_members(ctx: ConversionContext, members: Operand, rows: Operand) -> Any:
    """Sums the rows that belong to each target.

    Rows are selected one by one while there are few; many floats are multiplied with a matrix of zeros and ones
    instead, which needs less memory and spreads infinities and NaN to every target.

    Args:
        ctx: The context.
        members: (targets, n), bool.
        rows: (n, width), float32, int32 or int64.
    """
    shape = (*shape_of(members), shape_of(rows)[1])
    few = all(extent >= 0 for extent in shape) and math.prod(shape) <= SELECTION_LIMIT
    dtype = dtype_of(rows)
    if dtype.is_floating_point and not few:
        return matrix_multiply(ctx, cast(ctx, members, dtype), rows)
    chosen = select(ctx, unsqueeze(ctx, members, (2,)), unsqueeze(ctx, rows, (0,)), torch.zeros((), dtype=dtype))
    return reduce(ctx, "SUM", chosen, (1,), False)


def _along(
    ctx: ConversionContext,
    self: Operand,
    dim: int,
    index: Operand,
    src: Operand,
    reduction: str,
    include_self: bool,
) -> Any:
    """Reduces along an axis; the source is cut to the index, 0-d tensors get an axis."""
    shape = ctx.symbolic_shape("self")
    scalar = not shape
    self, index, src = (reshape(ctx, part, (1,)) if rank_of(part) == 0 else part for part in (self, index, src))
    own, wanted = ctx.symbolic_shape("src"), ctx.symbolic_shape("index")
    if own and wanted:
        sizes = [None if is_same_size(w, o) else w for w, o in zip(wanted, own, strict=True)]
        src = slice_tensor(ctx, src, [0] * len(own), sizes)
    axis = normalize_axis(dim, rank_of(self))
    result = segment_reduce(ctx, self, axis, index, src, reduction, include_self)
    return squeeze(ctx, result, (0,)) if scalar else result


def static_cover(call: Call) -> Verdict | None:
    """Refuses symbolic indices that may be shorter than the target, by an amount that is not known."""
    own, index = call.tensor("self").shape, call.tensor("index").shape
    axis = normalize_axis(call["dim"], len(own))
    for position, (left, right) in enumerate(zip(own, index, strict=False)):
        static = isinstance(left, int) and isinstance(right, int)
        if position != axis and not static and not is_same_size(left, right):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"index has shape {tuple(index)}, self {tuple(own)}")
    return None


ALONG_CHECKS = (*CHECKS, static_cover)


@converter(aten.scatter_add.default, checks=ALONG_CHECKS)
def aten_scatter_add(ctx: ConversionContext, self: Operand, dim: int, index: Operand, src: Operand) -> Any:
    """scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return _along(ctx, self, dim, index, src, "sum", True)


@converter(aten.scatter_reduce.two, checks=ALONG_CHECKS)
def aten_scatter_reduce(
    ctx: ConversionContext,
    self: Operand,
    dim: int,
    index: Operand,
    src: Operand,
    reduce: str,
    include_self: bool,
) -> Any:
    """scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor"""  # noqa: E501
    return _along(ctx, self, dim, index, src, reduce, include_self)


@converter(aten.scatter.reduce, checks=ALONG_CHECKS)
def aten_scatter_src_reduce(
    ctx: ConversionContext, self: Operand, dim: int, index: Operand, src: Operand, reduce: str
) -> Any:
    """scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor"""
    return _along(ctx, self, dim, index, src, reduce, True)


@converter(aten.scatter.value_reduce, checks=ALONG_CHECKS)
def aten_scatter_value_reduce(
    ctx: ConversionContext, self: Operand, dim: int, index: Operand, value: float, reduce: str
) -> Any:
    """scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor"""
    shape = ctx.symbolic_shape("index")
    scalar = not ctx.symbolic_shape("self")
    self, index = (reshape(ctx, part, (1,)) if rank_of(part) == 0 else part for part in (self, index))
    source = expand(ctx, cast(ctx, value, dtype_of(self)), shape or (1,))
    result = segment_reduce(ctx, self, normalize_axis(dim, rank_of(self)), index, source, reduce, True)
    return squeeze(ctx, result, (0,)) if scalar else result


@converter(aten.index_add.default, checks=CHECKS)
def aten_index_add(
    ctx: ConversionContext, self: Operand, dim: int, index: Operand, source: Operand, alpha: float
) -> Any:
    """index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor"""
    if not is_exactly(alpha, 1):
        source = binary(ctx, "PROD", source, alpha, "alpha")
    return _by_rows(ctx, self, dim, index, source, accumulate_rows)


def _by_rows(ctx: ConversionContext, self: Operand, dim: int, index: Operand, source: Operand, function: Any) -> Any:
    """Applies a function of (targets, width), (n,), (n, width) along an axis."""
    shape = ctx.symbolic_shape("self")
    self, index, source = (reshape(ctx, part, (1,)) if rank_of(part) == 0 else part for part in (self, index, source))
    rank = rank_of(self)
    axis = normalize_axis(dim, rank)
    order = [axis, *(i for i in range(rank) if i != axis)]
    moved, rows = permute(ctx, self, order), permute(ctx, source, order)
    extents = [dimension(ctx, moved, i) for i in range(rank)]
    width = combine(ctx, "mul", [1, *extents[1:]])
    count = dimension(ctx, rows, 0)
    result = function(ctx, reshape(ctx, moved, [extents[0], width]), index, reshape(ctx, rows, [count, width]))
    result = permute(ctx, reshape(ctx, result, extents), [order.index(i) for i in range(rank)])
    return result if shape else squeeze(ctx, result, (0,))


@converter(aten.index_reduce.default, checks=CHECKS)
def aten_index_reduce(
    ctx: ConversionContext,
    self: Operand,
    dim: int,
    index: Operand,
    source: Operand,
    reduce: str,
    include_self: bool,
) -> Any:
    """index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor"""  # noqa: E501

    def reduce_rows(ctx: ConversionContext, table: Operand, rows: Operand, values: Operand) -> Any:
        sizes = [dimension(ctx, values, axis) for axis in range(2)]
        wide = expand(ctx, unsqueeze(ctx, rows, (1,)), sizes)
        return segment_reduce(ctx, table, 0, wide, values, reduce, include_self)

    return _by_rows(ctx, self, dim, index, source, reduce_rows)


# Bags of embeddings -------------------------------------------------------------------------------------------------


SUM, MEAN, MAX = 0, 1, 2


def one_bag_or_more(call: Call) -> Verdict | None:
    """Refuses an `include_last_offset` that leaves no bag."""
    count = call.tensor("offsets").shape[0]
    if call["include_last_offset"] and isinstance(count, int) and count < 2:
        return Verdict.refuse(Reason.EMPTY_TENSOR, "there is no bag")
    return None


def counts_from_known_end(call: Call) -> Verdict | None:
    """Refuses a negative `padding_idx`, which counts from the table's end, where the table's length is symbolic."""
    padding_idx, rows = call["padding_idx"], call.tensor("weight").shape[0]
    if padding_idx is not None and padding_idx < 0 and not isinstance(rows, int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"padding_idx={padding_idx} of a table of {rows} rows")
    return None


BAG_CHECKS = (dtypes("weight", FLOATS), only_results(0), rank("indices", 1, 1), rank("offsets", 1, 1), one_bag_or_more)


def embed_bags(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    mode: int,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Any:
    """Reduces embeddings of each bag.

    Args:
        ctx: The context.
        weight: (rows, width), floats.
        indices: (n,), rows of the table.
        offsets: (bags,), where each bag starts; with the end of the last one when `include_last_offset`.
        mode: SUM, MEAN or MAX.
        per_sample_weights: (n,) factors, or None.
        include_last_offset: Whether offsets hold one more element.
        padding_idx: Row that takes no part; None or negative for no such row.
    """
    members = _membership(ctx, indices, offsets, include_last_offset)
    if padding_idx is not None and padding_idx >= 0:
        padding = binary(ctx, "EQUAL", indices, torch.tensor(padding_idx, dtype=dtype_of(indices)))
        members = binary(ctx, "AND", members, unsqueeze(ctx, logical_not(ctx, padding), (0,)))
    dtype = dtype_of(weight)
    rows = cast(ctx, gather(ctx, weight, indices, 0), torch.float32)
    if mode == MAX:
        return cast(ctx, _largest(ctx, members, rows), dtype)
    if per_sample_weights is not None:
        factors = cast(ctx, per_sample_weights, torch.float32)
        rows = binary(ctx, "PROD", rows, unsqueeze(ctx, factors, (1,)))
    total = sum_members(ctx, members, rows)
    if mode == MEAN:
        counts = reduce(ctx, "SUM", cast(ctx, members, torch.float32), (1,), True)
        total = binary(ctx, "DIV", total, binary(ctx, "MAX", counts, torch.ones(())), "mean")
    return cast(ctx, total, dtype)


def _membership(ctx: ConversionContext, indices: Operand, offsets: Operand, include_last_offset: bool) -> Any:
    """Returns which indices belong to which bag: bool, (bags, n)."""
    offsets = cast(ctx, offsets, torch.int64)
    total = dimension(ctx, indices, 0)
    count = dimension(ctx, offsets, 0)
    if include_last_offset:
        count = combine(ctx, "add", [count, -1])
        ends = slice_axis(ctx, offsets, 0, 1, count)
        starts = slice_axis(ctx, offsets, 0, 0, count)
    else:
        starts = offsets
        rest = slice_axis(ctx, offsets, 0, 1, combine(ctx, "add", [count, -1]))
        last = shape_vector(ctx, [total])
        ends = last if isinstance(count, int) and count == 1 else concatenate(ctx, [rest, last], 0)
    positions = unsqueeze(ctx, index_range(ctx, total), (0,))
    first = unsqueeze(ctx, binary(ctx, "SUB", starts, torch.ones((), dtype=torch.int64)), (1,))
    after = binary(ctx, "LESS", first, positions)
    return binary(ctx, "AND", after, binary(ctx, "LESS", positions, unsqueeze(ctx, ends, (1,))), "bags")


def _largest(ctx: ConversionContext, members: Any, rows: Any) -> Any:
    """Returns the maximum over each bag, zero for empty ones."""
    inside = unsqueeze(ctx, members, (2,))
    lowest = torch.tensor(float("-inf"))
    largest = extremum(ctx, select(ctx, inside, unsqueeze(ctx, rows, (0,)), lowest), (1,), False, True)
    counts = reduce(ctx, "SUM", cast(ctx, members, torch.int32), (1,), True)
    filled = binary(ctx, "GREATER", counts, torch.zeros((), dtype=torch.int32))
    return select(ctx, filled, largest, torch.zeros(()))


@converter(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, checks=BAG_CHECKS)
def aten__embedding_bag(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Any, ...]:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)"""  # noqa: E501
    return (embed_bags(ctx, weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding_idx),)


@converter(aten.embedding_bag.default, checks=BAG_CHECKS)
def aten_embedding_bag(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
) -> tuple[Any, ...]:
    """embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, Tensor, Tensor, Tensor)"""  # noqa: E501
    return (embed_bags(ctx, weight, indices, offsets, mode, per_sample_weights, include_last_offset, None),)


@converter(aten.embedding_bag.padding_idx, checks=(*BAG_CHECKS, counts_from_known_end))
def aten_embedding_bag_padding_idx(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> tuple[Any, ...]:
    """embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)"""  # noqa: E501
    if padding_idx is not None and padding_idx < 0:  # unlike in `_embedding_bag`, where -1 means no row
        padding_idx += dimension(ctx, weight, 0)
    return (embed_bags(ctx, weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding_idx),)
