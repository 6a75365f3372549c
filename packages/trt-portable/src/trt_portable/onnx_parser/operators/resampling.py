"""Resizing and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from trt_portable.dtypes import FLOATS
from trt_portable.enums import (
    DataType,
    ErrorCode,
    InterpolationMode,
    ReduceOperation,
    ResizeCoordinateTransformation,
    ResizeRoundMode,
    ResizeSelector,
    SampleMode,
    UnaryOperation,
)
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.operators.sources import ramp
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import Extent, NetworkWriter, Operand

_ROW: Final = 1 << 10
"""Numbers that a row of weights counts as, beside its own, for the time that it takes."""
MODES: Final = {name: InterpolationMode[name.upper()] for name in ("nearest", "linear", "cubic")}
"""What ONNX calls the ways to interpolate."""
COORDINATES: Final = {"pytorch_half_pixel": ResizeCoordinateTransformation.HALF_PIXEL} | {
    name: ResizeCoordinateTransformation[name.upper()] for name in ("align_corners", "asymmetric", "half_pixel")
}
"""What ONNX calls the ways from places in the result to those in the input; of two names the last is the plain one."""
ROUNDING: Final = {
    "floor": ResizeRoundMode.FLOOR,
    "ceil": ResizeRoundMode.CEIL,
    "round_prefer_floor": ResizeRoundMode.HALF_DOWN,
    "round_prefer_ceil": ResizeRoundMode.HALF_UP,
}
"""What ONNX calls the choices of the nearest element."""


class _Resizing(NamedTuple):
    """How a tensor is resized, in ONNX's words.

    Attributes:
        mode: One of `MODES`.
        mapping: How places in the result become places in the input.
        nearest: One of `ROUNDING`.
        cubic: The coefficient of cubic interpolation.
        excludes_outside: Whether elements outside of the input weigh nothing.
        antialiases: Whether the filter widens where the result is smaller.
        outside: The value of what lies outside, where a region is read.
        policy: Whether one scale holds for all axes: `stretch` for no, `not_larger`, `not_smaller`.
    """

    mode: str
    mapping: str
    nearest: str
    cubic: float
    excludes_outside: bool
    antialiases: bool
    outside: float
    policy: str


@operator("Upsample", since=7, from_attributes=("scales",))
@operator("Upsample", since=9)
def upsample(net: NetworkWriter, x: ITensor, scales: Operand, *, mode: str = "nearest") -> ITensor:
    """Upsample(X, scales; mode) -> Y"""
    return resize_10(net, x, scales, mode=mode)


@operator("Resize", since=10)
def resize_10(net: NetworkWriter, x: ITensor, scales: Operand, *, mode: str = "nearest") -> ITensor:
    """Resize(X, scales; mode) -> Y, asymmetric"""
    return resize(net, x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator("Resize", since=11)
def resize(
    net: NetworkWriter,
    x: ITensor,
    roi: Operand | None = None,
    scales: Operand | None = None,
    sizes: Operand | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> ITensor:
    """Resize(X, roi, scales, sizes; antialias, axes, coordinate_transformation_mode, ...) -> Y"""
    rank, kind = net.rank(x), x.dtype
    mapping, excludes, widens = coordinate_transformation_mode, bool(exclude_outside), bool(antialias)
    policy = keep_aspect_ratio_policy
    how = _Resizing(mode, mapping, nearest_mode, cubic_coeff_a, excludes, widens, extrapolation_value, policy)
    if mode not in MODES or nearest_mode not in ROUNDING or rank == 0:
        raise Unsupported(f"Resize of rank {rank}, mode {mode!r} {nearest_mode!r}", ErrorCode.UNSUPPORTED_NODE_ATTR)
    chosen = net.axes(range(rank) if axes is None else axes, rank)
    factors = _known_scales(net, scales)
    if factors and not all(0 < factor < math.inf for factor in factors):
        raise Unsupported(f"scales {factors} must be positive and finite", ErrorCode.INVALID_NODE)
    wanted = None if sizes is None else net.known_numbers(sizes)
    if wanted is not None and (
        len(wanted) != len(chosen) or any(isinstance(size, int) and size < 0 for size in wanted)
    ):
        raise Unsupported(f"sizes {wanted} for {len(chosen)} axes", ErrorCode.INVALID_NODE)
    exact = mapping in COORDINATES and not antialias
    if mapping == "align_corners" and factors and sizes is None:
        exact = all(
            float(factor).is_integer() or (x.shape[axis] >= 0 and float(factor * x.shape[axis]).is_integer())
            for axis, factor in zip(chosen, factors, strict=False)
        )
    if exact and policy == "stretch" and (factors or sizes is not None):
        given = x if kind in FLOATS else net.cast(x, DataType.FLOAT)
        result = _resize_layer(net, given, chosen, factors, sizes, how)
        if result is not None:
            return net.cast(result, kind)
    if not factors and wanted is None:
        raise Unsupported("Resize by scales that are not constant", ErrorCode.UNSUPPORTED_NODE_INPUT)
    region = None if roi is None else net.numbers(roi)
    value = net.cast(x, DataType.FLOAT)
    for axis, (have, want, scale, ends) in _plans(net, x, chosen, factors, wanted, region, how).items():
        net.take_room(want * (have + _ROW), "Resize")
        value = _apply_axis(net, value, axis, *_axis_weights(have, want, scale, ends, how))
    return net.cast(value, kind)


def _known_scales(net: NetworkWriter, scales: Operand | None) -> list[float] | None:
    found = net.numbers(scales)
    return [float(factor) for factor in found] if found else None


def _resize_layer(
    net: NetworkWriter,
    x: ITensor,
    axes: Sequence[int],
    factors: list[float] | None,
    sizes: Operand | None,
    how: _Resizing,
) -> ITensor | None:
    """The network's own layer; None where it does not mean the same."""
    rank = net.rank(x)
    moving = [axis for axis, factor in zip(axes, factors, strict=False) if factor != 1.0] if factors else list(axes)
    known_sizes = None if sizes is None else net.numbers(sizes)
    if sizes is not None:
        extents = x._extents or ()
        moving = [axis for axis, size in zip(axes, net.known_numbers(sizes), strict=False) if extents[axis] != size]
    limit = 2 if how.mode == "cubic" else 3
    if any(axis < rank - limit for axis in moving):
        return None
    layer = net.layer(net.network.add_resize(x))
    if factors and sizes is None:
        if len(factors) != len(axes):
            raise Unsupported(f"{len(factors)} scales for {len(axes)} axes", ErrorCode.INVALID_NODE)
        by_axis = dict(zip(axes, factors, strict=True))
        layer.scales = tuple(by_axis.get(axis, 1.0) for axis in range(rank))
    else:
        wanted = net.extents(x)
        assert sizes is not None
        vector = None if known_sizes is not None else net.index_vector(sizes)
        for place, axis in enumerate(axes):
            wanted[axis] = int(known_sizes[place]) if known_sizes else net.narrow(vector, 0, place, 1)  # type: ignore[arg-type]
        if all(isinstance(extent, int) for extent in wanted):
            layer.shape = tuple(wanted)
        else:
            layer.set_input(1, net.vector(wanted))
    layer.resize_mode = MODES[how.mode]
    layer.coordinate_transformation = COORDINATES[how.mapping]
    if how.mapping == "pytorch_half_pixel":
        layer.selector_for_single_pixel = ResizeSelector.UPPER
    layer.nearest_rounding = ROUNDING[how.nearest]
    layer.cubic_coeff = how.cubic
    layer.exclude_outside = how.excludes_outside
    return net.output_of(layer)


