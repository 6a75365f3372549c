"""Shapes and axes (reshape, permute, expand, cat, repeat), parts of tensors, writing such parts back, and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_converters.call import Call
from trt_converters.checks import constant, refuses
from trt_converters.context import ConversionContext, Operand, Size, dtype_of, normalize_axis, rank_of
from trt_converters.converter import Check
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
    pad_by_sampling,
    permute,
    reduce,
    reshape,
    select,
    slice_axis,
    slice_tensor,
    squeeze,
    take_windows,
    unsqueeze,
    with_rank,
)
from trt_converters.layers.movement import sampling_takes
from trt_converters.registry import convert_each, converter
from trt_core import Reason, Verdict
from trt_core.sizes.expressions import is_same_size

aten = torch.ops.aten


def same_type(call: Call) -> Verdict | None:
    """Refuses to read memory as another type."""
    if call["dtype"] is call.tensor("self").dtype:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "no layer reads the bits of a tensor as another type")


convert_each({(aten.view.dtype, aten.view_copy.dtype): lambda ctx, self, dtype: self}, checks=same_type)


def swapped(ctx: ConversionContext, value: Operand, first: int, second: int) -> Any:
    """Exchanges two axes, which may count from the end."""
    rank = rank_of(value)
    order = list(range(rank))
    if rank:
        first, second = first % rank, second % rank
        order[first], order[second] = second, first
    return permute(ctx, value, order)


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


convert_each(
    {
        (aten.permute.default, aten.permute_copy.default): lambda ctx, self, dims: permute(
            ctx, self, [normalize_axis(dim, len(dims)) for dim in dims]
        ),
        (
            *(aten.view.default, aten.view_copy.default, aten._unsafe_view.default, aten._reshape_copy.default),
            *(aten.reshape.default, aten._reshape_alias.default, aten.view_as.default, aten.reshape_as.default),
            *(aten.flatten.using_ints, aten.unflatten.int, aten.ravel.default),
        ): lambda ctx, self, **_: reshape(ctx, self, ctx.result_shape),
        (aten.transpose.int, aten.transpose_copy.int, aten.swapdims.default): lambda ctx, self, dim0, dim1: swapped(
            ctx, self, dim0, dim1
        ),
        aten.swapaxes.default: lambda ctx, self, axis0, axis1: swapped(ctx, self, axis0, axis1),
        (aten.t.default, aten.t_copy.default): lambda ctx, self: swapped(ctx, self, 0, -1),
        (aten.mT.default, aten.mH.default, aten.adjoint.default): lambda ctx, self: swapped(ctx, self, -2, -1),
        aten.numpy_T.default: lambda ctx, self: permute(ctx, self, list(reversed(range(rank_of(self))))),
        (aten.squeeze.default, aten.squeeze_copy.default): lambda ctx, self: squeeze(
            ctx, self, _ones(ctx, range(rank_of(self)))
        ),
        (aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_copy.dim, aten.squeeze_copy.dims): lambda ctx, self, dim: (
            squeeze(ctx, self, _ones(ctx, [dim] if isinstance(dim, int) else dim))
        ),
        (aten.unsqueeze.default, aten.unsqueeze_copy.default): lambda ctx, self, dim: unsqueeze(
            ctx, self, (dim % (rank_of(self) + 1),)
        ),
        (
            *(aten.expand.default, aten.expand_copy.default, aten.broadcast_to.default, aten.expand_as.default),
        ): lambda ctx, self, **_: expand(ctx, self, ctx.result_shape, ctx.symbolic_shape("self")),
    }
)


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


@converter(aten.repeat_interleave.self_int)
def aten_repeat_interleave_int(
    ctx: ConversionContext, self: Operand, repeats: Size, dim: int | None, output_size: Size | None
) -> Any:
    """repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"""
    shape: list[Any] = list(ctx.symbolic_shape("self"))
    if dim is None or not shape:
        total: Any = math.prod(shape)
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


def from_front(ctx: ConversionContext, index: Size, extent: Size, clamp: bool = False) -> Any:
    """Returns an index that may count from the end as one that counts from the front.

    Args:
        ctx: The context.
        index: In [-extent, extent), or anything when it is clamped.
        extent: Of the axis.
        clamp: Whether to move it into [0, extent], as the ends of slices are.
    """
    if isinstance(index, int) and isinstance(extent, int):
        moved = index + extent if index < 0 else index
        return min(max(moved, 0), extent) if clamp else moved
    high, smallest = ctx.ranges.bounds(index)[2], ctx.ranges.bounds(extent)[0]
    if (isinstance(index, int) and index < 0) or (not isinstance(index, int) and _is_negative(index)):
        moved = combine(ctx, "add", [extent, index])
        return combine(ctx, "max", [moved, 0]) if clamp and not _reaches(index, smallest) else moved
    if clamp and high > smallest:
        return combine(ctx, "min", [index, extent])
    return index


def _is_negative(index: Any) -> bool:
    from trt_core.internals import statically_known_true

    return bool(statically_known_true(index < 0))


def _reaches(index: Size, smallest: int) -> bool:
    return isinstance(index, int) and -index <= smallest


def known_sign(call: Call) -> Verdict | None:
    """Refuses symbolic indices that may be negative or not."""
    from trt_core.internals import statically_known_true

    for name in ("start", "end", "index"):
        index = call.arguments.get(name)
        if isinstance(index, torch.SymInt) and not (
            statically_known_true(index >= 0) or statically_known_true(index < 0)
        ):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{name}={index} may count from either end")
    return None


def _slice(ctx: ConversionContext, self: Operand, dim: int, start: Size | None, step: Size) -> Any:
    axis = normalize_axis(dim, rank_of(self))
    extent = ctx.symbolic_shape("self")[axis]
    first = from_front(ctx, 0 if start is None else start, extent, clamp=True)
    return slice_axis(ctx, self, axis, first, _taken(ctx, axis, extent, first, step), step)


def _taken(ctx: ConversionContext, axis: int, extent: Size, first: Any, step: Size) -> Size | None:
    size = ctx.result_shape[axis]
    whole = isinstance(first, int) and first == 0 and isinstance(step, int) and step == 1
    return None if whole and is_same_size(size, extent) else size


convert_each(
    {
        (aten.slice.Tensor, aten.slice_copy.Tensor): lambda ctx, self, dim, start, end, step: _slice(
            ctx, self, dim, start, step
        ),
        (aten.narrow.default, aten.narrow_copy.default): lambda ctx, self, dim, start, length: _slice(
            ctx, self, dim, start, 1
        ),
    },
    checks=known_sign,
)


@converter(aten.select.int, aten.select_copy.int, checks=known_sign)
def aten_select(ctx: ConversionContext, self: Operand, dim: int, index: Size) -> Any:
    """select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)"""
    axis = normalize_axis(dim, rank_of(self))
    first = from_front(ctx, index, ctx.symbolic_shape("self")[axis])
    return squeeze(ctx, slice_axis(ctx, self, axis, first, 1), (axis,))


def pieces(ctx: ConversionContext, self: Operand, dim: int) -> list[Any]:
    """Cuts an axis into the pieces that the graph's metadata lists, one after the other."""
    axis = normalize_axis(dim, rank_of(self))
    found, start = [], 0
    for index, part in enumerate(ctx.result):
        size = part.shape[axis]
        used = ctx.call is None or ctx.call.uses(index)
        found.append(slice_axis(ctx, self, axis, start, size) if used else None)
        start = start + size
    return found


