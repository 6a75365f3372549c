"""Reading at indices: index, index_select, gather, take, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

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
    reshape,
    slice_axis,
    slice_tensor,
    squeeze,
    wrap_negative,
)
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