_Plan = dict[int, tuple[int, int, float, tuple[float, float]]]


def _plans(
    net: NetworkWriter,
    x: ITensor,
    axes: Sequence[int],
    factors: list[float] | None,
    wanted: Sequence[Any] | None,
    roi: Sequence[float] | None,
    how: _Resizing,
) -> _Plan:
    """Of each axis that changes: extents before and after, the scale, and the ends of the region that is read."""
    count = len(axes)
    if len(factors or wanted or ()) != count:
        raise Unsupported(f"scales or sizes for {count} axes", ErrorCode.INVALID_NODE)
    if how.policy == "stretch" and how.mapping != "tf_crop_and_resize":
        known = x._extents or ()
        kept = [known[axis] == want for axis, want in zip(axes, wanted, strict=True)] if wanted is not None else []
        moving = [place for place in range(count) if not (kept[place] if kept else (factors or ())[place] == 1.0)]
        axes = [axes[place] for place in moving]
        factors = [factors[place] for place in moving] if factors else factors
        wanted = [wanted[place] for place in moving] if wanted is not None else None
        roi, count = None, len(axes)
    extents = [x.shape[axis] for axis in axes]
    if any(extent < 0 for extent in extents) or any(not isinstance(size, (int, float)) for size in wanted or ()):
        raise Unsupported("this kind of Resize of a dynamic extent", ErrorCode.UNSUPPORTED_NODE_DYNAMIC)
    if wanted is not None:
        scales = [size / extent for size, extent in zip(wanted, extents, strict=True)]
        sizes = [int(size) for size in wanted]
        if how.policy != "stretch":
            common = min(scales) if how.policy == "not_larger" else max(scales)
            scales = [common] * count
            sizes = [math.floor(common * extent + 0.5) for extent in extents]
    else:
        scales = list(factors or ())
        sizes = [math.floor(scale * extent) for scale, extent in zip(scales, extents, strict=True)]
    if how.mapping == "tf_crop_and_resize" and roi and wanted is None:
        ends = list(zip(roi[:count], roi[count:], strict=False))
        sizes = [
            math.floor(extent * (end - start) * scale)
            for extent, scale, (start, end) in zip(extents, scales, ends, strict=True)
        ]
    regions = [(0.0, 1.0)] * count if not roi else list(zip(roi[:count], roi[count:], strict=False))
    return {
        axis: (extent, size, scale, region)
        for axis, extent, size, scale, region in zip(axes, extents, sizes, scales, regions, strict=True)
        if (extent, scale) != (size, 1.0) or how.mapping == "tf_crop_and_resize"
    }