convert_each(
    {
        aten.tile.default: lambda ctx, self, dims: repeated(ctx, self, [1] * (rank_of(self) - len(dims)) + list(dims)),
        aten.repeat.default: lambda ctx, self, repeats: repeated(ctx, self, repeats),
        (
            *(aten.split.Tensor, aten.unsafe_split.Tensor, aten.split_copy.Tensor, aten.split.sizes),
            *(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default, aten.split_with_sizes_copy.default),
            *(aten.chunk.default, aten.unsafe_chunk.default, aten.tensor_split.sections),
        ): lambda ctx, self, dim, **_: pieces(ctx, self, dim),
    }
)


def ascending(call: Call) -> Verdict | None:
    """Refuses cuts whose pieces overlap: indices that go backwards."""
    indices = call["indices"]
    if all(isinstance(index, int) and index >= 0 for index in indices) and list(indices) == sorted(indices):
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"indices={indices} are not ascending numbers")


convert_each(
    {aten.tensor_split.indices: lambda ctx, self, indices, dim: pieces(ctx, self, dim)},
    checks=ascending,
)


@converter(aten.unbind.int, aten.unbind_copy.int)
def aten_unbind(ctx: ConversionContext, self: Operand, dim: int) -> list[Any]:
    """unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]"""
    axis = normalize_axis(dim, rank_of(self))
    return [
        squeeze(ctx, slice_axis(ctx, self, axis, index, 1), (axis,))
        if ctx.call is None or ctx.call.uses(index)
        else None
        for index in range(len(ctx.result))
    ]


