"""Searches in sorted sequences, and histograms."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import argument, computable, dtypes, fixed_number, never
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import binary, cast, greater_equal, logical_not, reduce, reshape, select, unary, unsqueeze
from trt_converters.layers.casts import result_type
from trt_converters.layers.extremum import extremum
from trt_converters.layers.gathering import gather_elements
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import INTEGERS

aten = torch.ops.aten

Number = float | int


def _count_before(ctx: ConversionContext, sequence: Operand, values: Operand, right: bool, out_int32: bool) -> Any:
    """Returns how many elements of a sorted sequence stand before each value.

    Args:
        ctx: The context.
        sequence: (..., N), sorted along the last axis, or (N,).
        values: (..., M); any shape when the sequence has rank 1.
        right: Whether elements equal to the value stand before it.
        out_int32: Whether to count in int32 instead of int64.

    Counting what is not larger (or not at least as large) puts NaN behind everything, as PyTorch's search does.
    """
    common = result_type(sequence, values)
    if common is torch.bool:
        common = torch.int32
    rank = rank_of(values)
    if rank_of(sequence) > 1:
        sequence = unsqueeze(ctx, sequence, (rank_of(sequence) - 1,))
    column = unsqueeze(ctx, cast(ctx, values, common), (rank,))
    sequence = cast(ctx, sequence, common)
    behind = binary(ctx, "GREATER", sequence, column) if right else greater_equal(ctx, sequence, column)
    count = cast(ctx, logical_not(ctx, behind), torch.int32 if out_int32 else torch.int64)
    return reduce(ctx, "SUM", count, (rank,), False)


def _room_for_pairs(call: Call) -> Verdict | None:
    """Refuses results of rank 8: comparing pairs needs an axis more."""
    rank = call.result.dim()
    if rank < 8:
        return None
    return Verdict.refuse(
        Reason.UNSUPPORTED_RANK, f"the result has rank {rank}, and comparing pairs needs an axis more"
    )


@converter(aten.searchsorted.Tensor, checks=(computable, _room_for_pairs))
@converter(aten.searchsorted.Scalar, checks=(computable, _room_for_pairs))
def aten_searchsorted(
    ctx: ConversionContext,
    sorted_sequence: Operand,
    self: Operand,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Operand | None,
) -> Any:
    """searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor"""  # noqa: E501 - the schema
    if sorter is not None:
        axis = rank_of(sorted_sequence) - 1
        sorted_sequence = gather_elements(ctx, sorted_sequence, sorter, axis)
    values = self if hasattr(self, "shape") else _number(ctx, self)
    return _count_before(ctx, sorted_sequence, values, right or side == "right", out_int32)


@converter(aten.bucketize.Tensor, aten.bucketize.Scalar, checks=(computable, _room_for_pairs))
def aten_bucketize(ctx: ConversionContext, self: Operand, boundaries: Operand, out_int32: bool, right: bool) -> Any:
    """bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"""
    values = self if hasattr(self, "shape") else _number(ctx, self)
    return _count_before(ctx, boundaries, values, right, out_int32)


def _number(ctx: ConversionContext, value: Number) -> Any:
    return cast(ctx, value, result_type(value))


@converter(
    aten.histc.default,
    checks=(
        dtypes("self", (torch.float32, *INTEGERS)),
        argument("bins", lambda bins: bins <= 1024, "every element is compared with every bin"),
        fixed_number("min", "max"),
    ),
)
def aten_histc(ctx: ConversionContext, self: Operand, bins: int, min: Number, max: Number) -> Any:
    """histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"""
    is_float = dtype_of(self) is torch.float32
    kind = torch.float32 if is_float else torch.int64
    flat = cast(ctx, reshape(ctx, self, [-1]), kind)
    low, high = torch.tensor([min], dtype=kind), torch.tensor([max], dtype=kind)
    if min == max:
        low, high = (extremum(ctx, flat, (0,), True, largest) for largest in (False, True))
        same = binary(ctx, "EQUAL", low, high)
        low = select(ctx, same, binary(ctx, "SUB", low, 1), low)
        high = select(ctx, same, binary(ctx, "SUM", high, 1), high)
    width, above = binary(ctx, "SUB", high, low), binary(ctx, "SUB", flat, low)
    if is_float:
        place = unary(ctx, "FLOOR", binary(ctx, "PROD", binary(ctx, "DIV", above, width), float(bins)))
    else:  # as PyTorch counts integers, on a GPU only
        place = binary(ctx, "FLOOR_DIV", binary(ctx, "PROD", above, bins), width)
    last = torch.tensor([bins - 1], dtype=kind)
    place = select(ctx, binary(ctx, "GREATER", place, last), last, place)
    outside = binary(ctx, "OR", binary(ctx, "LESS", flat, low), binary(ctx, "GREATER", flat, high))
    place = select(ctx, outside, torch.tensor([-1], dtype=kind), place)
    hits = binary(ctx, "EQUAL", unsqueeze(ctx, place, (1,)), torch.arange(bins, dtype=kind))
    return cast(ctx, reduce(ctx, "SUM", cast(ctx, hits, kind), (0,), False), dtype_of(self))


@converter(
    aten.bincount.default,
    checks=never(Reason.DATA_DEPENDENT_SHAPE, "the number of bins depends on the largest element"),
)
def aten_bincount(ctx: ConversionContext, self: Operand, weights: Operand | None, minlength: int) -> Any:
    """bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor"""
    raise ctx.fail("the number of bins depends on the largest element")