def _places(have: int, want: int, scale: float, region: tuple[float, float], mapping: str) -> np.ndarray:
    """Where the elements of the output lie in the input."""
    steps = np.arange(want, dtype=np.float64)
    if mapping == "align_corners":
        # ONNX's length of the output is what the scale makes of it, before rounding
        return np.zeros(want) if want == 1 else steps * (have - 1) / (scale * have - 1)
    if mapping == "asymmetric":
        return steps / scale
    if mapping == "pytorch_half_pixel" and want == 1:
        return np.zeros(1)
    if mapping == "tf_half_pixel_for_nn":
        return (steps + 0.5) / scale
    if mapping == "tf_crop_and_resize":
        start, end = region
        if want > 1:
            return start * (have - 1) + steps * (end - start) * (have - 1) / (want - 1)
        return np.full(1, 0.5 * (start + end) * (have - 1))
    if mapping == "half_pixel_symmetric":
        adjustment = want / (scale * have)
        return (steps + 0.5) / scale - 0.5 + have / 2 * (1 - adjustment)
    if mapping in ("half_pixel", "pytorch_half_pixel"):
        return (steps + 0.5) / scale - 0.5
    raise Unsupported(f"coordinate_transformation_mode {mapping!r}", ErrorCode.UNSUPPORTED_NODE_ATTR)


def _axis_weights(
    have: int, want: int, scale: float, region: tuple[float, float], how: _Resizing
) -> tuple[np.ndarray, np.ndarray]:
    """A matrix (want, have) that resizes an axis, and what is added to each output, (want,)."""
    places = _places(have, want, scale, region, how.mapping)
    matrix = np.zeros((want, have))
    shift = np.zeros(want)
    for row, place in enumerate(places):
        if how.mapping == "tf_crop_and_resize" and not 0 <= place <= have - 1:
            shift[row] = how.outside
            continue
        taps, weights = _taps(place, min(scale, 1.0) if how.antialiases else 1.0, how)
        inside = (taps >= 0) & (taps < have)
        if how.excludes_outside:
            weights = np.where(inside, weights, 0.0)
            weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(taps, 0, have - 1), weights)
    return matrix.astype(np.float32), shift.astype(np.float32)


