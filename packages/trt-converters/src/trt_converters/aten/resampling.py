"""Resizing by nearest, linear and cubic interpolation, with and without antialiasing; sampling at coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from trt_converters.aten.products import matrix_multiply, multiply_axis
from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, Size, dtype_of, rank_of
from trt_converters.layers import (
    binary,
    cast,
    dimension,
    gather,
    greater_equal,
    index_range,
    reduce,
    reshape,
    select,
    shape_vector,
    unary,
    unsqueeze,
)
from trt_converters.layers.pointwise import polynomial
from trt_converters.registry import convert_each, converter
from trt_core import Reason, Verdict, provider_version, trt
from trt_core.dtypes import FLOATS
from trt_core.sizes.expressions import extent_of, is_same_size

aten = torch.ops.aten

EXACT_FACTORS: Final = 40
"""Up to this whole factor PyTorch's nearest neighbor is always the exact one."""


def operator_of(call: Call) -> str:
    """Returns the operator's name without namespace and overload."""
    return str(call.node.target).split(".")[1]


def _input(call: Call) -> torch.Tensor:
    return call.tensor("self" if "self" in call.arguments else "input")


def ratios(call: Call) -> list[float | None]:
    """Returns the scale that PyTorch samples with, per spatial axis: input over output, None where extents decide."""
    arguments = call.arguments
    given: Sequence[float | None]
    if "scale_factors" in arguments:
        given = arguments["scale_factors"] or [None] * (_input(call).dim() - 2)
    else:
        given = [arguments[name] for name in ("scales_d", "scales_h", "scales_w", "scales") if name in arguments]
    return [None if scale is None or scale <= 0 else float(scale) for scale in given]


def follows_extents(call: Call) -> bool:
    """Whether the extents alone say where samples are taken, which is all that a resize layer is told."""
    if call.arguments.get("align_corners"):
        return True
    pairs = zip(ratios(call), _input(call).shape[2:], call.result.shape[2:], strict=True)
    return all(
        scale is None
        or (scale == int(scale) and scale >= 1)
        or (isinstance(old, int) and isinstance(new, int) and old * scale == new)
        for scale, old, new in pairs
    )


def fits_layer(call: Call) -> bool:
    """Whether one resize layer says exactly what PyTorch computes."""
    name = operator_of(call)
    if name.endswith("_aa") or not follows_extents(call):
        return False
    if "nearest" not in name:
        return True
    if _input(call).dtype not in FLOATS:
        return False
    # elsewhere the layer may round its coordinates in another way than PyTorch
    pairs = zip(_input(call).shape[2:], call.result.shape[2:], ratios(call), strict=True)
    return all(_repeats_exactly(*pair) for pair in pairs)


def _repeats_exactly(old: Size, new: Size, scale: float | None) -> bool:
    """Whether PyTorch, which multiplies by a reciprocal in float32, repeats every element equally often."""
    if isinstance(old, int) and isinstance(new, int):
        return new % old == 0 and new // old <= EXACT_FACTORS
    return scale is None or scale <= EXACT_FACTORS


def keeps_equal_axes(call: Call) -> bool:
    """Whether PyTorch's kernel leaves an axis alone that a factor just above 1 gives no further sample."""
    name = operator_of(call)
    return "linear" in name or name.endswith("_aa") or name == "upsample_nearest2d"


def known_extents(call: Call) -> Verdict | None:
    """Refuses extents that no layer can compute."""
    unsaid = [extent for extent in call.result.shape[2:] if extent_of(extent) is None]
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"no layer computes the extent {unsaid[0]}") if unsaid else None


CHECKS = (dtypes("self", FLOATS), known_extents)
VECTOR_CHECKS = (dtypes("input", FLOATS), known_extents)


def resample(ctx: ConversionContext, value: Operand) -> Any:
    """Resizes the spatial axes of (N, C, *spatial) as the node being converted says."""
    if fits_layer(ctx.call):
        return _resize_layer(ctx, value)
    known = all(isinstance(extent, int) for extent in (*_input(ctx.call).shape[2:], *ctx.result_shape[2:]))
    if "nearest" in operator_of(ctx.call):
        return _pick(ctx, value) if known else _pick_by_layers(ctx, value)
    return _weigh(ctx, value) if known else _weigh_by_layers(ctx, value)


