"""Data movement: reshape, permute, expand, slice, concatenate; padding and cropping, which are slices too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_converters.byte_tensor import as_bytes
from trt_converters.context import (
    ConversionContext,
    Operand,
    Size,
    combine,
    dimension,
    dtype_of,
    rank_of,
    shape_of,
    shape_vector,
)
from trt_converters.layers.casts import cast, moves_bytes
from trt_core import trt
from trt_core.sizes.expressions import is_same_size


@moves_bytes
def reshape(ctx: ConversionContext, value: Operand, sizes: Sequence[Size]) -> Any:
    """Gives a value another shape of the same volume.

    Args:
        ctx: The context.
        value: A tensor.
        sizes: Every extent; a -1 among them is worked out.
    """
    known = _resolve_free_size(ctx, sizes)
    if isinstance(value, torch.Tensor):
        if all(isinstance(size, int) for size in known):
            return value.reshape(known)
        value = ctx.tensor(value)
    if shape_of(value) == tuple(known):
        return value
    layer = ctx.network.add_shuffle(value)
    layer.zero_is_placeholder = False
    if all(isinstance(size, int) for size in known):
        layer.reshape_dims = tuple(known)
    else:
        layer.set_input(1, ctx.tensor(shape_vector(ctx, known)))
    return ctx.output(layer, "reshape")


def _resolve_free_size(ctx: ConversionContext, sizes: Sequence[Size]) -> list[Any]:
    """One dynamic extent needs no arithmetic: the layer works it out, as long as no other one can be zero."""
    dynamic = [index for index, size in enumerate(sizes) if not isinstance(size, int)]
    static = [size for size in sizes if isinstance(size, int)]
    if len(dynamic) == 1 and all(size > 0 for size in static):
        return [size if isinstance(size, int) else -1 for size in sizes]
    return [ctx.size(size) for size in sizes]


@moves_bytes
def permute(ctx: ConversionContext, value: Operand, order: Sequence[int]) -> Any:
    """Reorders axes: axis i of the result is axis `order[i]` of the value. The order is non-negative."""
    if list(order) == list(range(len(order))):
        return value
    if isinstance(value, torch.Tensor):
        return value.permute(*order)
    return ctx.output(ctx.network.add_shuffle(value), "permute", first_transpose=tuple(order))


@moves_bytes
def unsqueeze(ctx: ConversionContext, value: Operand, axes: Sequence[int]) -> Any:
    """Inserts axes of extent 1; `axes` are non-negative positions in the result."""
    if not axes:
        return value
    if isinstance(value, torch.Tensor):
        for axis in sorted(axes):
            value = value.unsqueeze(axis)
        return value
    positions = ctx.tensor(torch.tensor(sorted(axes), dtype=torch.int64))
    return ctx.output(ctx.network.add_unsqueeze(value, positions), "unsqueeze")


@moves_bytes
def squeeze(ctx: ConversionContext, value: Operand, axes: Sequence[int]) -> Any:
    """Removes axes of extent 1; `axes` are non-negative."""
    if not axes:
        return value
    if isinstance(value, torch.Tensor):
        return value.squeeze(tuple(axes))
    positions = ctx.tensor(torch.tensor(sorted(axes), dtype=torch.int64))
    return ctx.output(ctx.network.add_squeeze(value, positions), "squeeze")


def with_rank(ctx: ConversionContext, value: Operand, rank: int) -> Any:
    """Raises a value to a rank by leading axes of extent 1, as broadcasting does."""
    missing = rank - rank_of(value)
    return unsqueeze(ctx, value, range(missing)) if missing > 0 else value


@moves_bytes
def expand(
    ctx: ConversionContext, value: Operand, sizes: Sequence[Size], source: Sequence[int | torch.SymInt] | None = None
) -> Any:
    """Broadcasts a value to a shape of at least its rank.

    Args:
        ctx: The context.
        value: A tensor whose extents equal `sizes` or are 1.
        sizes: Every extent of the result.
        source: Shape of the value as the graph's metadata has it, which tells equal symbolic extents apart from
            ones that must be repeated.
    """
    if isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in sizes):
        return value.expand(tuple(sizes))
    value = with_rank(ctx, ctx.tensor(value), len(sizes))
    extents = shape_of(value)
    symbolic = [1] * (len(sizes) - len(source)) + list(source) if source is not None else list(extents)
    same = [is_same_size(size, extent) for size, extent in zip(sizes, symbolic, strict=True)]
    if all(same):
        return value
    # stride 0 repeats; an axis that is 1 only at run time must be repeated as well, which min(extent - 1, 1) decides
    strides: list[Any] = []
    for axis, extent in enumerate(extents):
        if same[axis]:
            strides.append(1)
        elif extent >= 0:
            strides.append(int(extent > 1))
        else:
            strides.append(_stride_of(ctx, value, axis, sizes[axis]))
    taken = [None if kept else size for kept, size in zip(same, sizes, strict=True)]
    return slice_tensor(ctx, value, [0] * len(sizes), taken, strides)


def _stride_of(ctx: ConversionContext, value: Any, axis: int, size: Size) -> Any:
    if isinstance(size, int) and size == 1:
        return 1
    extent = dimension(ctx, value, axis)
    return combine(ctx, "min", [combine(ctx, "add", [extent, -1]), 1])


@moves_bytes
def slice_tensor(
    ctx: ConversionContext,
    value: Operand,
    starts: Sequence[Size],
    sizes: Sequence[Size | None],
    strides: Sequence[Size] | None = None,
    mode: str = "STRICT_BOUNDS",
    fill: Operand | None = None,
) -> Any:
    """Takes `value[start + i * stride]` along every axis.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        starts: First index per axis, not negative-index aware.
        sizes: Extents of the result (not end indices); None leaves an axis as it is, whatever its extent.
        strides: Step per axis; may be negative or 0. 1 by default.
        mode: Name of a `trt.SampleMode` for indices outside the value.
        fill: What FILL puts outside: a scalar of the value's type.
    """
    rank = rank_of(value)
    extents = shape_of(value)
    wanted = [
        (axis, ctx.size(start), ctx.size(size), ctx.size(stride))
        for axis, (start, size, stride) in enumerate(zip(starts, sizes, strides or [1] * rank, strict=True))
        if size is not None
    ]
    chosen = [item for item in wanted if item[1:] != (0, extents[item[0]], 1)]
    if not chosen:
        return value
    value = ctx.tensor(value)
    if len(chosen) < rank and all(extent >= 0 for extent in extents):  # without dynamic axes the plain form says it all
        given = {axis: parts for axis, *parts in chosen}
        chosen = [(axis, *given.get(axis, (0, extents[axis], 1))) for axis in range(rank)]
    axes, *parts = zip(*chosen, strict=True)
    static = [all(isinstance(item, int) for item in part) for part in parts]
    dims = [tuple(part) if known else (0,) * len(axes) for part, known in zip(parts, static, strict=True)]
    partial = len(axes) < rank
    layer = ctx.network.add_slice(value, *([(0,) * rank, (1,) * rank, (1,) * rank] if partial else dims))
    if layer is None:
        raise ctx.fail(f"TensorRT refused a slice of {extents} from {starts} of size {sizes}")
    if partial:  # the layer learns of its axes only now: until then every axis wants a number
        layer.axes = tuple(axes)
        layer.start, layer.shape, layer.stride = dims
    for index, (part, known) in enumerate(zip(parts, static, strict=True), start=1):
        if not known:
            layer.set_input(index, ctx.tensor(shape_vector(ctx, part)))
    if mode != "STRICT_BOUNDS":
        layer.mode = getattr(trt.SampleMode, mode)
    if fill is not None:
        layer.set_input(4, ctx.tensor(fill))
    return ctx.output(layer, "slice")


def slice_axis(ctx: ConversionContext, value: Operand, axis: int, start: Size, size: Size, stride: Size = 1) -> Any:
    """Takes `size` elements of one non-negative axis, from `start` on, and every other axis as it is."""
    rank = rank_of(value)
    starts, strides = (
        [start if i == axis else 0 for i in range(rank)],
        [stride if i == axis else 1 for i in range(rank)],
    )
    return slice_tensor(ctx, value, starts, [size if i == axis else None for i in range(rank)], strides)


def concatenate(ctx: ConversionContext, values: Sequence[Operand], axis: int) -> Any:
    """Joins values of one type and rank along a non-negative axis."""
    if all(isinstance(value, torch.Tensor) for value in values):
        return torch.cat(list(values), axis)
    if len(values) == 1:
        return values[0]
    assert len({dtype_of(value) for value in values}) == 1, "cast the operands first"
    if dtype_of(values[0]) is torch.uint8:
        return as_bytes(concatenate(ctx, [cast(ctx, value, torch.float32) for value in values], axis))
    layer = ctx.network.add_concatenation([ctx.tensor(value) for value in values])
    return ctx.output(layer, "concatenate", axis=axis)


_CARRIERS: Final = {torch.bfloat16: torch.float32, torch.uint8: torch.float32}
"""Types that a sampling slice does not take, and types that hold all their values."""


def crop_and_pad(
    ctx: ConversionContext, value: Operand, before: Sequence[Size], after: Sequence[Size], fill: Any
) -> Any:
    """Adds a constant around a value; negative amounts crop.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        before, after: Elements added on each axis; known ones where the value is int64.
        fill: A number, which may vary with a size, converted to the value's type as PyTorch does.
    """
    rank = rank_of(value)
    if all(map(_is_nothing, (*before, *after))):
        return value
    dtype = dtype_of(value)
    constant = cast(ctx, fill, dtype)
    if all(isinstance(amount, int) and amount <= 0 for amount in (*before, *after)):
        return _sample(ctx, value, before, after, "STRICT_BOUNDS", None)
    if dtype is torch.int64:  # no sampling slice, and no wider type to go through
        cropped = crop_and_pad(ctx, value, [min(b, 0) for b in before], [min(a, 0) for a in after], fill)
        for axis in range(rank):
            cropped = _join_constant(ctx, cropped, axis, max(before[axis], 0), max(after[axis], 0), constant)
        return cropped
    carrier = _CARRIERS.get(dtype, dtype)
    padded = _sample(ctx, cast(ctx, value, carrier), before, after, "FILL", cast(ctx, constant, carrier))
    return _restored(ctx, padded, dtype)


def pad_by_sampling(
    ctx: ConversionContext, value: Operand, before: Sequence[Size], after: Sequence[Size], mode: str
) -> Any:
    """Extends a value by its own elements.

    Args:
        ctx: The context.
        value: A tensor of rank >= 1.
        before, after: Elements added on each axis, known ones for WRAP; negative amounts crop.
        mode: Name of a `trt.SampleMode`: REFLECT, CLAMP or WRAP.
    """
    dtype = dtype_of(value)
    if mode == "WRAP":
        return _wrap(ctx, value, before, after)
    carrier = _CARRIERS.get(dtype, dtype)
    return _restored(ctx, _sample(ctx, cast(ctx, value, carrier), before, after, mode, None), dtype)


def _restored(ctx: ConversionContext, carried: Operand, dtype: torch.dtype) -> Any:
    return as_bytes(carried) if dtype is torch.uint8 else cast(ctx, carried, dtype)


def _is_nothing(amount: Size) -> bool:
    return isinstance(amount, int) and amount == 0


def _sample(
    ctx: ConversionContext, value: Operand, before: Sequence[Size], after: Sequence[Size], mode: str, fill: Any
) -> Any:
    starts = [-amount for amount in before]
    sizes: list[Any] = []
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        unchanged = _is_nothing(low) and _is_nothing(high)
        sizes.append(None if unchanged else combine(ctx, "add", [dimension(ctx, value, axis), low, high]))
    return slice_tensor(ctx, value, starts, sizes, None, mode, fill)


def _wrap(ctx: ConversionContext, value: Operand, before: Sequence[int], after: Sequence[int]) -> Any:
    starts: list[Size] = []
    sizes: list[Any] = []
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        extent = dimension(ctx, value, axis)
        # indices below 0 are one round further: start from the end of the axis
        starts.append(combine(ctx, "add", [extent, -low]) if low > 0 else -low)
        sizes.append(combine(ctx, "add", [extent, low + high]) if low or high else None)
    return slice_tensor(ctx, value, starts, sizes, None, "WRAP")


def _join_constant(
    ctx: ConversionContext, value: Operand, axis: int, before: int, after: int, constant: Operand
) -> Any:
    blocks = []
    for amount in (before, after):
        shape = [amount if i == axis else dimension(ctx, value, i) for i in range(rank_of(value))]
        blocks.append([expand(ctx, constant, shape)] if amount else [])
    return concatenate(ctx, [*blocks[0], value, *blocks[1]], axis)


def sampling_takes(dtype: torch.dtype) -> bool:
    """Whether padding by a value's own elements can carry the type without loss."""
    return dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.bool, torch.uint8)
