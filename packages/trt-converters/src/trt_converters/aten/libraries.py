"""Operators that torchvision and transformers define, and products by group as mixtures of experts use them."""

from __future__ import annotations

import sys
from typing import Any, Final

import torch

from trt_converters.aten.products import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of, shape_of
from trt_converters.layers import (
    binary,
    cast,
    dimension,
    expand,
    gather,
    index_range,
    reduce,
    select,
    slice_axis,
    squeeze,
    unsqueeze,
)
from trt_converters.layers.gathering import scatter_nd
from trt_converters.registry import converter, refuse_each
from trt_core import Provider, Reason, Verdict, current_provider, trt
from trt_core.dtypes import FLOATS

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
    if not isinstance(count, int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{count} boxes may be more than {BOX_LIMIT}")
    if count > BOX_LIMIT:
        return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{count} boxes; the layer looks at {BOX_LIMIT}")
    return None


def torchvision_nms(ctx: ConversionContext, dets: Operand, scores: Operand, iou_threshold: float) -> Any:
    """nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"""
    boxes, weights = unsqueeze(ctx, dets, (0,)), unsqueeze(ctx, scores, (0, 2))
    count = dimension(ctx, dets, 0)
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
        refuse_each(
            Reason.UNSUPPORTED_ARGUMENT,
            "no layer averages samples of regions whose size depends on data",
            operators.roi_align.default,
        )
    if _are_due("transformers.integrations.moe"):
        _registered.add("transformers.integrations.moe")
        converter(torch.ops.transformers.grouped_mm_fallback.default, checks=(dtypes("input", FLOATS), _fallback_form))(
            transformers_grouped_mm_fallback
        )