def _taps(place: float, scale: float, how: _Resizing) -> tuple[np.ndarray, np.ndarray]:
    """Indices that an output reads and their weights; a scale below 1 widens the filter."""
    if how.mode == "nearest":
        rounded = {
            "floor": math.floor,
            "ceil": math.ceil,
            "round_prefer_floor": lambda value: math.ceil(value - 0.5),
            "round_prefer_ceil": lambda value: math.floor(value + 0.5),
        }[how.nearest](place)
        return np.array([rounded]), np.ones(1)
    reach = (1 if how.mode == "linear" else 2) / scale
    taps = np.arange(math.floor(place - reach) + 1, math.ceil(place + reach) + (place == math.floor(place)))
    distance = np.abs((taps - place) * scale)
    a = how.cubic
    if how.mode == "linear":
        weights = np.maximum(1 - distance, 0)
    else:
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    return taps, weights / weights.sum()


def _apply_axis(net: NetworkWriter, x: ITensor, axis: int, matrix: np.ndarray, shift: np.ndarray) -> ITensor:
    """The product of a matrix with an axis of a tensor."""
    rank = net.rank(x)
    moved = [*(place for place in range(rank) if place != axis), axis]
    front = net.transpose(x, moved)
    weights = net.constant(matrix, DataType.FLOAT)
    if rank == 1:
        front = net.unsqueeze(front, [0])
    product = net.matmul(front, weights, (False, True))
    if shift.any():
        product = net.binary(product, net.constant(shift, DataType.FLOAT), Op.SUM)
    if rank == 1:
        return net.squeeze(product, [0])
    return net.transpose(product, [moved.index(place) for place in range(rank)])


_GRID_MODES: Final = {**MODES, "bilinear": InterpolationMode.LINEAR, "bicubic": InterpolationMode.CUBIC}
GRID_PADDING: Final = {"zeros": SampleMode.FILL, "border": SampleMode.CLAMP, "reflection": SampleMode.REFLECT}