def _resize_layer(ctx: ConversionContext, value: Operand) -> Any:
    name, dtype = operator_of(ctx.call), dtype_of(value)
    if dtype is torch.bfloat16:  # not every version of the layer has the type
        value = cast(ctx, value, torch.float32)
    layer = ctx.own(ctx.network.add_resize(ctx.tensor(value)))
    align = bool(ctx.call.arguments.get("align_corners"))
    transform = trt.ResizeCoordinateTransformation
    if "nearest" in name:
        exact = "exact" in name
        layer.resize_mode = trt.InterpolationMode.NEAREST
        layer.coordinate_transformation = transform.HALF_PIXEL if exact else transform.ASYMMETRIC
        layer.nearest_rounding = trt.ResizeRoundMode.HALF_UP if exact else trt.ResizeRoundMode.FLOOR
    else:
        cubic = "bicubic" in name
        layer.resize_mode = trt.InterpolationMode.CUBIC if cubic else trt.InterpolationMode.LINEAR
        layer.coordinate_transformation = transform.ALIGN_CORNERS if align else transform.HALF_PIXEL
        if align:
            layer.selector_for_single_pixel = trt.ResizeSelector.UPPER
        if cubic:
            layer.cubic_coeff = -0.75
    shape = ctx.result_shape
    if all(isinstance(extent, int) for extent in shape):
        layer.shape = tuple(shape)
    else:
        layer.set_input(1, ctx.tensor(shape_vector(ctx, shape)))
    return cast(ctx, layer.get_output(0), dtype)


def axis_probe(call: Call, axis: int, probe: torch.Tensor) -> torch.Tensor:
    """Runs the node's own operator along one spatial axis of a probe, and leaves its other spatial axes as they are.

    Those have extent 2: PyTorch's antialiasing kernel is wrong for extent 1.

    Args:
        call: The call.
        axis: Number of the spatial axis.
        probe: (rows, extent of the axis).

    Returns:
        The samples of each row: (rows, samples).
    """
    spatial = _input(call).dim() - 2
    shape, size = [2] * spatial, [2] * spatial
    shape[axis], size[axis] = probe.shape[-1], int(call.result.shape[2 + axis])
    scales: list[float | None] = [None] * spatial
    scales[axis] = ratios(call)[axis]
    options = {} if "align_corners" not in call.arguments else {"align_corners": call["align_corners"]}
    packet = getattr(aten, operator_of(call))
    narrow = probe.reshape(-1, 1, *(probe.shape[-1] if i == axis else 1 for i in range(spatial)))
    found: torch.Tensor = packet.default(narrow.expand(-1, -1, *shape).contiguous(), size, *options.values(), *scales)
    return found.movedim(2 + axis, -1).reshape(probe.shape[0], -1, size[axis])[:, 0]


def _pick(ctx: ConversionContext, value: Operand) -> Any:
    """Nearest neighbors at positions that PyTorch itself computed."""
    for axis, (old, new) in enumerate(zip(_input(ctx.call).shape[2:], ctx.result_shape[2:], strict=True)):
        positions = axis_probe(ctx.call, axis, torch.arange(int(old), dtype=torch.float32).reshape(1, -1))
        indices = positions.reshape(-1).to(torch.int64)
        if old != new or not torch.equal(indices, torch.arange(int(old))):
            value = gather(ctx, value, indices, 2 + axis)
    return value


def _weigh(ctx: ConversionContext, value: Operand) -> Any:
    """Interpolation as one matrix product per axis, with weights that PyTorch itself computed."""
    dtype = dtype_of(value)
    value = cast(ctx, value, torch.float32)
    for axis, old in enumerate(_input(ctx.call).shape[2:]):
        weights = axis_probe(ctx.call, axis, torch.eye(int(old)))  # row i: the weight of element i in every sample
        if weights.shape[0] == weights.shape[1] and torch.equal(weights, torch.eye(int(old))):
            continue
        value = multiply_axis(ctx, value, 2 + axis, weights)
    return cast(ctx, value, dtype)


# Where extents vary, samples are placed by layers: sample i of an axis stands at i times the step of the axis.


