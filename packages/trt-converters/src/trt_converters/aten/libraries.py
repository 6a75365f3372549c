"""Operators that torchvision and transformers define, and products by group as mixtures of experts use them."""

from __future__ import annotations

import sys
from typing import Any, Final

import torch

from trt_converters.aten.products import matrix_multiply
from trt_converters.aten.resampling import aten_grid_sampler_2d
from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of, shape_of
from trt_converters.layers import (
    binary,
    cast,
    combine,
    concatenate,
    dimension,
    expand,
    gather,
    greater_equal,
    index_range,
    less_equal,
    permute,
    reduce,
    reshape,
    select,
    sizes_of,
    slice_axis,
    squeeze,
    unary,
    unsqueeze,
)
from trt_converters.layers.gathering import scatter_nd
from trt_converters.registry import converter
from trt_core import Provider, Reason, Verdict, current_provider, trt
from trt_core.dtypes import FLOATS
from trt_core.sizes.ranges import largest_extent

aten = torch.ops.aten

GATHER_LIMIT: Final = 1 << 22
"""Most elements that matrices may have when every row gets a copy of its own: a few rows, as in token by token work."""

EXPERT_LIMIT: Final = 64
"""Most groups that are multiplied one by one: each of them is a handful of layers."""


def grouped_rows(call: Call, rows: str, matrices: str, offsets: str) -> Verdict | None:
    """Refuses what is not rows in groups, and more groups than an engine should have layers for."""
    left, right = call.tensor(rows), call.tensor(matrices)
    if call[offsets] is None:
        return None if left.dim() == right.dim() == 3 else _other_form(left, right)
    if (left.dim(), right.dim()) != (2, 3):
        return _other_form(left, right)
    count = right.shape[0]
    if not isinstance(count, int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"the number of groups, {count}, is symbolic")
    if _copies_matrices() and count > EXPERT_LIMIT and not _fits_gather(left, right):
        return Verdict.refuse(
            Reason.TENSORRT_LIMIT, f"{count} groups, which would be as many products; at most {EXPERT_LIMIT}"
        )
    return None


def _other_form(left: torch.Tensor, right: torch.Tensor) -> Verdict:
    ranks = f"operands have ranks {left.dim()} and {right.dim()}"
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"{ranks}: only rows in groups, and batches, are converted")


def _copies_matrices() -> bool:
    """Whether engines copy what is gathered; those of trt-portable read the matrices of rows where they are."""
    return current_provider() is not Provider.PORTABLE


def _fits_gather(rows: torch.Tensor, matrices: torch.Tensor) -> bool:
    count, *extents = rows.shape[0], *matrices.shape[1:]
    return all(isinstance(extent, int) for extent in (count, *extents)) and (
        count * extents[0] * extents[1] <= GATHER_LIMIT
    )


def grouped_product(ctx: ConversionContext, rows: Operand, matrices: Operand, offsets: Operand) -> Any:
    """Multiplies every row by the matrix of its group.

    Args:
        ctx: The context.
        rows: (S, K), sorted by group.
        matrices: (E, K, N).
        offsets: (E,), integers: where each group ends. Rows beyond the last group give zeros.

    Returns:
        (S, N).
    """
    ends = cast(ctx, offsets, torch.int64)
    places = index_range(ctx, dimension(ctx, rows, 0))
    sizes = (*shape_of(rows)[:1], *shape_of(matrices)[1:])
    is_small = all(extent >= 0 for extent in sizes) and sizes[0] * sizes[1] * sizes[2] <= GATHER_LIMIT
    if is_small or not _copies_matrices():
        return _by_row(ctx, rows, matrices, places, ends)
    return _by_group(ctx, rows, matrices, places, ends)


def _by_row(ctx: ConversionContext, rows: Operand, matrices: Operand, places: Operand, ends: Operand) -> Any:
    """Every row is multiplied by a copy of its matrix, in one product; constants are taken as models store them."""
    count = shape_of(matrices)[0]
    is_turned = isinstance(matrices, torch.Tensor) and not matrices.is_contiguous() and matrices.mT.is_contiguous()
    stored = matrices.mT if is_turned else matrices
    passed = binary(ctx, "LESS", unsqueeze(ctx, places, (1,)), unsqueeze(ctx, ends, (0,)))  # (S, E): ends after row
    group = binary(ctx, "SUB", count, reduce(ctx, "SUM", cast(ctx, passed, torch.int64), (1,), False), "group")
    chosen = gather(ctx, stored, binary(ctx, "MIN", group, count - 1, "group"), 0)
    product = squeeze(ctx, matrix_multiply(ctx, unsqueeze(ctx, rows, (1,)), chosen, is_turned), (1,))
    belongs = unsqueeze(ctx, binary(ctx, "LESS", group, count), (1,))
    return select(ctx, belongs, product, torch.zeros((), dtype=dtype_of(product)))


