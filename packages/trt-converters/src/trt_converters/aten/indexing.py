"""Reading at indices (index, gather, take, embedding), writing there, and scatters that reduce.

Scatter layers do not reduce: each target is compared with each index, which makes one row per target, and the row is
reduced. That grows with targets times indices, so calls beyond a limit run in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_converters.aten.products import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import argument, dtypes, only_results, rank
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
    gather_elements,
    index_range,
    permute,
    reduce,
    reshape,
    scatter_elements,
    scatter_nd,
    select,
    slice_axis,
    slice_tensor,
    squeeze,
    unsqueeze,
    wrap_negative,
)
from trt_converters.layers.gathering import one_hot_matrix
from trt_converters.layers.pointwise import logical_not, maximum, minimum
from trt_converters.layers.reductions import extremum
from trt_converters.registry import convert_each, converter, refuse_each
from trt_core import Reason, Verdict, trt
from trt_core.dtypes import FLOATS, INTEGERS, dtype_name
from trt_core.sizes.expressions import is_same_size

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

aten = torch.ops.aten


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
    ctx: ConversionContext, self: Operand, dim: int, index: Operand, src: Operand, reduction: str, include_self: bool
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


convert_each(
    {
        aten.scatter_add.default: lambda ctx, self, dim, index, src: _along(ctx, self, dim, index, src, "sum", True),
        aten.scatter_reduce.two: lambda ctx, self, dim, index, src, reduce, include_self: _along(
            ctx, self, dim, index, src, reduce, include_self
        ),
        aten.scatter.reduce: lambda ctx, self, dim, index, src, reduce: _along(
            ctx, self, dim, index, src, reduce, True
        ),
    },
    checks=ALONG_CHECKS,
)


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


def types_that_pytorch_takes(call: Call) -> Verdict | None:
    """Refuses types that PyTorch refuses when it runs and not when it captures, so that its own error comes."""
    index = call["index"]
    taken = (torch.int64,) if call.node.target in _INT64_ALONE else (torch.int32, torch.int64)
    if index.dtype not in taken:
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"indices are {dtype_name(index.dtype)}, which PyTorch refuses")
    return _own_type(call, "source") if "source" in call.arguments else None


def _own_type(call: Call, name: str) -> Verdict | None:
    own, source = call["self"].dtype, call[name].dtype
    if own is source:
        return None
    why = f"{dtype_name(source)} is written to {dtype_name(own)}, which PyTorch refuses"
    return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, why)


_INT64_ALONE: Final = {aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor}


@converter(aten.index_add.default, checks=(*CHECKS, types_that_pytorch_takes))
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
    ctx: ConversionContext, self: Operand, dim: int, index: Operand, source: Operand, reduce: str, include_self: bool
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


def _bags_without_padding(
    ctx: ConversionContext,
    weight: Operand,
    padding_idx: int | None,
    scale_grad_by_freq: bool,
    sparse: bool,
    **arguments: Any,
) -> Any:
    if padding_idx is not None and padding_idx < 0:  # unlike in `_embedding_bag`, where -1 means no row
        padding_idx += dimension(ctx, weight, 0)
    return (embed_bags(ctx, weight, padding_idx=padding_idx, **arguments),)


convert_each(
    {
        (
            aten._embedding_bag.default,
            aten._embedding_bag_forward_only.default,
        ): lambda ctx, scale_grad_by_freq, sparse, **arguments: (embed_bags(ctx, **arguments),),
        aten.embedding_bag.default: lambda ctx, scale_grad_by_freq, sparse, **arguments: (
            embed_bags(ctx, padding_idx=None, **arguments),
        ),
    },
    checks=BAG_CHECKS,
)
convert_each({aten.embedding_bag.padding_idx: _bags_without_padding}, checks=(*BAG_CHECKS, counts_from_known_end))


_COUNTED = (torch.float32, torch.float16, torch.int32, torch.bool)
"""Types that every description of the layer lists."""


def nonzero_positions(ctx: ConversionContext, value: Operand) -> Any:
    """Returns the coordinates of every element that is not zero: shape (rank, n), int64, in row-major order."""
    if dtype_of(value) not in _COUNTED:
        value = cast(ctx, value, torch.bool)
    return ctx.output(ctx.network.add_non_zero(ctx.tensor(value), trt.DataType.INT64), "nonzero")


def index_columns(ctx: ConversionContext, indices: Sequence[Operand | None]) -> list[Operand | None]:
    """Replaces every bool mask by the integer indices of its True elements, one per axis of the mask."""
    columns: list[Operand | None] = []
    for index in indices:
        if index is None or dtype_of(index) is not torch.bool:
            columns.append(index)
            continue
        positions = nonzero_positions(ctx, index)
        columns += [squeeze(ctx, slice_axis(ctx, positions, 0, axis, 1), (0,)) for axis in range(rank_of(index))]
    return columns


def indexed_axes(columns: Sequence[Operand | None]) -> list[int]:
    """Returns the axes that have an index."""
    return [axis for axis, column in enumerate(columns) if column is not None]


def flat_index(ctx: ConversionContext, columns: Sequence[Operand], extents: Sequence[Any]) -> Any:
    """Combines one index per axis into one index of the flattened axes.

    Args:
        ctx: The context.
        columns: Integer indices that broadcast; they may count from the end.
        extents: Sizes of the axes.
    """
    rank = max(rank_of(column) for column in columns)
    total: Any = None
    for position, (column, extent) in enumerate(zip(columns, extents, strict=True)):
        column = wrap_negative(ctx, cast(ctx, column, torch.int64), extent)
        stride = combine(ctx, "mul", [1, *extents[position + 1 :]])
        if isinstance(column, torch.Tensor) and isinstance(stride, int):
            column = column * stride
        elif not (isinstance(stride, int) and stride == 1):
            factor = torch.tensor(stride) if isinstance(stride, int) else stride
            factor = squeeze(ctx, factor, (0,)) if rank == 0 and rank_of(factor) else factor
            column = binary(ctx, "PROD", column, factor, "index")
        if total is None:
            total = column
        elif isinstance(total, torch.Tensor) and isinstance(column, torch.Tensor):
            total = total + column
        else:
            total = binary(ctx, "SUM", total, column, "index")
    return total


def are_adjacent(axes: Sequence[int]) -> bool:
    """Whether axes follow each other: then the indexed dimensions stay in their place."""
    return list(axes) == list(range(axes[0], axes[-1] + 1))


def one_mask(call: Call) -> Verdict | None:
    """Refuses uint8 masks, whose use as indices is deprecated."""
    for index in call["indices"]:
        if index is not None and index.dtype is torch.uint8:
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, "uint8 masks are not converted; use bool")
    return None


@converter(aten.index.Tensor, aten._unsafe_index.Tensor, checks=one_mask, data_dependent=True)
def aten_index(ctx: ConversionContext, self: Operand, indices: Sequence[Operand | None]) -> Any:
    """index.Tensor(Tensor self, Tensor?[] indices) -> Tensor"""
    columns = index_columns(ctx, indices)
    axes = indexed_axes(columns)
    chosen = [columns[axis] for axis in axes]
    if len(axes) == 1:
        axis = axes[0]
        index = chosen[0]
        if shape_of(self)[axis] < 0:  # the layer counts from the end only where it knows the extent
            index = wrap_negative(ctx, index, dimension(ctx, self, axis))
        return gather(ctx, self, index, axis)
    rank = rank_of(self)
    front = axes[0] if are_adjacent(axes) else 0
    others = [axis for axis in range(rank) if axis not in axes]
    order = [*others[:front], *axes, *others[front:]]
    moved = permute(ctx, self, order)
    extents = [dimension(ctx, moved, axis) for axis in range(rank)]
    last = front + len(axes)
    flat = reshape(ctx, moved, [*extents[:front], combine(ctx, "mul", [1, *extents[front:last]]), *extents[last:]])
    return gather(ctx, flat, flat_index(ctx, chosen, extents[front:last]), front)


@converter(aten.index_select.default, checks=types_that_pytorch_takes)
def aten_index_select(ctx: ConversionContext, self: Operand, dim: int, index: Operand) -> Any:
    """index_select(Tensor self, int dim, Tensor index) -> Tensor"""
    if rank_of(self) == 0:
        return self
    index = reshape(ctx, index, (1,)) if rank_of(index) == 0 else index
    return gather(ctx, self, index, normalize_axis(dim, rank_of(self)))


@converter(aten.gather.default)
def aten_gather(ctx: ConversionContext, self: Operand, dim: int, index: Operand, sparse_grad: bool) -> Any:
    """gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor"""
    if rank_of(index) == 0 or rank_of(self) == 0:
        flat = [reshape(ctx, part, (1,)) if rank_of(part) == 0 else part for part in (self, index)]
        return reshape(ctx, gather_elements(ctx, flat[0], flat[1], 0), ctx.result_shape)
    axis = normalize_axis(dim, rank_of(self))
    own, wanted = ctx.symbolic_shape("self"), ctx.symbolic_shape("index")
    # on every other axis the index may be shorter than the value; the layer wants equal extents
    sizes = [None if i == axis or is_same_size(wanted[i], own[i]) else wanted[i] for i in range(len(own))]
    return gather_elements(ctx, slice_tensor(ctx, self, [0] * len(own), sizes), index, axis)


@converter(aten.take.default)
def aten_take(ctx: ConversionContext, self: Operand, index: Operand) -> Any:
    """take(Tensor self, Tensor index) -> Tensor"""
    flat = reshape(ctx, self, (-1,))
    if shape_of(flat)[0] < 0:
        index = wrap_negative(ctx, index, dimension(ctx, flat, 0))
    return gather(ctx, flat, index, 0)


def has_axes(call: Call) -> Verdict | None:
    """Refuses 0-d tensors, which have no coordinates."""
    if call.tensor("self").dim():
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_RANK, "a 0-d tensor has no coordinates")


@converter(aten.nonzero.default, aten.argwhere.default, checks=has_axes, data_dependent=True)
def aten_nonzero(ctx: ConversionContext, self: Operand) -> Any:
    """nonzero(Tensor self) -> Tensor"""
    return permute(ctx, nonzero_positions(ctx, self), (1, 0))


@converter(aten.nonzero_static.default, checks=has_axes)
def aten_nonzero_static(ctx: ConversionContext, self: Operand, size: int, fill_value: int) -> Any:
    """nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"""
    found = permute(ctx, nonzero_positions(ctx, self), (1, 0))
    filler = torch.full((size, rank_of(self)), fill_value)
    return slice_axis(ctx, concatenate(ctx, [found, filler], 0), 0, 0, size)


@converter(aten.masked_select.default, data_dependent=True)
def aten_masked_select(ctx: ConversionContext, self: Operand, mask: Operand) -> Any:
    """masked_select(Tensor self, Tensor mask) -> Tensor"""
    own, other = ctx.symbolic_shape("self"), ctx.symbolic_shape("mask")
    shape = torch.broadcast_shapes(own, other)
    value = reshape(ctx, expand(ctx, self, shape, own), (-1,))
    chosen = reshape(ctx, expand(ctx, mask, shape, other), (-1,))
    positions = squeeze(ctx, nonzero_positions(ctx, chosen), (0,))
    return gather(ctx, value, positions, 0)


@converter(
    aten.one_hot.default,
    checks=argument("num_classes", lambda count: count > 0, "the number of classes depends on data"),
)
def aten_one_hot(ctx: ConversionContext, self: Operand, num_classes: int) -> Any:
    """one_hot(Tensor self, int num_classes=-1) -> Tensor"""
    indices = ctx.tensor(cast(ctx, self, torch.int32))
    values, depth = ctx.tensor(torch.tensor([0, 1])), ctx.tensor(torch.tensor(num_classes))
    return ctx.output(ctx.network.add_one_hot(indices, values, depth, rank_of(self)))


refuse_each(
    Reason.DATA_DEPENDENT_SHAPE,
    "no layer finds distinct values; their number depends on data",
    *(aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default),
)


# Writing at indices: scatter, index_put, index_copy, index_fill, masked_scatter -------------------------------------


def _written(ctx: ConversionContext, self: Operand, dim: int, index: Operand, src: Operand) -> Any:
    """Scatters elements along an axis; 0-d tensors are treated as having one."""
    if rank_of(self) == 0:
        self, index, src = (reshape(ctx, part, (1,)) for part in (self, index, src))
        return reshape(ctx, scatter_elements(ctx, self, index, src, 0), ())
    if rank_of(index) == 0:
        index = reshape(ctx, index, (1,))
    if rank_of(src) == 0:
        src = reshape(ctx, src, (1,))
    axis = normalize_axis(dim, rank_of(self))
    return scatter_elements(ctx, self, _from_the_front(ctx, index, dimension(ctx, self, axis)), src, axis)


def source_part(ctx: ConversionContext, src: Operand) -> Any:
    """Cuts the source to the extents of the index."""
    own, wanted = ctx.symbolic_shape("src"), ctx.symbolic_shape("index")
    if not own or not wanted:
        return src
    sizes = [None if is_same_size(w, o) else w for w, o in zip(wanted, own, strict=True)]
    return slice_tensor(ctx, src, [0] * len(own), sizes)


convert_each(
    {
        aten.embedding.default: lambda ctx, weight, indices, **_: gather(ctx, weight, indices, 0),
        aten.scatter.src: lambda ctx, self, dim, index, src: _written(ctx, self, dim, index, source_part(ctx, src)),
        aten.scatter.value: lambda ctx, self, dim, index, value: _written(
            ctx, self, dim, index, expand(ctx, cast(ctx, value, dtype_of(self)), ctx.symbolic_shape("index"))
        ),
    }
)


def _refused_where(ctx: ConversionContext, outside: Any, extent: Any, index: Operand) -> Any:
    """Puts what is outside of an axis behind its end, which a scatter refuses, where it would read it from the end."""
    end = cast(ctx, torch.tensor(extent) if isinstance(extent, int) else extent, dtype_of(index))
    if rank_of(index) == 0 and rank_of(end):
        end = squeeze(ctx, end, (0,))
    return select(ctx, outside, end, index)


def _is_inside(index: Operand, extent: Any, first: int = 0) -> bool:
    """Whether all indices are known, and those of an axis."""
    known = isinstance(index, torch.Tensor) and isinstance(extent, int)
    return known and bool(((index >= first) & (index < extent)).all())


def _from_the_front(ctx: ConversionContext, index: Operand, extent: Any) -> Any:
    """Has a scatter refuse negative indices, of operators that do not count them from the end."""
    if _is_inside(index, extent):
        return index
    return _refused_where(ctx, binary(ctx, "LESS", index, torch.zeros((), dtype=dtype_of(index))), extent, index)


@converter(aten.index_copy.default, checks=types_that_pytorch_takes)
def aten_index_copy(ctx: ConversionContext, self: Operand, dim: int, index: Operand, source: Operand) -> Any:
    """index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    if rank_of(self) == 0:
        return reshape(ctx, source, ())
    axis = normalize_axis(dim, rank_of(self))
    index = reshape(ctx, index, (-1,)) if rank_of(index) == 0 else index
    source = unsqueeze(ctx, source, (0,)) if rank_of(source) == 0 else source
    order = [axis, *(i for i in range(rank_of(self)) if i != axis)]
    inverse = [order.index(i) for i in range(len(order))]
    rows = unsqueeze(ctx, _from_the_front(ctx, index, dimension(ctx, self, axis)), (1,))
    return permute(ctx, scatter_nd(ctx, permute(ctx, self, order), rows, permute(ctx, source, order)), inverse)


