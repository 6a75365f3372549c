"""Bags of embeddings: rows of a table summed, averaged or maximized over segments of the indices."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.aten.segments import sum_members
from trt_converters.call import Call
from trt_converters.checks import dtypes, only_results, rank
from trt_converters.context import ConversionContext, Operand, dtype_of, shape_vector
from trt_converters.layers import (
    binary,
    cast,
    combine,
    concatenate,
    dimension,
    gather,
    index_range,
    reduce,
    select,
    slice_axis,
    unsqueeze,
)
from trt_converters.layers.extremum import extremum
from trt_converters.layers.pointwise import logical_not
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2


def one_bag_or_more(call: Call) -> Verdict | None:
    """Refuses an `include_last_offset` that leaves no bag."""
    count = call.tensor("offsets").shape[0]
    if call["include_last_offset"] and isinstance(count, int) and count < 2:
        return Verdict.refuse(Reason.EMPTY_TENSOR, "there is no bag")
    return None


def counts_from_known_end(call: Call) -> Verdict | None:
    """Refuses a negative `padding_idx`, which counts from the table's end, where the table's length is symbolic."""
    padding_idx, rows = call["padding_idx"], call.tensor("weight").shape[0]
    if padding_idx is not None and padding_idx < 0 and not isinstance(rows, int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"padding_idx={padding_idx} of a table of {rows} rows")
    return None


CHECKS = (dtypes("weight", FLOATS), only_results(0), rank("indices", 1, 1), rank("offsets", 1, 1), one_bag_or_more)


def embed_bags(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    mode: int,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Any:
    """Reduces embeddings of each bag.

    Args:
        ctx: The context.
        weight: (rows, width), floats.
        indices: (n,), rows of the table.
        offsets: (bags,), where each bag starts; with the end of the last one when `include_last_offset`.
        mode: SUM, MEAN or MAX.
        per_sample_weights: (n,) factors, or None.
        include_last_offset: Whether offsets hold one more element.
        padding_idx: Row that takes no part; None or negative for no such row.
    """
    members = _membership(ctx, indices, offsets, include_last_offset)
    if padding_idx is not None and padding_idx >= 0:
        padding = binary(ctx, "EQUAL", indices, torch.tensor(padding_idx, dtype=dtype_of(indices)))
        members = binary(ctx, "AND", members, unsqueeze(ctx, logical_not(ctx, padding), (0,)))
    dtype = dtype_of(weight)
    rows = cast(ctx, gather(ctx, weight, indices, 0), torch.float32)
    if mode == MAX:
        return cast(ctx, _largest(ctx, members, rows), dtype)
    if per_sample_weights is not None:
        factors = cast(ctx, per_sample_weights, torch.float32)
        rows = binary(ctx, "PROD", rows, unsqueeze(ctx, factors, (1,)))
    total = sum_members(ctx, members, rows)
    if mode == MEAN:
        counts = reduce(ctx, "SUM", cast(ctx, members, torch.float32), (1,), True)
        total = binary(ctx, "DIV", total, binary(ctx, "MAX", counts, torch.ones(())), "mean")
    return cast(ctx, total, dtype)


def _membership(ctx: ConversionContext, indices: Operand, offsets: Operand, include_last_offset: bool) -> Any:
    """Returns which indices belong to which bag: bool, (bags, n)."""
    offsets = cast(ctx, offsets, torch.int64)
    total = dimension(ctx, indices, 0)
    count = dimension(ctx, offsets, 0)
    if include_last_offset:
        count = combine(ctx, "add", [count, -1])
        ends = slice_axis(ctx, offsets, 0, 1, count)
        starts = slice_axis(ctx, offsets, 0, 0, count)
    else:
        starts = offsets
        rest = slice_axis(ctx, offsets, 0, 1, combine(ctx, "add", [count, -1]))
        last = shape_vector(ctx, [total])
        ends = last if isinstance(count, int) and count == 1 else concatenate(ctx, [rest, last], 0)
    positions = unsqueeze(ctx, index_range(ctx, total), (0,))
    first = unsqueeze(ctx, binary(ctx, "SUB", starts, torch.ones((), dtype=torch.int64)), (1,))
    after = binary(ctx, "LESS", first, positions)
    return binary(ctx, "AND", after, binary(ctx, "LESS", positions, unsqueeze(ctx, ends, (1,))), "bags")


def _largest(ctx: ConversionContext, members: Any, rows: Any) -> Any:
    """Returns the maximum over each bag, zero for empty ones."""
    inside = unsqueeze(ctx, members, (2,))
    lowest = torch.tensor(float("-inf"))
    largest = extremum(ctx, select(ctx, inside, unsqueeze(ctx, rows, (0,)), lowest), (1,), False, True)
    counts = reduce(ctx, "SUM", cast(ctx, members, torch.int32), (1,), True)
    filled = binary(ctx, "GREATER", counts, torch.zeros((), dtype=torch.int32))
    return select(ctx, filled, largest, torch.zeros(()))


@converter(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, checks=CHECKS)
def aten__embedding_bag(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Any, ...]:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)"""  # noqa: E501
    return (embed_bags(ctx, weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding_idx),)


@converter(aten.embedding_bag.default, checks=CHECKS)
def aten_embedding_bag(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
) -> tuple[Any, ...]:
    """embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, Tensor, Tensor, Tensor)"""  # noqa: E501
    return (embed_bags(ctx, weight, indices, offsets, mode, per_sample_weights, include_last_offset, None),)


@converter(aten.embedding_bag.padding_idx, checks=(*CHECKS, counts_from_known_end))
def aten_embedding_bag_padding_idx(
    ctx: ConversionContext,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Operand | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> tuple[Any, ...]:
    """embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)"""  # noqa: E501
    if padding_idx is not None and padding_idx < 0:  # unlike in `_embedding_bag`, where -1 means no row
        padding_idx += dimension(ctx, weight, 0)
    return (embed_bags(ctx, weight, indices, offsets, mode, per_sample_weights, include_last_offset, padding_idx),)