@operator("GridSample", since=16)
def grid_sample(
    net: NetworkWriter,
    x: ITensor,
    grid: ITensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> ITensor:
    """GridSample(X, grid; align_corners, mode, padding_mode) -> Y"""
    if mode not in _GRID_MODES or padding_mode not in GRID_PADDING:
        raise Unsupported(f"GridSample with {mode!r}, {padding_mode!r}", ErrorCode.UNSUPPORTED_NODE_ATTR)
    return net.output(
        net.network.add_grid_sample(x, net.cast(grid, x.dtype)),
        interpolation_mode=_GRID_MODES[mode],
        align_corners=bool(align_corners),
        sample_mode=GRID_PADDING[padding_mode],
    )


# --- RoiAlign --------------------------------------------------------------------------------------


@operator("RoiAlign", since=10, attributes=("mode", "output_height", "output_width", "sampling_ratio", "spatial_scale"))
def roi_align_10(net: NetworkWriter, x: ITensor, rois: ITensor, batch_indices: ITensor, **given: Any) -> ITensor:
    """RoiAlign(X, rois, batch_indices; mode, output_height, ...) -> Y, half a pixel off"""
    return roi_align(net, x, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", **given)


@operator("RoiAlign", since=16)
def roi_align(
    net: NetworkWriter,
    x: ITensor,
    rois: ITensor,
    batch_indices: ITensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> ITensor:
    """RoiAlign(X, rois, batch_indices; coordinate_transformation_mode, mode, output_height, ...) -> Y

    Samples are products of the image with two matrices of weights per box, one for rows and one for columns. A
    maximum is over the four weighted corners of the samples, as ONNX defines it.
    """
    if sampling_ratio < 1:
        raise Unsupported(
            "RoiAlign with sampling_ratio = 0, where the number of samples depends on the boxes",
            ErrorCode.UNSUPPORTED_NODE_ATTR,
        )
    if mode not in ("avg", "max"):
        raise Unsupported(f"RoiAlign with mode {mode!r}", ErrorCode.UNSUPPORTED_NODE_ATTR)
    for what, operand, rank in (("X", x, 4), ("rois", rois, 2), ("batch_indices", batch_indices, 1)):
        net.require_rank(operand, rank, what)
    if min(output_height, output_width) < 1:
        raise Unsupported(f"RoiAlign to {output_height} x {output_width}", ErrorCode.INVALID_NODE)
    kind = x.dtype
    image = net.gather(net.cast(x, DataType.FLOAT), net.index_dtype(batch_indices), 0)  # (R, C, H, W)
    boxes = net.with_number(net.cast(rois, DataType.FLOAT), spatial_scale, Op.PROD)
    is_half = coordinate_transformation_mode == "half_pixel"
    if is_half:
        boxes = net.with_number(boxes, -0.5, Op.SUM)
    height, width = net.extents(image)[2:]
    rows = _samples(net, boxes, 1, output_height, sampling_ratio, height, is_half)
    columns = _samples(net, boxes, 0, output_width, sampling_ratio, width, is_half)
    if mode == "max":
        return net.cast(_greatest_corners(net, image, rows, columns, output_height, output_width), kind)
    weights = [net.binary(low, high, Op.SUM) for low, high in (rows, columns)]  # (R, samples, H or W)
    sampled = net.matmul(
        net.matmul(net.unsqueeze(weights[0], [1]), image), net.unsqueeze(weights[1], [1]), (False, True)
    )
    count: list[Extent] = net.extents(sampled)[:2]
    ratio = sampling_ratio
    split = net.reshape(sampled, [*count, output_height, ratio, output_width, ratio])
    return net.cast(net.reduce(split, ReduceOperation.AVG, [3, 5], False), kind)


def _samples(
    net: NetworkWriter, boxes: ITensor, first: int, bins: int, ratio: int, extent: Extent, is_half: bool
) -> tuple[ITensor, ITensor]:
    """Weights of the neighbours below and above of each sample along one axis, each (R, bins * ratio, extent)."""
    start, end = (net.narrow(boxes, 1, place, 1) for place in (first, first + 2))  # (R, 1)
    length = net.binary(end, start, Op.SUB)
    if not is_half:
        length = net.with_number(length, 1.0, Op.MAX)
    net.take_room(bins * ratio, "RoiAlign")
    offsets = (np.arange(bins * ratio, dtype=np.float32) + 0.5) / (bins * ratio)
    places = net.binary(start, net.binary(length, net.constant(offsets[None], DataType.FLOAT), Op.PROD), Op.SUM)
    size = net.cast(net.reshape(net.as_tensor(extent), (1, 1)), DataType.FLOAT)
    inside = net.binary(
        net.logical_not(net.with_number(places, -1.0, Op.LESS)),
        net.logical_not(net.binary(places, size, Op.GREATER)),
        Op.AND,
    )
    top = net.with_number(size, -1.0, Op.SUM)
    clamped = net.binary(net.with_number(places, 0.0, Op.MAX), top, Op.MIN)
    low = net.unary(clamped, UnaryOperation.FLOOR)
    high = net.binary(net.with_number(low, 1.0, Op.SUM), top, Op.MIN)
    share = net.binary(clamped, low, Op.SUB)
    grid = net.unsqueeze(net.cast(ramp(net, extent), DataType.FLOAT), [0, 1])
    kept = net.cast(net.unsqueeze(inside, [2]), DataType.FLOAT)
    weights = []
    for place, weight in ((low, net.binary(net.scalar_like(1, share), share, Op.SUB)), (high, share)):
        hit = net.cast(net.binary(net.unsqueeze(place, [2]), grid, Op.EQUAL), DataType.FLOAT)
        weights.append(net.binary(net.binary(hit, net.unsqueeze(weight, [2]), Op.PROD), kept, Op.PROD))
    return weights[0], weights[1]


def _greatest_corners(
    net: NetworkWriter,
    image: ITensor,
    rows: tuple[ITensor, ITensor],
    columns: tuple[ITensor, ITensor],
    height: int,
    width: int,
) -> ITensor:
    ratio = rows[0].shape[1] // height
    best: ITensor | None = None
    for vertical in rows:
        strip = net.matmul(net.unsqueeze(vertical, [1]), image)
        for horizontal in columns:
            corner = net.matmul(strip, net.unsqueeze(horizontal, [1]), (False, True))
            best = corner if best is None else net.binary(best, corner, Op.MAX)
    assert best is not None
    split = net.reshape(best, [*net.extents(best)[:2], height, ratio, width, ratio])
    return net.reduce(split, ReduceOperation.MAX, [3, 5], False)