def _step(ctx: ConversionContext, axis: int) -> Operand:
    """Returns how many elements lie between two samples of a spatial axis, float32; rounded as PyTorch rounds it."""
    given = ratios(ctx.call)[axis]
    old, new = _input(ctx.call).shape[2 + axis], ctx.result_shape[2 + axis]
    if ctx.call.arguments.get("align_corners"):
        last = [binary(ctx, "SUB", cast(ctx, size, torch.float32), 1.0) for size in (old, new)]
        return binary(ctx, "DIV", last[0], binary(ctx, "MAX", last[1], 1.0))
    if given is None:
        return binary(ctx, "DIV", cast(ctx, old, torch.float32), cast(ctx, new, torch.float32))
    step = torch.tensor(1.0 / given, dtype=torch.float32)
    if not (1 <= given < 2 and keeps_equal_axes(ctx.call)):  # another factor changes every size
        return step
    unchanged = binary(ctx, "EQUAL", cast(ctx, old, torch.int64), cast(ctx, new, torch.int64))
    return select(ctx, unchanged, torch.ones((), dtype=torch.float32), step)


def _samples(ctx: ConversionContext, axis: int) -> Operand:
    """Returns the numbers of the samples of a spatial axis: (samples,), float32."""
    return cast(ctx, index_range(ctx, ctx.result_shape[2 + axis]), torch.float32)


def _centers(ctx: ConversionContext, axis: int) -> Operand:
    """Returns where the samples of an axis stand, from the middle of its first element: (samples,), float32."""
    samples, step = _samples(ctx, axis), _step(ctx, axis)
    if ctx.call.arguments.get("align_corners"):
        return binary(ctx, "PROD", samples, step)
    return binary(ctx, "SUB", binary(ctx, "PROD", binary(ctx, "SUM", samples, 0.5), step), 0.5)


def _inside(ctx: ConversionContext, places: Operand, value: Operand, axis: int) -> Any:
    """Returns places as int64, those outside of the axis of a value on its first and last element."""
    last = binary(ctx, "SUB", cast(ctx, dimension(ctx, value, 2 + axis), torch.float32), 1.0)
    return cast(ctx, binary(ctx, "MAX", binary(ctx, "MIN", places, last), 0.0), torch.int64)


def _pick_by_layers(ctx: ConversionContext, value: Operand) -> Any:
    for axis, (old, new) in enumerate(zip(_input(ctx.call).shape[2:], ctx.result_shape[2:], strict=True)):
        if is_same_size(new, old) and ratios(ctx.call)[axis] in (None, 1.0):
            continue
        samples, step = _samples(ctx, axis), _step(ctx, axis)
        if "exact" in operator_of(ctx.call):
            samples = binary(ctx, "SUM", samples, 0.5)
        places = unary(ctx, "FLOOR", binary(ctx, "PROD", samples, step))
        value = gather(ctx, value, _inside(ctx, places, value, axis), 2 + axis)
    return value


def _weigh_by_layers(ctx: ConversionContext, value: Operand) -> Any:
    name, dtype = operator_of(ctx.call), dtype_of(value)
    along = _weigh_smoothly if name.endswith("_aa") else _weigh_cubic if "cubic" in name else _weigh_linear
    value = cast(ctx, value, torch.float32)
    for axis, (old, new) in enumerate(zip(_input(ctx.call).shape[2:], ctx.result_shape[2:], strict=True)):
        if not (is_same_size(new, old) and ratios(ctx.call)[axis] in (None, 1.0)):
            value = along(ctx, value, axis)
    return cast(ctx, value, dtype)


def _weigh_linear(ctx: ConversionContext, value: Operand, axis: int) -> Any:
    centers = binary(ctx, "MAX", _centers(ctx, axis), 0.0)
    first = unary(ctx, "FLOOR", centers)
    part = binary(ctx, "SUB", centers, first)
    weights = (binary(ctx, "SUB", 1.0, part), part)
    return _weighed_taps(ctx, value, axis, first, {0: weights[0], 1: weights[1]})


def _weigh_cubic(ctx: ConversionContext, value: Operand, axis: int) -> Any:
    centers = _centers(ctx, axis)
    first = unary(ctx, "FLOOR", centers)
    part = binary(ctx, "SUB", centers, first)
    rest = binary(ctx, "SUB", 1.0, part)
    near, far = _CUBIC
    weights = {
        -1: polynomial(ctx, binary(ctx, "SUM", part, 1.0), far),
        0: polynomial(ctx, part, near),
        1: polynomial(ctx, rest, near),
        2: polynomial(ctx, binary(ctx, "SUM", rest, 1.0), far),
    }
    return _weighed_taps(ctx, value, axis, first, weights)