def written(
    ctx: ConversionContext, self: Operand, src: Operand, axis: int, start: Any, extent: Size, size: Size, step: Size
) -> Any:
    """Returns the value with `src` at `start + i * step` of an axis, i below `size`.

    With step 1 it is joined from the parts before, in and behind; otherwise each element picks its source.
    """
    if isinstance(step, int) and step == 1:
        end = combine(ctx, "add", [start, size])
        rest = combine(ctx, "add", [extent, combine(ctx, "mul", [end, -1])])
        parts = []
        if not (isinstance(start, int) and start == 0):
            parts.append(slice_axis(ctx, self, axis, 0, start))
        parts.append(src)
        if not (isinstance(rest, int) and rest == 0):
            parts.append(slice_axis(ctx, self, axis, end, rest))
        return concatenate(ctx, parts, axis)
    known = [ctx.size(item) for item in (start, extent, size, step)]
    if all(isinstance(item, int) for item in known):
        start, extent, size, step = known
        source = torch.arange(extent)
        source[start : start + size * step : step] = extent + torch.arange(size)
        return gather(ctx, concatenate(ctx, [self, src], axis), source, axis)
    offset = binary(ctx, "SUB", index_range(ctx, extent), _vector(known[0]), "offset")
    number = binary(ctx, "FLOOR_DIV", offset, _vector(known[3]))
    exact = binary(ctx, "EQUAL", binary(ctx, "PROD", number, _vector(known[3])), offset)
    last = _vector(combine(ctx, "add", [size, -1]))
    inside = binary(ctx, "EQUAL", binary(ctx, "MIN", binary(ctx, "MAX", number, _vector(0)), last), number)
    picked = gather(ctx, src, binary(ctx, "MIN", binary(ctx, "MAX", number, _vector(0)), last), axis)
    mask = binary(ctx, "AND", exact, inside)
    rank = rank_of(self)
    return select(ctx, unsqueeze(ctx, mask, [i for i in range(rank) if i != axis]), picked, self)


def _vector(value: Any) -> Any:
    return torch.tensor([value]) if isinstance(value, int) else value


@converter(aten.slice_scatter.default, checks=known_sign)
def aten_slice_scatter(
    ctx: ConversionContext, self: Operand, src: Operand, dim: int, start: Size | None, end: Size | None, step: Size
) -> Any:
    """slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""  # noqa: E501
    axis = normalize_axis(dim, rank_of(self))
    extent, size = ctx.symbolic_shape("self")[axis], ctx.symbolic_shape("src")[axis]
    first = from_front(ctx, 0 if start is None else start, extent, clamp=True)
    return written(ctx, self, _fitting(ctx, src, axis), axis, first, extent, size, step)


def _fitting(ctx: ConversionContext, src: Operand, axis: int) -> Any:
    """Gives the source the type of the result, and its extents on every other axis."""
    src = cast(ctx, src, ctx.result_dtype)
    shape = ctx.symbolic_shape("src")
    lifted = [1] * (len(ctx.result_shape) - len(shape)) + list(shape)
    sizes = [lifted[i] if i == axis else extent for i, extent in enumerate(ctx.result_shape)]
    return expand(ctx, src, sizes, shape)


@converter(aten.select_scatter.default, checks=known_sign)
def aten_select_scatter(ctx: ConversionContext, self: Operand, src: Operand, dim: int, index: Size) -> Any:
    """select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    axis = normalize_axis(dim, rank_of(self))
    extent = ctx.symbolic_shape("self")[axis]
    first = from_front(ctx, index, extent)
    row = unsqueeze(ctx, cast(ctx, src, ctx.result_dtype), (axis,))
    return written(ctx, self, row, axis, first, extent, 1, 1)