def _fill_rows(ctx: ConversionContext, self: Operand, dim: int, index: Operand, value: Operand) -> Any:
    rank = rank_of(self)
    value = cast(ctx, value, dtype_of(self))
    if rank == 0:
        return value
    axis = normalize_axis(dim, rank)
    extent = dimension(ctx, self, axis)
    index = wrap_negative(ctx, reshape(ctx, index, (-1,)), extent)
    matches = one_hot_matrix(ctx, index, extent)
    if isinstance(matches, torch.Tensor):
        hit: Any = matches.any(1)
    else:
        hit = cast(ctx, reduce(ctx, "MAX", cast(ctx, matches, torch.int32), (1,), False), torch.bool)
    return select(ctx, unsqueeze(ctx, hit, [i for i in range(rank) if i != axis]), value, self)


convert_each({(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor): _fill_rows}, checks=types_that_pytorch_takes)


def pick_in_order(ctx: ConversionContext, self: Operand, mask: Operand, source: Operand) -> Any:
    """Returns the value with its masked elements replaced by the source's, in row-major order.

    Element number k of the masked ones, which a running sum of the mask counts, comes from the source's element k.
    """
    shape = [dimension(ctx, self, axis) for axis in range(rank_of(self))]
    flat_mask = reshape(ctx, mask, (-1,))
    layer = ctx.network.add_cumulative(
        ctx.tensor(cast(ctx, flat_mask, torch.int64)),
        ctx.tensor(torch.tensor(0)),
        trt.CumulativeOperation.SUM,
        True,
        False,
    )
    number = ctx.output(layer, "rank")
    flat = reshape(ctx, source, (-1,))
    last = combine(ctx, "add", [dimension(ctx, flat, 0), -1])
    number = binary(ctx, "MIN", number, torch.tensor([last]) if isinstance(last, int) else last)
    chosen = reshape(ctx, gather(ctx, flat, number, 0), shape)
    return select(ctx, mask, chosen, self)