def _by_group(ctx: ConversionContext, rows: Operand, matrices: Operand, places: Operand, ends: Operand) -> Any:
    """The rows of each group are found, multiplied, and put back: no product is computed that is not needed."""
    count, _, width = shape_of(matrices)
    zero = torch.zeros((1, 1), dtype=dtype_of(rows))
    result = expand(ctx, zero, [dimension(ctx, rows, 0), width])
    start: Any = torch.zeros(1, dtype=torch.int64)
    for index in range(count):
        end = slice_axis(ctx, ends, 0, index, 1)
        before = binary(ctx, "LESS", places, end)
        inside = binary(ctx, "AND", before, binary(ctx, "GREATER", binary(ctx, "SUM", places, 1), start), "inside")
        found = ctx.output(ctx.network.add_non_zero(ctx.tensor(inside), trt.DataType.INT64), "rows")
        members = squeeze(ctx, found, (0,))
        matrix = squeeze(ctx, slice_axis(ctx, matrices, 0, index, 1), (0,))
        product = matrix_multiply(ctx, gather(ctx, rows, members, 0), matrix)
        result = scatter_nd(ctx, result, unsqueeze(ctx, members, (1,)), product)
        start = end
    return result


def _grouped_mm_form(call: Call) -> Verdict | None:
    """Refuses a bias, another type of the result, and groups of other forms than rows of a matrix."""
    if call["bias"] is not None:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "bias is given")
    if call["out_dtype"] not in (None, call.tensor("self").dtype):
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"out_dtype={call['out_dtype']}")
    return grouped_rows(call, "self", "mat2", "offs")