def diagonal(ctx: ConversionContext, value: Operand, offset: int, first: int, second: int, length: Size) -> Any:
    """Returns the diagonal of two axes as the last axis: one strided slice of the flattened matrices.

    Args:
        ctx: The context.
        value: A tensor of rank >= 2.
        offset: How far the diagonal lies above the main one.
        first, second: Non-negative axes of rows and columns.
        length: Of the diagonal.
    """
    rank = rank_of(value)
    others = [axis for axis in range(rank) if axis not in (first, second)]
    moved = permute(ctx, value, [*others, first, second])
    lead = [dimension(ctx, moved, axis) for axis in range(rank - 2)]
    rows, columns = dimension(ctx, moved, rank - 2), dimension(ctx, moved, rank - 1)
    flat = reshape(ctx, moved, [*lead, combine(ctx, "mul", [rows, columns])])
    start = offset if offset >= 0 else combine(ctx, "mul", [columns, -offset])
    return slice_axis(ctx, flat, rank - 2, start, length, combine(ctx, "add", [columns, 1]))


@converter(aten.diagonal.default, aten.diagonal_copy.default)
def aten_diagonal(ctx: ConversionContext, self: Operand, offset: int, dim1: int, dim2: int) -> Any:
    """diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)"""
    rank = rank_of(self)
    return diagonal(ctx, self, offset, dim1 % rank, dim2 % rank, ctx.result_shape[-1])


@converter(aten.trace.default)
def aten_trace(ctx: ConversionContext, self: Operand) -> Any:
    """trace(Tensor self) -> Tensor"""
    rows, columns = ctx.symbolic_shape("self")
    length = rows if isinstance(rows, int) and rows == columns else torch.sym_min(rows, columns)
    return reduce(ctx, "SUM", cast(ctx, diagonal(ctx, self, 0, 0, 1, length), ctx.result_dtype), (0,), False)


def fixed_diagonal(call: Call) -> Verdict | None:
    """Refuses diagonals of matrices of symbolic shape."""
    shape = call.tensor("self").shape
    if isinstance(shape[call["dim1"]], int) and isinstance(shape[call["dim2"]], int):
        return None
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"self has shape {tuple(shape)}")


@converter(aten.diagonal_scatter.default, checks=fixed_diagonal)
def aten_diagonal_scatter(
    ctx: ConversionContext, self: Operand, src: Operand, offset: int, dim1: int, dim2: int
) -> Any:
    """diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"""
    rank = rank_of(self)
    first, second = dim1 % rank, dim2 % rank
    order = [*(axis for axis in range(rank) if axis not in (first, second)), first, second]
    shape = ctx.symbolic_shape("self")
    rows, columns = int(shape[first]), int(shape[second])
    lead = [shape[axis] for axis in order[:-2]]
    flat = reshape(ctx, permute(ctx, self, order), [*lead, rows * columns])
    length = ctx.symbolic_shape("src")[-1]
    start = offset if offset >= 0 else -offset * columns
    source = cast(ctx, src, dtype_of(self))
    result = written(ctx, flat, source, rank - 2, start, rows * columns, length, columns + 1)
    inverse = [order.index(axis) for axis in range(rank)]
    return permute(ctx, reshape(ctx, result, [*lead, rows, columns]), inverse)


@converter(aten.unfold.default, aten.unfold_copy.default)
def aten_unfold(ctx: ConversionContext, self: Operand, dimension: int, size: int, step: int) -> Any:
    """unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)"""
    rank = rank_of(self)
    if rank == 0:
        return reshape(ctx, self, ctx.result_shape)
    axis = dimension % rank
    windows = take_windows(ctx, self, axis, ctx.result_shape[axis], size, step)
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return permute(ctx, windows, order)


@converter(aten.flip.default)
def aten_flip(ctx: ConversionContext, self: Operand, dims: Sequence[int]) -> Any:
    """flip(Tensor self, int[] dims) -> Tensor"""
    rank, shape = rank_of(self), ctx.symbolic_shape("self")
    axes = {normalize_axis(axis, rank) for axis in dims} if rank else set()
    if not axes:
        return self
    starts: list[Any] = [combine(ctx, "add", [shape[axis], -1]) if axis in axes else 0 for axis in range(rank)]
    sizes = [shape[axis] if axis in axes else None for axis in range(rank)]
    strides = [-1 if axis in axes else 1 for axis in range(rank)]
    return slice_tensor(ctx, self, starts, sizes, strides)