@converter(aten.masked_scatter.default)
def aten_masked_scatter(ctx: ConversionContext, self: Operand, mask: Operand, source: Operand) -> Any:
    """masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor"""
    shape = ctx.result_shape
    self = expand(ctx, self, shape, ctx.symbolic_shape("self"))
    return pick_in_order(ctx, self, expand(ctx, mask, shape, ctx.symbolic_shape("mask")), source)


def masks_alone(call: Call) -> Verdict | None:
    """Refuses masks beside other indices, and sums at masked positions, whose number depends on data."""
    indices = [index for index in call["indices"] if index is not None]
    if any(index.dtype is torch.uint8 for index in indices):
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, "uint8 masks are not converted; use bool")
    masks = [index for index in indices if index.dtype is torch.bool]
    if not masks:
        return None
    if len(indices) > 1:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "a mask beside other indices")
    rest = call.tensor("self").dim() - masks[0].dim() - sum(index is None for index in call["indices"])
    values = call.tensor("values")
    single = all(isinstance(extent, int) and extent == 1 for extent in values.shape)
    if not single and (rest > 0 or call["indices"][0] is None):
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "a mask of leading axes with a value for each row")
    return None


def values_that_fit_places(call: Call) -> Verdict | None:
    """Refuses indices and values that PyTorch refuses when it runs and not when it captures: their types and shapes."""
    own, indices, values = call.tensor("self").shape, call["indices"], call.tensor("values").shape
    axes = indexed_axes(indices)
    if any(indices[axis].dtype.is_floating_point for axis in axes):
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, "indices are floats, which PyTorch refuses")
    if any(indices[axis].dtype is torch.bool for axis in axes):
        return None  # how many places there are depends on data
    refused = _own_type(call, "values")
    if refused is not None:
        return refused
    places = torch.broadcast_shapes(*(indices[axis].shape for axis in axes))
    others = [extent for axis, extent in enumerate(own) if axis not in axes]
    front = axes[0] if are_adjacent(axes) else 0
    wanted = [*others[:front], *places, *others[front:]]
    pairs = zip(reversed(values), [*reversed(wanted), *[1] * len(values)])  # noqa: B905 - values may have fewer axes
    if all(type(have) is not int or type(want) is not int or have in (1, want) for have, want in pairs):
        return None
    why = f"values of shape {tuple(values)} do not fit places of shape {tuple(wanted)}, which PyTorch refuses"
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, why)


