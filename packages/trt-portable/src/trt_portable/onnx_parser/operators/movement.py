"""Tensors in other shapes, orders and types."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from trt_portable.dims import MAX_RANK
from trt_portable.dtypes import FLOATS
from trt_portable.enums import DataType, ErrorCode, SampleMode, UnaryOperation
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import DOUBLE, TYPES, Initializer, dtype_of
from trt_portable.onnx_parser.operators.sources import ramp_along
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import Extent, NetworkWriter, Operand, clamp_int64


@operator("Identity")
def identity(net: NetworkWriter, x: Operand) -> Operand:
    """Identity(input) -> output"""
    return x


@operator("Dropout")
def dropout(
    net: NetworkWriter,
    data: ITensor,
    ratio: Operand | None = None,
    training_mode: Operand | None = None,
    *,
    seed: int | None = None,
    is_test: int = 0,
    consumed_inputs: Any = None,
) -> tuple[ITensor, ITensor | None]:
    """Dropout(data, ratio, training_mode; seed) -> (output, mask); nothing is dropped"""
    if training_mode is not None and any(net.integers(training_mode, "training_mode")):
        share = net.number(ratio, 0.5, "the ratio")
        if share != 0.0:
            raise Unsupported("Dropout in training mode", ErrorCode.UNSUPPORTED_NODE_INPUT)
    wants_mask = len(net.node.wanted) > 1 and net.node.wanted[1]
    if not wants_mask:
        return data, None
    true = net.constant(np.ones((1,) * net.rank(data)), DataType.BOOL)
    return data, net.expand(true, net.extents(data))


@operator("Dropout", since=7, from_attributes=("ratio",))
@operator("Dropout", since=12)
def dropout_7(
    net: NetworkWriter,
    data: ITensor,
    ratio: Operand | None = None,
    training_mode: Operand | None = None,
    *,
    seed: int | None = None,
) -> tuple[ITensor, ITensor | None]:
    """Dropout(data, ratio, training_mode; seed) -> (output, mask)"""
    return dropout(net, data, ratio, training_mode)


@operator("Cast", since=6)
def cast(net: NetworkWriter, x: Operand, *, to: int, saturate: int = 1, round_mode: str = "up") -> Operand:
    """Cast(input; to, saturate, round_mode) -> output; doubles are narrowed to floats"""
    target = DataType.FLOAT if to == DOUBLE else dtype_of(to, "the result")
    if isinstance(x, Initializer):
        folded = _cast_initializer(x, target)
        if folded is not None:
            return folded
    tensor = x if isinstance(x, ITensor) and target in FLOATS else net.tensor(x)  # as which uint8 may be cast
    if DataType.FP8 in (tensor.dtype, target) or DataType.INT4 in (tensor.dtype, target):
        return _cast_low(net, tensor, target, saturates=bool(saturate))
    result = net.cast(tensor, target)
    return net.output(net.network.add_identity(tensor)) if result is x else result


def _cast_initializer(x: Initializer, target: DataType) -> Initializer | None:
    """A constant in another type that numpy has too; None where the network is to do it."""
    kinds = {
        DataType.FLOAT: (1, np.float32),
        DataType.HALF: (10, np.float16),
        DataType.INT32: (6, np.int32),
        DataType.INT64: (7, np.int64),
        DataType.BOOL: (9, np.bool_),
        DataType.INT8: (3, np.int8),
        DataType.UINT8: (2, np.uint8),
    }
    found = kinds.get(target)
    array = x.array
    if array.dtype.isbuiltin != 1 and (x.elem_type not in TYPES or x.dtype in _UNCAST):
        array = array.astype(np.int64 if "int" in array.dtype.name else np.float32)
    if found is None or array.dtype.kind not in "biuf":
        return None
    number, kind = found
    is_rounded = array.dtype.kind == "f" and np.dtype(kind).kind in "iu"
    if is_rounded and (np.dtype(kind).itemsize == 1 or not np.isfinite(array).all()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return Initializer("", x.shape, number, array.astype(kind))


_UNCAST: Final = (DataType.E8M0, DataType.FP4)
"""Types that no layer casts; numbers of them are cast here, as are those of types that TensorRT lacks."""


def _cast_low(net: NetworkWriter, x: ITensor, target: DataType, *, saturates: bool) -> ITensor:
    """Casts from and to types that only quantization makes: a scale of 1."""
    one = net.constant(1.0, DataType.FLOAT)
    if target in (DataType.FP8, DataType.INT4):
        wide = net.cast(x, DataType.FLOAT)
        if target is DataType.FP8 and not saturates:
            wide = nan_beyond_fp8(net, wide)
        return net.output(net.network.add_quantize(wide, one, target))
    return net.cast(net.output(net.network.add_dequantize(x, one, DataType.FLOAT)), target)


_FP8_END: Final = 464.0
"""Halfway between the greatest number of FP8 and what would follow: what is greater has no nearest number."""


def nan_beyond_fp8(net: NetworkWriter, x: ITensor, steps: ITensor | None = None) -> ITensor:
    """Floats with NaN in the place of what is too great for FP8: layers that quantize keep NaN, and saturate the rest.

    Args:
        net: The network.
        x: The floats.
        steps: What they are divided by before; by default nothing.
    """
    numbers = x if steps is None else net.binary(x, steps, Op.DIV)
    size = net.unary(numbers, UnaryOperation.ABS)
    is_beyond = net.binary(size, net.scalar_like(_FP8_END, size), Op.GREATER)
    return net.select(is_beyond, net.scalar_like(float("nan"), x), x)


@operator("CastLike", since=15)
def cast_like(net: NetworkWriter, x: Operand, target: Operand, *, saturate: int = 1, round_mode: str = "up") -> Operand:
    """CastLike(input, target_type; saturate) -> output"""
    if isinstance(target, Initializer):
        return cast(net, x, to=target.elem_type, saturate=saturate)
    wanted = DataType.UINT8 if net.is_byte(target) else target.dtype
    number = next(number for number, dtype in TYPES.items() if dtype is wanted)
    return cast(net, x, to=number, saturate=saturate)


@operator("Shape", since=1)
def shape(net: NetworkWriter, data: Operand, *, start: int = 0, end: int | None = None) -> ITensor:
    """Shape(data; start, end) -> shape"""
    rank = net.rank(data)
    first, last, _ = slice(start, end).indices(rank)
    if isinstance(data, Initializer):
        return net.constant(np.array(data.shape[first:last], np.int64), DataType.INT64)
    whole = net.output(net.network.add_shape(data))
    if (first, last) == (0, rank):
        return whole
    return net.output(net.network.add_slice(whole, (first,), (max(last - first, 0),), (1,)))


@operator("Size")
def size(net: NetworkWriter, data: Operand) -> ITensor:
    """Size(data) -> size"""
    if isinstance(data, Initializer):
        return net.constant(math.prod(data.shape), DataType.INT64)
    total = net.product(net.extents(data))
    if isinstance(total, int):
        return net.constant(total, DataType.INT64)
    return net.scalar(total)


@operator("Reshape", since=5)
def reshape(net: NetworkWriter, data: Operand, shape: Operand, *, allowzero: int = 0) -> Operand:
    """Reshape(data, shape; allowzero) -> reshaped"""
    extents = net.numbers(shape)
    if isinstance(data, Initializer) and extents is not None:
        wanted = [
            data.shape[place] if extent == 0 and not allowzero and place < len(data.shape) else int(extent)
            for place, extent in enumerate(extents)
        ]
        try:
            array = data.array.reshape(wanted)
        except ValueError as error:
            raise Unsupported(str(error), ErrorCode.INVALID_NODE) from error
        return Initializer(data.name, array.shape, data.elem_type, array)
    if extents is not None and len(extents) > MAX_RANK:
        raise Unsupported(f"Reshape to {len(extents)} axes; {MAX_RANK} is the most", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    layer = net.layer(net.network.add_shuffle(net.tensor(data)))
    layer.zero_is_placeholder = not allowzero
    if extents is not None:
        layer.reshape_dims = tuple(int(extent) for extent in extents)
    else:
        layer.set_input(1, net.index_vector(shape))
    return net.output_of(layer)


@operator("Flatten")
def flatten(net: NetworkWriter, x: ITensor, *, axis: int = 1) -> ITensor:
    """Flatten(input; axis) -> output"""
    rank = net.rank(x)
    first = rank if axis == rank else net.axis(axis, rank) if rank else 0
    extents = net.extents(x)
    return net.reshape(x, [net.product(extents[:first]), net.product(extents[first:])])


@operator("Transpose")
def transpose(net: NetworkWriter, data: Operand, *, perm: list[int] | None = None) -> Operand:
    """Transpose(data; perm) -> transposed"""
    rank = net.rank(data)
    order = list(reversed(range(rank))) if perm is None else net.axes(perm, rank)
    if len(order) != rank:
        raise Unsupported(f"perm {order} for rank {rank}", ErrorCode.INVALID_NODE)
    if isinstance(data, Initializer):
        array = np.ascontiguousarray(data.array.transpose(order))
        return Initializer("", array.shape, data.elem_type, array)
    if rank == 0 or order == list(range(rank)):
        return data
    return net.transpose(net.tensor(data), order)


@operator("Concat", since=4)
def concat(net: NetworkWriter, *inputs: ITensor, axis: int) -> ITensor:
    """Concat(inputs; axis) -> concat_result"""
    if not inputs:
        raise Unsupported("Concat has no inputs", ErrorCode.INVALID_NODE)
    return net.concat(inputs, net.axis(axis, net.rank(inputs[0])))


@operator("Squeeze", from_attributes=("axes",))
@operator("Squeeze", since=13)
def squeeze(net: NetworkWriter, data: ITensor, axes: Operand | None = None) -> ITensor:
    """Squeeze(data, axes) -> squeezed"""
    ones = [axis for axis, extent in enumerate(data.shape) if extent == 1]
    chosen = ones if axes is None else net.integers(axes, "the axes of Squeeze")
    return net.squeeze(data, net.axes(chosen, net.rank(data)))


@operator("Unsqueeze", from_attributes=("axes",))
@operator("Unsqueeze", since=13)
def unsqueeze(net: NetworkWriter, data: Operand, axes: Operand) -> Operand:
    """Unsqueeze(data, axes) -> expanded"""
    given = net.integers(axes, "the axes of Unsqueeze")
    chosen = net.axes(given, net.rank(data) + len(given))
    if isinstance(data, Initializer):
        array = np.expand_dims(data.array, tuple(chosen))
        return Initializer(data.name, array.shape, data.elem_type, array)
    return net.unsqueeze(net.tensor(data), chosen)


@operator("Expand", since=8)
def expand(net: NetworkWriter, x: ITensor, shape: Operand) -> ITensor:
    """Expand(input, shape) -> output, both broadcast"""
    wanted = _vector(net, shape)
    rank = max(len(wanted), net.rank(x))
    wanted = [*([1] * (rank - len(wanted))), *wanted]
    x = net.unsqueeze(x, range(rank - net.rank(x)))
    extents = [_wider(net, have, want) for have, want in zip(net.extents(x), wanted, strict=True)]
    return net.expand(x, extents)


def _wider(net: NetworkWriter, have: Extent, want: Extent) -> Extent:
    """The extent of two that are broadcast; that which is not 1."""
    if isinstance(have, int) and isinstance(want, int):
        return have if want == 1 else want
    if isinstance(have, int) and have == 1:
        return want
    if isinstance(want, int) and want == 1:
        return have
    return net.combine(have, want, Op.MAX)


@operator("Tile", since=6)
def tile(net: NetworkWriter, x: ITensor, repeats: Operand) -> ITensor:
    """Tile(input, repeats) -> output"""
    rank = net.rank(x)
    if rank == 0:
        return x
    factors = _vector(net, repeats, rank)
    if len(factors) != rank:
        raise Unsupported(f"{len(factors)} repeats for rank {rank}", ErrorCode.INVALID_NODE)
    extents = [net.combine(have, factor, Op.PROD) for have, factor in zip(net.extents(x), factors, strict=True)]
    return net.slice(x, [0] * rank, extents, mode=SampleMode.WRAP)


@operator("DepthToSpace")
def depth_to_space(net: NetworkWriter, x: ITensor, *, blocksize: int, mode: str = "DCR") -> ITensor:
    """DepthToSpace(input; blocksize, mode) -> output"""
    _require_blocks(net, x, blocksize)
    batch, depth, height, width = net.extents(x)
    inner = net.combine(depth, blocksize * blocksize, Op.FLOOR_DIV)
    if mode == "DCR":
        parts, order = [batch, blocksize, blocksize, inner, height, width], (0, 3, 4, 1, 5, 2)
    else:
        parts, order = [batch, inner, blocksize, blocksize, height, width], (0, 1, 4, 2, 5, 3)
    spread = net.transpose(net.reshape(x, parts), order)
    sides = [net.combine(side, blocksize, Op.PROD) for side in (height, width)]
    return net.reshape(spread, [batch, inner, *sides])


@operator("SpaceToDepth")
def space_to_depth(net: NetworkWriter, x: ITensor, *, blocksize: int) -> ITensor:
    """SpaceToDepth(input; blocksize) -> output"""
    _require_blocks(net, x, blocksize)
    batch, depth, height, width = net.extents(x)
    rows, columns = (net.combine(side, blocksize, Op.FLOOR_DIV) for side in (height, width))
    parts = net.reshape(x, [batch, depth, rows, blocksize, columns, blocksize])
    moved = net.transpose(parts, (0, 3, 5, 1, 2, 4))
    return net.reshape(moved, [batch, net.combine(depth, blocksize * blocksize, Op.PROD), rows, columns])


def _require_blocks(net: NetworkWriter, x: ITensor, size: int) -> None:
    if net.rank(x) != 4 or not 1 <= size < 1 << 31:
        raise Unsupported(
            f"{net.node.operator} of rank {net.rank(x)} with blocks of {size}", ErrorCode.UNSUPPORTED_NODE_SHAPE
        )


@operator("Trilu", since=14)
def trilu(net: NetworkWriter, x: ITensor, k: Operand | None = None, *, upper: int = 1) -> ITensor:
    """Trilu(input, k; upper) -> output"""
    rank = net.rank(x)
    rows, columns = ramp_along(net, x, rank - 2), ramp_along(net, x, rank - 1)
    offset = net.constant(0, DataType.INT64) if k is None else net.scalar(net.tensor(k))
    edge = net.binary(rows, offset, Op.SUM)
    outside = net.binary(columns, edge, Op.LESS if upper else Op.GREATER)
    return net.select(outside, net.constant(np.zeros((1,) * rank), x.dtype), x)


# --- Split -----------------------------------------------------------------------------------------


@operator("Split", since=2, from_attributes=("split",))
@operator("Split", since=13)
def split(
    net: NetworkWriter, x: ITensor, split: Operand | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> list[ITensor]:
    """Split(input, split; axis, num_outputs) -> outputs"""
    sizes = None if split is None else _vector(net, split, net.node.num_outputs)
    count = net.node.num_outputs
    place = net.axis(axis, net.rank(x))
    if count < 1 or num_outputs not in (None, count) or (sizes is not None and len(sizes) < count):
        parts_told = num_outputs if sizes is None else len(sizes)
        raise Unsupported(f"Split into {parts_told} parts, with {count} outputs", ErrorCode.INVALID_NODE)
    if sizes is None:
        whole = net.extents(x)[place]
        part = net.combine(net.combine(whole, count - 1, Op.SUM), count, Op.FLOOR_DIV)
        last = net.combine(whole, net.combine(part, count - 1, Op.PROD), Op.SUB)
        sizes = [part] * (count - 1) + [last]
    parts: list[ITensor] = []
    start: Extent = 0
    for extent in sizes:
        parts.append(net.narrow(x, place, start, extent))
        start = net.combine(start, extent, Op.SUM)
    return parts


# --- Slice -----------------------------------------------------------------------------------------


@operator("Slice", from_attributes=("starts", "ends", "axes"))
@operator("Slice", since=10)
def slice_of(
    net: NetworkWriter,
    data: ITensor,
    starts: Operand,
    ends: Operand,
    axes: Operand | None = None,
    steps: Operand | None = None,
) -> ITensor:
    """Slice(data, starts, ends, axes, steps) -> output"""
    begins, limits, rank = _vector(net, starts), _vector(net, ends), net.rank(data)
    chosen = net.axes(range(len(begins)) if axes is None else net.integers(axes, "the axes of Slice"), rank)
    strides = [1] * len(begins) if steps is None else net.integers(steps, "the steps of Slice")
    if not len(begins) == len(limits) == len(chosen) == len(strides) or 0 in strides:
        raise Unsupported(f"starts, ends, axes and steps do not fit: {strides}", ErrorCode.INVALID_NODE)
    extents = net.extents(data)
    first: list[Extent] = [0] * rank
    sizes = list(extents)
    step_of = [1] * rank
    for start, end, axis, step in zip(begins, limits, chosen, strides, strict=True):
        first[axis], sizes[axis] = _window(net, start, end, step, extents[axis])
        step_of[axis] = step
    return net.slice(data, first, sizes, step_of)


def _vector(net: NetworkWriter, operand: Operand, length: int | None = None) -> list[Extent]:
    """The elements of a vector, each an int where it is known; `length` tells how many where its shape does not."""
    known = net.numbers(operand)
    if known is not None:
        return [clamp_int64(int(number)) for number in known]
    vector = net.index_vector(operand)
    if vector.shape[0] == 1:
        return [vector]
    count = length if vector.shape[0] < 0 else vector.shape[0]
    if count is None:
        raise Unsupported("the length of a vector of sizes is not known", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    return [net.narrow(vector, 0, place, 1) for place in range(count)]


def _window(net: NetworkWriter, start: Extent, end: Extent, step: int, extent: Extent) -> tuple[Extent, Extent]:
    """The first index and the number of indices that a slice takes of an axis."""
    if isinstance(start, int) and isinstance(end, int) and isinstance(extent, int):
        whole = range(extent)
        indices = whole[start::step] if step < 0 and end < -extent else whole[start:end:step]
        return (indices.start if len(indices) else 0), len(indices)
    low: Extent = 0 if step > 0 else -1
    high = extent if step > 0 else net.combine(extent, 1, Op.SUB)
    first = _clamped(net, _from_front(net, start, extent), 0, high)
    last = _clamped(net, _from_front(net, end, extent), low, extent)
    span = net.combine(last, first, Op.SUB)
    if step != 1:
        span = net.combine(net.combine(span, step - (1 if step > 0 else -1), Op.SUM), step, Op.FLOOR_DIV)
    return first, net.combine(span, 0, Op.MAX)


def _from_front(net: NetworkWriter, index: Extent, extent: Extent) -> Extent:
    if isinstance(index, int):
        if index >= 0:
            return index
        return net.combine(extent, index, Op.SUM) if index > -(1 << 31) else -1
    negative = net.with_number(index, 0, Op.LESS)
    return net.select(negative, net.as_tensor(net.combine(index, extent, Op.SUM)), index)


def _clamped(net: NetworkWriter, index: Extent, low: Extent, high: Extent) -> Extent:
    return net.combine(net.combine(index, low, Op.MAX) if not _is_at_least(index, low) else index, high, Op.MIN)


def _is_at_least(index: Extent, low: Extent) -> bool:
    return isinstance(index, int) and isinstance(low, int) and index >= low


# --- Pad -------------------------------------------------------------------------------------------

PAD_MODES: Final = {
    "constant": SampleMode.FILL,
    "edge": SampleMode.CLAMP,
    "reflect": SampleMode.REFLECT,
    "wrap": SampleMode.WRAP,
}


@operator("Pad", since=2, from_attributes=("pads", "value"))
@operator("Pad", since=11)
def pad(
    net: NetworkWriter,
    data: ITensor,
    pads: Operand,
    value: ITensor | None = None,
    axes: Operand | None = None,
    *,
    mode: str = "constant",
) -> ITensor:
    """Pad(data, pads, constant_value, axes; mode) -> output"""
    chosen = None if axes is None else net.integers(axes, "the axes of Pad")
    return padded(net, data, _vector(net, pads), chosen, mode, None if value is None else net.scalar(value))


def padded(
    net: NetworkWriter,
    data: ITensor,
    pads: list[Extent],
    axes: list[int] | None = None,
    mode: str = "constant",
    value: ITensor | None = None,
) -> ITensor:
    """A tensor with elements around it: what begins each axis, then what ends each."""
    rank = net.rank(data)
    chosen = net.axes(range(rank) if axes is None else axes, rank)
    if mode not in PAD_MODES or len(pads) != 2 * len(chosen):
        raise Unsupported(f"Pad by {len(pads)} numbers, mode {mode!r}", ErrorCode.UNSUPPORTED_NODE_ATTR)
    if all(isinstance(number, int) and number == 0 for number in pads):
        return data
    starts: list[Extent] = [0] * rank
    sizes = net.extents(data)
    for axis, before, after in zip(chosen, pads, pads[len(chosen) :], strict=False):
        starts[axis] = net.combine(0, before, Op.SUB)
        sizes[axis] = net.combine(sizes[axis], net.combine(before, after, Op.SUM), Op.SUM)
    kind = data.dtype
    computed = {DataType.INT64: DataType.INT32, DataType.BF16: DataType.FLOAT}.get(kind, kind)
    if mode == "wrap":
        computed = kind
    fill = None
    if mode == "constant":
        fill = net.constant(0, computed) if value is None else net.cast(value, computed)
    wider = net.slice(net.cast(data, computed), starts, sizes, mode=PAD_MODES[mode], fill=fill)
    return net.cast(wider, kind)
