"""Reading at indices (index, gather, take, embedding), and writing there without reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.aten.segments import accumulate_rows
from trt_converters.call import Call
from trt_converters.checks import argument, never
from trt_converters.context import (
    ConversionContext,
    Operand,
    dtype_of,
    normalize_axis,
    rank_of,
    shape_of,
)
from trt_converters.layers import (
    binary,
    cast,
    combine,
    concatenate,
    dimension,
    expand,
    gather,
    gather_elements,
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
from trt_converters.layers.movement import is_same_size
from trt_converters.registry import converter
from trt_core import Reason, Verdict, trt

aten = torch.ops.aten

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


@converter(aten.index_select.default)
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


@converter(aten.embedding.default)
def aten_embedding(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Any:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""  # noqa: E501
    return gather(ctx, weight, indices, 0)


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


_UNIQUE = never(Reason.DATA_DEPENDENT_SHAPE, "no layer finds distinct values; their number depends on data")


@converter(aten._unique2.default, checks=_UNIQUE)
def aten__unique2(
    ctx: ConversionContext, self: Operand, sorted: bool, return_inverse: bool, return_counts: bool
) -> Any:
    """_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    raise ctx.fail("no layer finds distinct values")


@converter(aten.unique_dim.default, checks=_UNIQUE)
def aten_unique_dim(
    ctx: ConversionContext, self: Operand, dim: int, sorted: bool, return_inverse: bool, return_counts: bool
) -> Any:
    """unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    raise ctx.fail("no layer finds distinct values")


@converter(aten.unique_consecutive.default, checks=_UNIQUE)
def aten_unique_consecutive(
    ctx: ConversionContext, self: Operand, return_inverse: bool, return_counts: bool, dim: int | None
) -> Any:
    """unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    raise ctx.fail("no layer finds distinct values")


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
    return scatter_elements(ctx, self, index, src, normalize_axis(dim, rank_of(self)))


def source_part(ctx: ConversionContext, src: Operand) -> Any:
    """Cuts the source to the extents of the index."""
    own, wanted = ctx.symbolic_shape("src"), ctx.symbolic_shape("index")
    if not own or not wanted:
        return src
    sizes = [None if is_same_size(w, o) else w for w, o in zip(wanted, own, strict=True)]
    return slice_tensor(ctx, src, [0] * len(own), sizes)


def _filled(ctx: ConversionContext, value: Any, shape: Sequence[Any], dtype: torch.dtype) -> Any:
    return expand(ctx, cast(ctx, value, dtype), shape)


@converter(aten.scatter.src)
def aten_scatter_src(ctx: ConversionContext, self: Operand, dim: int, index: Operand, src: Operand) -> Any:
    """scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor"""
    return _written(ctx, self, dim, index, source_part(ctx, src))


@converter(aten.scatter.value)
def aten_scatter_value(ctx: ConversionContext, self: Operand, dim: int, index: Operand, value: float) -> Any:
    """scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"""
    return _written(ctx, self, dim, index, _filled(ctx, value, ctx.symbolic_shape("index"), dtype_of(self)))


@converter(aten.index_copy.default)
def aten_index_copy(ctx: ConversionContext, self: Operand, dim: int, index: Operand, source: Operand) -> Any:
    """index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor"""
    if rank_of(self) == 0:
        return reshape(ctx, source, ())
    axis = normalize_axis(dim, rank_of(self))
    index = reshape(ctx, index, (-1,)) if rank_of(index) == 0 else index
    source = unsqueeze(ctx, source, (0,)) if rank_of(source) == 0 else source
    order = [axis, *(i for i in range(rank_of(self)) if i != axis)]
    inverse = [order.index(i) for i in range(len(order))]
    rows = unsqueeze(ctx, wrap_negative(ctx, index, dimension(ctx, self, axis)), (1,))
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


@converter(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def aten_index_fill(ctx: ConversionContext, self: Operand, dim: int, index: Operand, value: Operand) -> Any:
    """index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor"""
    return _fill_rows(ctx, self, dim, index, value)


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


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype is torch.bool


def masks_alone(call: Call) -> Verdict | None:
    """Refuses masks beside other indices, and sums at masked positions, whose number depends on data."""
    indices = [index for index in call["indices"] if index is not None]
    if any(index.dtype is torch.uint8 for index in indices):
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, "uint8 masks are not converted; use bool")
    masks = [index for index in indices if _is_mask(index)]
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


@converter(aten.index_put.default, aten._unsafe_index_put.default, checks=masks_alone)
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
        result = scatter_nd(ctx, rows, unsqueeze(ctx, flat, (1,)), reshape(ctx, updates, [-1, *rest]))
    result = reshape(ctx, result, extents) if len(axes) > 1 else result
    return permute(ctx, result, [order.index(axis) for axis in range(rank)])


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