@converter(aten.index_put.default, aten._unsafe_index_put.default, checks=(masks_alone, values_that_fit_places))
def aten_index_put(
    ctx: ConversionContext, self: Operand, indices: Sequence[Operand | None], values: Operand, accumulate: bool
) -> Any:
    """index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor"""
    given = next(index for index in indices if index is not None)
    values = cast(ctx, values, dtype_of(self))
    if dtype_of(given) is torch.bool:
        return _put_mask(ctx, self, list(indices), values, accumulate)
    axes = indexed_axes(indices)
    columns = [indices[axis] for axis in axes]
    rank = rank_of(self)
    others = [axis for axis in range(rank) if axis not in axes]
    order = [*axes, *others]
    moved = permute(ctx, self, order)
    extents = [dimension(ctx, moved, axis) for axis in range(rank)]
    indexed, rest = extents[: len(axes)], extents[len(axes) :]
    total = combine(ctx, "mul", [1, *indexed])
    rows = reshape(ctx, moved, [total, *rest]) if len(axes) > 1 else moved
    index = flat_index(ctx, columns, indexed)
    front = axes[0] if are_adjacent(axes) else 0
    updates = _updates(ctx, values, index, [dimension(ctx, self, axis) for axis in others], front)
    flat = reshape(ctx, index, (-1,))
    if accumulate:
        count = combine(ctx, "mul", [1, *rest])
        table, added = reshape(ctx, rows, [total, count]), reshape(ctx, updates, [-1, count])
        result = reshape(ctx, accumulate_rows(ctx, table, flat, added), [total, *rest])
    else:
        flat = reshape(ctx, _inside_alone(ctx, index, columns, indexed), (-1,))
        result = scatter_nd(ctx, rows, unsqueeze(ctx, flat, (1,)), reshape(ctx, updates, [-1, *rest]))
    result = reshape(ctx, result, extents) if len(axes) > 1 else result
    return permute(ctx, result, [order.index(axis) for axis in range(rank)])