def _weighed_taps(
    ctx: ConversionContext, value: Operand, axis: int, first: Operand, weights: Mapping[int, Operand]
) -> Any:
    """Sums elements of an axis near to places on it.

    Args:
        ctx: The context.
        value: (N, C, *spatial), float32.
        axis: Number of the spatial axis.
        first: The places, whole numbers: (samples,), float32.
        weights: (samples,) for each distance from the place.
    """
    total: Any = None
    for distance, weight in weights.items():
        places = binary(ctx, "SUM", first, float(distance)) if distance else first
        taps = gather(ctx, value, _inside(ctx, places, value, axis), 2 + axis)
        behind = rank_of(value) - 3 - axis
        term = binary(ctx, "PROD", taps, unsqueeze(ctx, weight, range(1, 1 + behind)))
        total = term if total is None else binary(ctx, "SUM", total, term)
    return total


def _weigh_smoothly(ctx: ConversionContext, value: Operand, axis: int) -> Any:
    """Weighs the elements around each sample by a triangle, or a cubic, as wide as the samples are apart."""
    cubic = "cubic" in operator_of(ctx.call)
    step = _step(ctx, axis)
    wide = binary(ctx, "MAX", step, 1.0)
    reach = binary(ctx, "PROD", wide, 2.0 if cubic else 1.0)
    middle = unsqueeze(ctx, binary(ctx, "SUM", _centers(ctx, axis), 0.5), (0,))
    edges = (binary(ctx, operation, middle, reach) for operation in ("SUB", "SUM"))
    first, end = (unary(ctx, "FLOOR", binary(ctx, "SUM", edge, 0.5)) for edge in edges)
    places = unsqueeze(ctx, cast(ctx, index_range(ctx, dimension(ctx, value, 2 + axis)), torch.float32), (1,))
    inside = binary(ctx, "AND", greater_equal(ctx, places, first), binary(ctx, "LESS", places, end))
    away = binary(ctx, "DIV", binary(ctx, "SUM", binary(ctx, "SUB", places, middle), 0.5), wide)
    away = unary(ctx, "ABS", away)
    if cubic:
        near, far = (polynomial(ctx, away, coefficients) for coefficients in _CUBIC_SMOOTH)
        weights = select(ctx, binary(ctx, "LESS", away, 1.0), near, far)
        weights = select(ctx, binary(ctx, "LESS", away, 2.0), weights, 0.0)
    else:
        weights = binary(ctx, "MAX", binary(ctx, "SUB", 1.0, away), 0.0)
    weights = select(ctx, inside, weights, 0.0)
    weights = binary(ctx, "DIV", weights, reduce(ctx, "SUM", weights, (0,), True))
    return multiply_axis(ctx, value, 2 + axis, weights)


