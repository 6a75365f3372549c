"""Writing at indices: scatter, index_put, index_copy, index_fill, masked_scatter, without reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.aten.indexing import are_adjacent, flat_index, indexed_axes
from trt_converters.aten.segments import accumulate_rows
from trt_converters.call import Call
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
    dimension,
    expand,
    gather,
    permute,
    reduce,
    reshape,
    scatter_elements,
    scatter_nd,
    select,
    slice_tensor,
    unsqueeze,
    wrap_negative,
)
from trt_converters.layers.gathering import one_hot_matrix
from trt_converters.layers.movement import is_same_size
from trt_converters.registry import converter
from trt_core import Reason, Verdict, trt

aten = torch.ops.aten


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