def _inside_alone(ctx: ConversionContext, index: Operand, columns: Sequence[Operand], extents: Sequence[Any]) -> Any:
    """Has a scatter refuse an index of flattened axes where one of theirs is outside, which may be another place."""
    total = combine(ctx, "mul", [1, *extents])
    for column, extent in zip(columns, extents, strict=True):
        if isinstance(extent, int) and _is_inside(column, extent, -extent):
            continue
        column = cast(ctx, column, torch.int64)
        low, high = (
            torch.tensor(bound) if isinstance(bound, int) else bound
            for bound in (combine(ctx, "mul", [-1, extent]), extent)
        )
        if rank_of(column) == 0:
            low, high = (squeeze(ctx, bound, (0,)) if rank_of(bound) else bound for bound in (low, high))
        outside = binary(ctx, "LESS", column, low)
        if len(columns) > 1:
            outside = binary(ctx, "OR", outside, logical_not(ctx, binary(ctx, "LESS", column, high)))
        index = _refused_where(ctx, outside, total, index)
    return index


def _updates(ctx: ConversionContext, values: Operand, index: Operand, rest: list[Any], front: int) -> Any:
    """Broadcasts values to what the index selects, with the index's axes first: (*index, *rest)."""
    inner = [dimension(ctx, index, axis) for axis in range(rank_of(index))]
    full = expand(ctx, values, [*rest[:front], *inner, *rest[front:]])
    count = len(inner)
    order = [
        *range(front, front + count),
        *range(front),
        *range(front + count, count + len(rest)),
    ]
    return permute(ctx, full, order)