@converter(aten._grouped_mm.default, checks=(dtypes("self", FLOATS), _grouped_mm_form))
def aten__grouped_mm(
    ctx: ConversionContext,
    self: Operand,
    mat2: Operand,
    offs: Operand | None,
    bias: Operand | None,
    out_dtype: torch.dtype | None,
) -> Any:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"""  # noqa: E501 - the schema
    if offs is None:
        assert rank_of(self) == 3
        return matrix_multiply(ctx, self, mat2)
    return grouped_product(ctx, self, mat2, offs)


def transformers_grouped_mm_fallback(ctx: ConversionContext, input: Operand, weight: Operand, offs: Operand) -> Any:
    """grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"""
    return grouped_product(ctx, input, weight, offs)


def _fallback_form(call: Call) -> Verdict | None:
    """Refuses what is not rows in groups, and more groups than an engine should have layers for."""
    return grouped_rows(call, "input", "weight", "offs")


BOX_LIMIT: Final = 5000
"""Most boxes that the NMS layer looks at."""


def box_limit(call: Call) -> Verdict | None:
    """Refuses more boxes than the layer looks at."""
    count = call.tensor("dets").shape[0]
    most = largest_extent(count)
    if most is None:
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{count} boxes may be more than {BOX_LIMIT}")
    if most > BOX_LIMIT:
        up_to = "" if isinstance(count, int) else "up to "
        return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{up_to}{most} boxes; the layer looks at {BOX_LIMIT}")
    return None


def torchvision_nms(ctx: ConversionContext, dets: Operand, scores: Operand, iou_threshold: float) -> Any:
    """nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"""
    boxes, weights = unsqueeze(ctx, dets, (0,)), unsqueeze(ctx, scores, (0, 2))
    known = shape_of(dets)[0]
    count = known if known > 0 else BOX_LIMIT
    layer = ctx.own(
        ctx.network.add_nms(
            ctx.tensor(boxes),
            ctx.tensor(weights),
            ctx.tensor(torch.tensor(count, dtype=torch.int32)),
            trt.DataType.INT64,
        )
    )
    layer.bounding_box_format = trt.BoundingBoxFormat.CORNER_PAIRS
    layer.topk_box_limit = count
    layer.set_input(3, ctx.tensor(torch.tensor(float(iou_threshold))))
    layer.set_input(4, ctx.tensor(torch.tensor(torch.finfo(torch.float32).min)))  # scores of any sign take part
    chosen = layer.get_output(0)  # (n, 3): batch, class, box
    return squeeze(ctx, slice_axis(ctx, chosen, 1, 2, 1), (1,))


def _has_samples(call: Call) -> Verdict | None:
    """Refuses as many samples as a region has pixels."""
    if call["sampling_ratio"] > 0:
        return None
    why = (
        "no layer averages samples of regions whose size depends on data; with a `sampling_ratio` their number is known"
    )
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, why)


def torchvision_roi_align(
    ctx: ConversionContext,
    input: Operand,
    rois: Operand,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    """roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"""  # noqa: E501 - the schema
    batch, channels, height, width = sizes_of(ctx, input)
    edges = []
    for place in range(1, 5):
        scaled = binary(ctx, "PROD", cast(ctx, slice_axis(ctx, rois, 1, place, 1), torch.float32), spatial_scale)
        edges.append(binary(ctx, "SUB", scaled, 0.5) if aligned else scaled)
    left, top, right, bottom = edges  # (K, 1)
    rows = _samples_between(ctx, top, bottom, pooled_height * sampling_ratio, aligned)
    columns = _samples_between(ctx, left, right, pooled_width * sampling_ratio, aligned)
    pixels = reshape(ctx, permute(ctx, input, (0, 2, 3, 1)), [combine(ctx, "mul", [batch, height, width]), channels])
    first_row = binary(ctx, "PROD", cast(ctx, slice_axis(ctx, rois, 1, 0, 1), torch.int64), height)
    total: Any = None
    for row, row_weight in _neighbours(ctx, rows, height):
        before = binary(ctx, "PROD", binary(ctx, "SUM", first_row, row), width)
        for column, column_weight in _neighbours(ctx, columns, width):
            places = binary(ctx, "SUM", unsqueeze(ctx, before, (2,)), unsqueeze(ctx, column, (1,)))
            weight = binary(ctx, "PROD", unsqueeze(ctx, row_weight, (2,)), unsqueeze(ctx, column_weight, (1,)))
            found = cast(ctx, gather(ctx, pixels, places, 0), torch.float32)  # (K, rows, columns, C)
            part = binary(ctx, "PROD", found, unsqueeze(ctx, weight, (3,)))
            total = part if total is None else binary(ctx, "SUM", total, part)
    cells = [pooled_height, sampling_ratio, pooled_width, sampling_ratio]
    parted = reshape(ctx, total, [dimension(ctx, rois, 0), *cells, channels])
    means = reduce(ctx, "AVG", parted, (2, 4), False)
    return cast(ctx, permute(ctx, means, (0, 3, 1, 2)), dtype_of(input))


def _samples_between(ctx: ConversionContext, start: Operand, end: Operand, count: int, aligned: bool) -> Any:
    """Positions in the middle of equal parts of regions, (K, count); regions from corners are at least a pixel long."""
    extent = binary(ctx, "SUB", end, start)
    if not aligned:
        extent = binary(ctx, "MAX", extent, 1.0)
    middles = (torch.arange(count, dtype=torch.float32) + 0.5).unsqueeze(0) / count
    return binary(ctx, "SUM", start, binary(ctx, "PROD", extent, middles))


def _neighbours(ctx: ConversionContext, positions: Operand, extent: Any) -> list[tuple[Any, Any]]:
    """The pixels before and after positions, with their weights: none where a position is over a pixel outside."""
    count = cast(ctx, extent, torch.float32)
    last = binary(ctx, "SUB", count, 1.0)
    inside = binary(ctx, "AND", greater_equal(ctx, positions, -1.0), less_equal(ctx, positions, count))
    held = binary(ctx, "MIN", binary(ctx, "MAX", positions, 0.0), last)
    before = unary(ctx, "FLOOR", held)
    after = binary(ctx, "MIN", binary(ctx, "SUM", before, 1.0), last)
    share = binary(ctx, "SUB", held, before)
    counted = cast(ctx, inside, torch.float32)
    weights = (binary(ctx, "PROD", counted, binary(ctx, "SUB", 1.0, share)), binary(ctx, "PROD", counted, share))
    return [(cast(ctx, place, torch.int64), weight) for place, weight in zip((before, after), weights, strict=True)]


def torchvision_deform_conv2d(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand,
    offset: Operand,
    mask: Operand,
    bias: Operand,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Any:
    """deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor"""  # noqa: E501 - the schema
    made, depth, kernel_rows, kernel_columns = shape_of(weight)
    window, channels = kernel_rows * kernel_columns, depth * groups
    batch, _, height, width = sizes_of(ctx, input)
    rows, columns = sizes_of(ctx, offset)[2:]
    several = combine(ctx, "mul", [batch, offset_groups])
    # pairs of rows and columns by which each sample of a window is moved
    sizes = [several, kernel_rows, kernel_columns, 2, rows, columns]
    moved = reshape(ctx, cast(ctx, offset, torch.float32), sizes)
    lines = (
        (1, columns, stride_w, pad_w, torch.arange(kernel_columns).reshape(-1, 1, 1) * dilation_w, 0, width),
        (0, rows, stride_h, pad_h, torch.arange(kernel_rows).reshape(-1, 1, 1, 1) * dilation_h, 1, height),
    )
    coordinates = []
    for place, count, stride, padding, within, trailing, extent in lines:
        line = binary(ctx, "PROD", cast(ctx, index_range(ctx, count), torch.float32), float(stride))
        if trailing:
            line = unsqueeze(ctx, line, (1,))
        base = binary(ctx, "SUM", line, within.float() - padding)
        position = binary(ctx, "SUM", squeeze(ctx, slice_axis(ctx, moved, 3, place, 1), (3,)), base)
        # from -1 to 1 between the outer borders of the picture
        doubled = binary(ctx, "SUM", binary(ctx, "PROD", position, 2.0), 1.0)
        share = binary(ctx, "DIV", doubled, cast(ctx, extent, torch.float32))
        coordinates.append(unsqueeze(ctx, binary(ctx, "SUB", share, 1.0), (5,)))
    grid_rows = combine(ctx, "mul", [window, rows])
    grid = reshape(ctx, concatenate(ctx, coordinates, 5), [several, grid_rows, columns, 2])
    depth_of_group = channels // offset_groups
    picture = reshape(ctx, cast(ctx, input, torch.float32), [several, depth_of_group, height, width])
    sampled = aten_grid_sampler_2d(ctx, picture, grid, 0, 0, False)
    if use_mask:
        sampled = reshape(ctx, sampled, [batch, offset_groups, depth_of_group, window, rows, columns])
        masks = reshape(ctx, cast(ctx, mask, torch.float32), [batch, offset_groups, 1, window, rows, columns])
        sampled = binary(ctx, "PROD", sampled, masks)
    inputs, places = depth * window, combine(ctx, "mul", [rows, columns])
    gathered = reshape(ctx, cast(ctx, sampled, dtype_of(input)), [batch, groups, inputs, places])
    matrices = reshape(ctx, weight, [1, groups, made // groups, inputs])
    product = reshape(ctx, matrix_multiply(ctx, matrices, gathered), [batch, made, rows, columns])
    return binary(ctx, "SUM", product, reshape(ctx, bias, [1, made, 1, 1]))


_registered: set[str] = set()


def is_waiting() -> bool:
    """Whether torchvision has been imported since converters were last loaded."""
    return _are_due("torchvision")


def _are_due(module: str) -> bool:
    return module not in _registered and module in sys.modules


def register() -> None:
    """Registers the converters of operators whose modules have been imported: those define them."""
    if _are_due("torchvision"):
        _registered.add("torchvision")
        operators = torch.ops.torchvision
        converter(
            operators.nms.default,
            checks=(dtypes("dets", (torch.float32, torch.float16)), box_limit),
            data_dependent=True,
        )(torchvision_nms)
        converter(operators.roi_align.default, checks=(dtypes("input", FLOATS), dtypes("rois", FLOATS), _has_samples))(
            torchvision_roi_align
        )
        converter(operators.deform_conv2d.default, checks=(dtypes("input", FLOATS), dtypes("weight", FLOATS)))(
            torchvision_deform_conv2d
        )
    if _are_due("transformers.integrations.moe"):
        _registered.add("transformers.integrations.moe")
        converter(torch.ops.transformers.grouped_mm_fallback.default, checks=(dtypes("input", FLOATS), _fallback_form))(
            transformers_grouped_mm_fallback
        )