def _cubic_polynomials(sharpness: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the cubic kernel for distances up to 1 and from 1 to 2, coefficients from the highest power down."""
    return (sharpness + 2, -(sharpness + 3), 0.0, 1.0), (sharpness, -5 * sharpness, 8 * sharpness, -4 * sharpness)


_CUBIC: Final = _cubic_polynomials(-0.75)
_CUBIC_SMOOTH: Final = _cubic_polynomials(-0.5)


NEAREST_CHECKS = (known_extents,)


_NEAREST: Final = [
    getattr(aten, f"{kind}{rank}d") for kind in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)
]
_INTERPOLATED: Final = (
    *(aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d, aten.upsample_bicubic2d),
    *(aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa),
)

# sizes of the result are those of the node, and the sources' places follow from it
convert_each(
    {
        tuple(packet.default for packet in _NEAREST): lambda ctx, self, **_: resample(ctx, self),
        tuple(packet.vec for packet in _NEAREST): lambda ctx, input, **_: resample(ctx, input),
    },
    checks=NEAREST_CHECKS,
)
convert_each(
    {tuple(packet.default for packet in _INTERPOLATED): lambda ctx, self, **_: resample(ctx, self)}, checks=CHECKS
)
convert_each(
    {tuple(packet.vec for packet in _INTERPOLATED): lambda ctx, input, **_: resample(ctx, input)}, checks=VECTOR_CHECKS
)


# Sampling at coordinates --------------------------------------------------------------------------------------------


INTERPOLATION: Final = ("LINEAR", "NEAREST", "CUBIC")
PADDING: Final = ("FILL", "CLAMP", "REFLECT")
VOLUMES: Final = (11, 2)
"""First version whose layer samples volumes."""


def known_rank(call: Call) -> Verdict | None:
    """Refuses volumes where the layer samples images only, and cubic interpolation of them."""
    if call.tensor("input").dim() == 4:
        return None
    if provider_version() < VOLUMES:
        return Verdict.refuse(Reason.PROVIDER_VERSION, "sampling volumes needs TensorRT 11.2 or newer")
    if call["interpolation_mode"] == 2:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "cubic interpolation of volumes")
    return None


@converter(
    aten.grid_sampler_2d.default,
    aten.grid_sampler_3d.default,
    aten.grid_sampler.default,
    checks=(dtypes("input", FLOATS), known_rank),
)
def aten_grid_sampler_2d(
    ctx: ConversionContext,
    input: Operand,
    grid: Operand,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Any:
    """grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor"""  # noqa: E501
    dtype = dtype_of(input)
    if dtype is not torch.float32:  # half precision moves the coordinates by whole pixels
        input, grid = cast(ctx, input, torch.float32), cast(ctx, grid, torch.float32)
    sampled = ctx.output(
        ctx.network.add_grid_sample(ctx.tensor(input), ctx.tensor(grid)),
        interpolation_mode=getattr(trt.InterpolationMode, INTERPOLATION[interpolation_mode]),
        sample_mode=getattr(trt.SampleMode, PADDING[padding_mode]),
        align_corners=align_corners,
    )
    return cast(ctx, sampled, dtype)


@converter(aten.affine_grid_generator.default, checks=dtypes("theta", FLOATS))
def aten_affine_grid_generator(
    ctx: ConversionContext, theta: Operand, size: Sequence[Size], align_corners: bool
) -> Any:
    """affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor"""
    if not all(isinstance(extent, int) for extent in size[2:]):
        return _varying_grid(ctx, theta, size[2:], align_corners)
    dtype = dtype_of(theta)
    axes = []
    for extent in size[2:]:
        count = int(extent)
        ends = torch.linspace(-1, 1, count) if count > 1 else torch.zeros(1)
        axes.append(ends if align_corners else ends * (count - 1) / count)
    mesh = torch.meshgrid(*axes, indexing="ij")
    # coordinates are listed from the innermost axis to the outermost, and one for the translation
    base = torch.stack([*(part.reshape(-1) for part in reversed(mesh)), torch.ones(mesh[0].numel())], 1)
    moved = matrix_multiply(ctx, base.to(dtype).unsqueeze(0), theta, transpose_right=True)
    return reshape(ctx, moved, ctx.result_shape)


def _varying_grid(ctx: ConversionContext, theta: Operand, extents: Sequence[Size], align_corners: bool) -> Any:
    """The sum of the translation and of the columns of a matrix times the coordinates of an axis each."""
    dtype, rank = dtype_of(theta), len(extents)
    columns = [gather(ctx, cast(ctx, theta, torch.float32), torch.tensor(place), 2) for place in range(rank + 1)]
    # (N, 1, ..., 1, rank)
    total, *factors = [unsqueeze(ctx, columns[place], range(1, 1 + rank)) for place in (rank, *range(rank))]
    for place, factor in enumerate(factors):  # the first coordinate counts along the innermost axis
        axis = rank - 1 - place
        line = _from_minus_one(ctx, extents[axis], align_corners)
        spread = unsqueeze(ctx, line, (0, *range(1, 1 + axis), *range(2 + axis, 2 + rank)))
        total = binary(ctx, "SUM", total, binary(ctx, "PROD", spread, factor))
    return cast(ctx, total, dtype)


def _from_minus_one(ctx: ConversionContext, extent: Size, align_corners: bool) -> Operand:
    """Returns the coordinates of an axis, from -1 to 1: (extent,), float32."""
    places, count = cast(ctx, index_range(ctx, extent), torch.float32), cast(ctx, extent, torch.float32)
    last = binary(ctx, "SUB", count, 1.0)
    doubled = binary(ctx, "SUB", binary(ctx, "PROD", places, 2.0), last)
    if not align_corners:
        return binary(ctx, "DIV", doubled, count)
    # one element stands in the middle
    return binary(ctx, "DIV", doubled, binary(ctx, "MAX", last, 1.0))