def _put_mask(
    ctx: ConversionContext, self: Operand, indices: list[Operand | None], values: Operand, accumulate: bool
) -> Any:
    position = next(i for i, index in enumerate(indices) if index is not None)
    mask = indices[position]
    trailing = rank_of(self) - position - rank_of(mask)
    mask = unsqueeze(ctx, mask, [*range(rank_of(mask), rank_of(mask) + trailing)])
    if all(extent == 1 for extent in shape_of(values)):
        value = reshape(ctx, values, ())
        replaced = binary(ctx, "SUM", self, value) if accumulate else value
        return select(ctx, mask, replaced, self)
    if accumulate:
        zeros = expand(ctx, torch.zeros((1,) * rank_of(self), dtype=dtype_of(self)), ctx.result_shape)
        return binary(ctx, "SUM", self, pick_in_order(ctx, zeros, mask, values))
    return pick_in_order(ctx, self, mask, values)


@converter(aten.put.default)
def aten_put(ctx: ConversionContext, self: Operand, index: Operand, source: Operand, accumulate: bool) -> Any:
    """put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor"""
    flat = reshape(ctx, self, (-1,))
    where = wrap_negative(ctx, reshape(ctx, index, (-1,)), dimension(ctx, flat, 0))
    added = reshape(ctx, source, (-1,))
    if accumulate:
        rows, columns = unsqueeze(ctx, flat, (1,)), unsqueeze(ctx, added, (1,))
        result = accumulate_rows(ctx, rows, where, columns)
    else:
        result = scatter_nd(ctx, flat, unsqueeze(ctx, where, (1,)), added)
    return reshape(ctx, result, ctx.symbolic_shape("self"))
