"""Shapes and axes: reshape, permute, squeeze, expand, cat, repeat, and what is made of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import constant
from trt_converters.context import ConversionContext, Operand, Size, normalize_axis, rank_of
from trt_converters.layers import (
    cast,
    combine,
    concatenate,
    dimension,
    expand,
    gather,
    permute,
    reshape,
    slice_tensor,
    squeeze,
    unsqueeze,
    with_rank,
)
from trt_converters.registry import converter
from trt_core import Reason, Verdict

aten = torch.ops.aten


@converter(aten.view.default, aten.view_copy.default, aten._unsafe_view.default, aten._reshape_copy.default)
def aten_view(ctx: ConversionContext, self: Operand, size: Sequence[Size]) -> Any:
    """view(Tensor self, SymInt[] size) -> Tensor"""
    return reshape(ctx, self, ctx.result_shape)


@converter(aten.reshape.default)
def aten_reshape(ctx: ConversionContext, self: Operand, shape: Sequence[Size]) -> Any:
    """reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)"""
    return reshape(ctx, self, ctx.result_shape)


@converter(aten._reshape_alias.default)
def aten__reshape_alias(ctx: ConversionContext, self: Operand, size: Sequence[Size], stride: Sequence[Size]) -> Any:
    """_reshape_alias(Tensor(a) self, SymInt[] size, SymInt[] stride) -> Tensor(a)"""
    return reshape(ctx, self, ctx.result_shape)


@converter(aten.flatten.using_ints)
def aten_flatten(ctx: ConversionContext, self: Operand, start_dim: int, end_dim: int) -> Any:
    """flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)"""
    return reshape(ctx, self, ctx.result_shape)


@converter(aten.unflatten.int)
def aten_unflatten(ctx: ConversionContext, self: Operand, dim: int, sizes: Sequence[Size]) -> Any:
    """unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)"""
    return reshape(ctx, self, ctx.result_shape)


@converter(aten.ravel.default)
def aten_ravel(ctx: ConversionContext, self: Operand) -> Any:
    """ravel(Tensor(a) self) -> Tensor(a)"""
    return reshape(ctx, self, ctx.result_shape)


@converter(aten.view_as.default, aten.reshape_as.default)
def aten_view_as(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """view_as(Tensor(a) self, Tensor other) -> Tensor(a)"""
    return reshape(ctx, self, ctx.result_shape)


def same_type(call: Call) -> Verdict | None:
    """Refuses to read memory as another type."""
    if call["dtype"] is call.tensor("self").dtype:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "no layer reads the bits of a tensor as another type")


@converter(aten.view.dtype, aten.view_copy.dtype, checks=same_type)
def aten_view_dtype(ctx: ConversionContext, self: Operand, dtype: torch.dtype) -> Any:
    """view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)"""
    return self


@converter(aten.permute.default, aten.permute_copy.default)
def aten_permute(ctx: ConversionContext, self: Operand, dims: Sequence[int]) -> Any:
    """permute(Tensor(a) self, int[] dims) -> Tensor(a)"""
    return permute(ctx, self, [normalize_axis(dim, len(dims)) for dim in dims])


def swapped(ctx: ConversionContext, value: Operand, first: int, second: int) -> Any:
    """Exchanges two axes, which may count from the end."""
    rank = rank_of(value)
    order = list(range(rank))
    if rank:
        first, second = first % rank, second % rank
        order[first], order[second] = second, first
    return permute(ctx, value, order)


@converter(aten.transpose.int, aten.transpose_copy.int)
def aten_transpose(ctx: ConversionContext, self: Operand, dim0: int, dim1: int) -> Any:
    """transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"""
    return swapped(ctx, self, dim0, dim1)


@converter(aten.swapdims.default)
def aten_swapdims(ctx: ConversionContext, self: Operand, dim0: int, dim1: int) -> Any:
    """swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"""
    return swapped(ctx, self, dim0, dim1)


@converter(aten.swapaxes.default)
def aten_swapaxes(ctx: ConversionContext, self: Operand, axis0: int, axis1: int) -> Any:
    """swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)"""
    return swapped(ctx, self, axis0, axis1)


@converter(aten.t.default, aten.t_copy.default)
def aten_t(ctx: ConversionContext, self: Operand) -> Any:
    """t(Tensor(a) self) -> Tensor(a)"""
    return swapped(ctx, self, 0, -1)


@converter(aten.mT.default, aten.mH.default, aten.adjoint.default)
def aten_mT(ctx: ConversionContext, self: Operand) -> Any:
    """mT(Tensor(a) self) -> Tensor(a)"""
    return swapped(ctx, self, -2, -1)


@converter(aten.numpy_T.default)
def aten_numpy_T(ctx: ConversionContext, self: Operand) -> Any:
    """numpy_T(Tensor(a) self) -> Tensor(a)"""
    return permute(ctx, self, list(reversed(range(rank_of(self)))))


@converter(aten.movedim.int, aten.movedim.intlist, aten.moveaxis.int, aten.moveaxis.intlist)
def aten_movedim(
    ctx: ConversionContext, self: Operand, source: Sequence[int] | int, destination: Sequence[int] | int
) -> Any:
    """movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)"""
    rank = rank_of(self)
    sources = [normalize_axis(axis, rank) for axis in ([source] if isinstance(source, int) else source)]
    targets = [normalize_axis(axis, rank) for axis in ([destination] if isinstance(destination, int) else destination)]
    moved = dict(zip(targets, sources, strict=True))
    others = iter(axis for axis in range(rank) if axis not in sources)
    return permute(ctx, self, [moved[axis] if axis in moved else next(others) for axis in range(rank)])


def _ones(ctx: ConversionContext, axes: Sequence[int]) -> list[int]:
    """The axes that the graph knows to have extent 1."""
    shape = ctx.symbolic_shape("self")
    chosen = {normalize_axis(axis, len(shape)) for axis in axes} if shape else set()
    return [axis for axis in sorted(chosen) if isinstance(shape[axis], int) and shape[axis] == 1]


@converter(aten.squeeze.default, aten.squeeze_copy.default)
def aten_squeeze(ctx: ConversionContext, self: Operand) -> Any:
    """squeeze(Tensor(a) self) -> Tensor(a)"""
    return squeeze(ctx, self, _ones(ctx, range(rank_of(self))))


@converter(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_copy.dim, aten.squeeze_copy.dims)
def aten_squeeze_dims(ctx: ConversionContext, self: Operand, dim: Sequence[int] | int) -> Any:
    """squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)"""
    return squeeze(ctx, self, _ones(ctx, [dim] if isinstance(dim, int) else dim))


@converter(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def aten_unsqueeze(ctx: ConversionContext, self: Operand, dim: int) -> Any:
    """unsqueeze(Tensor(a) self, int dim) -> Tensor(a)"""
    return unsqueeze(ctx, self, (dim % (rank_of(self) + 1),))


@converter(aten.expand.default, aten.expand_copy.default)
def aten_expand(ctx: ConversionContext, self: Operand, size: Sequence[Size], implicit: bool) -> Any:
    """expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)"""
    return expand(ctx, self, ctx.result_shape, ctx.symbolic_shape("self"))


@converter(aten.broadcast_to.default)
def aten_broadcast_to(ctx: ConversionContext, self: Operand, size: Sequence[Size]) -> Any:
    """broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)"""
    return expand(ctx, self, ctx.result_shape, ctx.symbolic_shape("self"))


@converter(aten.expand_as.default)
def aten_expand_as(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """expand_as(Tensor(a) self, Tensor other) -> Tensor(a)"""
    return expand(ctx, self, ctx.result_shape, ctx.symbolic_shape("self"))


@converter(aten.pixel_shuffle.default)
def aten_pixel_shuffle(ctx: ConversionContext, self: Operand, upscale_factor: int) -> Any:
    """pixel_shuffle(Tensor self, int upscale_factor) -> Tensor"""
    *lead, channels, height, width = ctx.symbolic_shape("self")
    factor, first = upscale_factor, len(lead)
    split = reshape(ctx, self, [*lead, channels // factor**2, factor, factor, height, width])
    order = [*range(first), first, first + 3, first + 1, first + 4, first + 2]
    return reshape(ctx, permute(ctx, split, order), ctx.result_shape)


@converter(aten.pixel_unshuffle.default)
def aten_pixel_unshuffle(ctx: ConversionContext, self: Operand, downscale_factor: int) -> Any:
    """pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor"""
    *lead, channels, height, width = ctx.symbolic_shape("self")
    factor, first = downscale_factor, len(lead)
    split = reshape(ctx, self, [*lead, channels, height // factor, factor, width // factor, factor])
    order = [*range(first), first, first + 2, first + 4, first + 1, first + 3]
    return reshape(ctx, permute(ctx, split, order), ctx.result_shape)


@converter(aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def aten_channel_shuffle(ctx: ConversionContext, self: Operand, groups: int) -> Any:
    """channel_shuffle(Tensor self, SymInt groups) -> Tensor"""
    batch, channels, *rest = ctx.symbolic_shape("self")
    split = reshape(ctx, self, [batch, groups, channels // groups, *rest])
    return reshape(ctx, permute(ctx, split, [0, 2, 1, *range(3, 3 + len(rest))]), ctx.result_shape)


def exact_layout(call: Call) -> Verdict | None:
    """Refuses to read memory that is not, element by element, that of the argument."""
    source = call.tensor("self")
    numbers = [*source.shape, *source.stride(), *call["size"], *call["stride"]]
    if not all(isinstance(number, int) for number in numbers):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"as_strided of shape {tuple(source.shape)}")
    indices = _memory_indices(call)
    if int(indices.min()) < 0 or int(indices.max()) >= source.numel():
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "it reads memory outside of its argument")
    if not _is_dense(source):
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"its argument has strides {source.stride()}")
    return None


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for axis in _memory_order(tensor):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != expected:
            return False
        expected *= tensor.shape[axis]
    return True


def _memory_order(tensor: torch.Tensor) -> list[int]:
    """Axes from the innermost in memory to the outermost."""
    return sorted(range(tensor.dim()), key=lambda axis: (tensor.stride(axis), -axis))


def _memory_indices(call: Call) -> torch.Tensor:
    """Offsets in the argument's memory of every element of the result."""
    source = call.tensor("self")
    offset = call["storage_offset"]
    start = 0 if offset is None else int(offset) - int(source.storage_offset())
    indices = torch.full((1,) * len(call["size"]), start)
    for axis, (size, stride) in enumerate(zip(call["size"], call["stride"], strict=True)):
        shape = [-1 if i == axis else 1 for i in range(len(call["size"]))]
        indices = indices + (torch.arange(size) * stride).reshape(shape)
    return indices