# Padding ------------------------------------------------------------------------------------------------------------


SAMPLE_MODES: Final = {"reflect": "REFLECT", "replicate": "CLAMP", "circular": "WRAP"}


def takes_amounts(parameter: str) -> Check:
    """Refuses amounts that depend on a shape where the way to pad depends on their sign."""

    @refuses(f"`{parameter}` that depends on a shape, of int64 or circular")
    def check(call: Call) -> Verdict | None:
        if all(isinstance(amount, int) for amount in call[parameter]):
            return None
        if call.arguments.get("mode", "") == "circular" or call.tensor("self").dtype is torch.int64:
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{parameter} is symbolic")
        return None

    return check


def known_amounts(call: Call) -> Verdict | None:
    """Refuses amounts that depend on a shape."""
    if all(isinstance(amount, int) for amount in call["pad"]):
        return None
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, "pad is symbolic")


def sampled_type(call: Call) -> Verdict | None:
    """Refuses to extend int64 tensors by their own elements: the layer has no such type, and no other one holds it."""
    if call.arguments.get("mode", "reflect") in ("constant", "circular") or sampling_takes(call.tensor("self").dtype):
        return None
    return Verdict.refuse(
        Reason.UNSUPPORTED_DTYPE, f"a slice that samples outside takes no {call.tensor('self').dtype}"
    )


def wraps_whole(call: Call) -> Verdict | None:
    """Refuses circular padding that crops: PyTorch then wraps around inside of what remains."""
    if call.arguments.get("mode", "circular") == "circular" and any(
        isinstance(amount, int) and amount < 0 for amount in call["pad"]
    ):
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"pad={call['pad']}: circular padding that crops")
    return None


def amounts(pad: Sequence[Size], rank: int) -> tuple[list[Size], list[Size]]:
    """Returns what is added before and behind each axis; PyTorch lists pairs from the last axis to the first."""
    before: list[Size] = [0] * rank
    after: list[Size] = [0] * rank
    for pair in range(len(pad) // 2):
        before[rank - 1 - pair], after[rank - 1 - pair] = pad[2 * pair], pad[2 * pair + 1]
    return before, after


@converter(aten.constant_pad_nd.default, checks=takes_amounts("pad"))
def aten_constant_pad_nd(ctx: ConversionContext, self: Operand, pad: Sequence[Size], value: float) -> Any:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    return crop_and_pad(ctx, self, *amounts(pad, rank_of(self)), value)


@converter(aten.pad.default, checks=(takes_amounts("pad"), sampled_type, wraps_whole))
def aten_pad(ctx: ConversionContext, self: Operand, pad: Sequence[Size], mode: str, value: float | None) -> Any:
    """pad(Tensor self, SymInt[] pad, str mode="constant", float? value=None) -> Tensor"""
    before, after = amounts(pad, rank_of(self))
    if mode == "constant":
        return crop_and_pad(ctx, self, before, after, 0 if value is None else value)
    return pad_by_sampling(ctx, self, before, after, SAMPLE_MODES[mode])


convert_each(
    {
        aten._pad_circular.default: lambda ctx, self, pad: pad_by_sampling(
            ctx, self, *amounts(pad, rank_of(self)), "WRAP"
        )
    },
    checks=(known_amounts, wraps_whole),
)


convert_each(
    {
        (
            aten.reflection_pad1d.default,
            aten.reflection_pad2d.default,
            aten.reflection_pad3d.default,
        ): lambda ctx, self, padding: pad_by_sampling(ctx, self, *amounts(padding, rank_of(self)), "REFLECT"),
        (
            aten.replication_pad1d.default,
            aten.replication_pad2d.default,
            aten.replication_pad3d.default,
        ): lambda ctx, self, padding: pad_by_sampling(ctx, self, *amounts(padding, rank_of(self)), "CLAMP"),
    },
    checks=(takes_amounts("padding"), sampled_type),
)