@converter(aten.as_strided.default, aten.as_strided_copy.default, checks=exact_layout)
def aten_as_strided(
    ctx: ConversionContext, self: Operand, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> Any:
    """as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)"""
    assert ctx.call is not None
    in_memory = permute(ctx, self, list(reversed(_memory_order(ctx.call.tensor("self")))))
    return gather(ctx, reshape(ctx, in_memory, (-1,)), _memory_indices(ctx.call), 0)


@converter(torch.ops.prims.broadcast_in_dim.default)
def prims_broadcast_in_dim(
    ctx: ConversionContext, a: Operand, shape: Sequence[Size], broadcast_dimensions: Sequence[int]
) -> Any:
    """broadcast_in_dim(Tensor(a) a, SymInt[] shape, int[] broadcast_dimensions) -> Tensor(a)"""
    own: list[Any] = [1] * len(shape)
    for axis, extent in zip(broadcast_dimensions, ctx.symbolic_shape("a"), strict=True):
        own[axis] = extent
    return expand(ctx, reshape(ctx, a, own), ctx.result_shape, own)


# Joining and repeating ----------------------------------------------------------------------------------------------


@converter(aten.cat.default, aten.concat.default, aten.concatenate.default)
def aten_cat(ctx: ConversionContext, tensors: Sequence[Operand], dim: int) -> Any:
    """cat(Tensor[] tensors, int dim=0) -> Tensor"""
    parts = [cast(ctx, part, ctx.result_dtype) for part in tensors]
    return concatenate(ctx, parts, normalize_axis(dim, rank_of(parts[0])))


@converter(aten.stack.default, aten._stack.default)
def aten_stack(ctx: ConversionContext, tensors: Sequence[Operand], dim: int) -> Any:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    axis = dim % (rank_of(tensors[0]) + 1)
    parts = [unsqueeze(ctx, cast(ctx, part, ctx.result_dtype), (axis,)) for part in tensors]
    return concatenate(ctx, parts, axis)


def repeated(ctx: ConversionContext, value: Operand, repeats: Sequence[Size]) -> Any:
    """Repeats a value along its axes: one slice whose indices wrap around.

    Args:
        ctx: The context.
        value: A tensor of at most as many axes as there are repeats.
        repeats: How often, per axis of the result.
    """
    value = with_rank(ctx, value, len(repeats))
    sizes = [
        None if isinstance(count, int) and count == 1 else size
        for count, size in zip(repeats, ctx.result_shape, strict=True)
    ]
    return slice_tensor(ctx, value, [0] * len(sizes), sizes, None, "WRAP")


@converter(aten.repeat.default)
def aten_repeat(ctx: ConversionContext, self: Operand, repeats: Sequence[Size]) -> Any:
    """repeat(Tensor self, SymInt[] repeats) -> Tensor"""
    return repeated(ctx, self, repeats)


@converter(aten.tile.default)
def aten_tile(ctx: ConversionContext, self: Operand, dims: Sequence[Size]) -> Any:
    """tile(Tensor self, SymInt[] dims) -> Tensor"""
    return repeated(ctx, self, [1] * (rank_of(self) - len(dims)) + list(dims))


@converter(aten.repeat_interleave.self_int)
def aten_repeat_interleave_int(
    ctx: ConversionContext, self: Operand, repeats: Size, dim: int | None, output_size: Size | None
) -> Any:
    """repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""
    shape: list[Any] = list(ctx.symbolic_shape("self"))
    if dim is None or not shape:
        total: Any = 1
        for extent in shape:
            total = total * extent
        self, shape, dim = reshape(ctx, self, (total,)), [total], 0
    axis = normalize_axis(dim, len(shape))
    lifted = unsqueeze(ctx, self, (axis + 1,))
    sizes = [*shape[: axis + 1], repeats, *shape[axis + 1 :]]
    wide = expand(ctx, lifted, sizes, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    return reshape(ctx, wide, ctx.result_shape)


@converter(aten.repeat_interleave.self_Tensor, checks=constant("repeats"))
def aten_repeat_interleave_tensor(
    ctx: ConversionContext, self: Operand, repeats: torch.Tensor, dim: int | None, output_size: Size | None
) -> Any:
    """repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""  # noqa: E501
    if dim is None:
        self, dim = reshape(ctx, self, (-1,)), 0
    axis = normalize_axis(dim, rank_of(self))
    extent = ctx.symbolic_shape("self")[axis] if rank_of(self) == len(ctx.symbolic_shape("self")) else None
    if repeats.numel() == 1 and isinstance(extent, int):
        repeats = repeats.reshape(-1).expand(extent)
    return gather(ctx, self, torch.repeat_interleave(repeats), axis)


@converter(aten.roll.default)
def aten_roll(ctx: ConversionContext, self: Operand, shifts: Sequence[Size], dims: Sequence[int]) -> Any:
    """roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor"""
    rank, shape = rank_of(self), ctx.symbolic_shape("self")
    if rank == 0:
        return self
    if not dims:
        return reshape(ctx, _rolled(ctx, reshape(ctx, self, (-1,)), {0: shifts[0]}, None), shape)
    total: dict[int, Any] = {}
    for axis, shift in zip(dims, shifts, strict=True):
        axis = normalize_axis(axis, rank)
        total[axis] = total.get(axis, 0) + shift
    return _rolled(ctx, self, total, shape)


def _rolled(ctx: ConversionContext, value: Any, shifts: dict[int, Any], shape: Sequence[Any] | None) -> Any:
    rank = rank_of(value)
    extents = [dimension(ctx, value, axis) if shape is None else shape[axis] for axis in range(rank)]
    # element i comes from i - shift: start that many elements before the end and wrap around
    starts = [
        combine(ctx, "mod", [combine(ctx, "mul", [shifts[axis], -1]), extents[axis]]) if axis in shifts else 0
        for axis in range(rank)
    ]
    sizes = [extents[axis] if axis in shifts else None for axis in range(rank)]
    return slice_tensor(ctx, value, starts, sizes, None, "WRAP")
