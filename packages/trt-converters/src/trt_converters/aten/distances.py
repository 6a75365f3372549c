"""Distances between rows: cdist and pdist."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from trt_converters.call import Call
from trt_converters.checks import dtypes, static_axis
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import binary, cast, gather, reduce, unary, unsqueeze
from trt_converters.layers.pointwise import logical_not
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS

aten = torch.ops.aten
LIMIT: Final = 1 << 26
"""Most differences that one call may compute, all of which exist at once."""


def affordable(call: Call) -> Verdict | None:
    """Refuses more differences than `LIMIT`, and ranks that leave no room for one more axis."""
    first, second = call.tensor("x1"), call.tensor("x2")
    if max(first.dim(), second.dim()) > 7:
        return Verdict.refuse(Reason.UNSUPPORTED_RANK, "the differences need one more dimension")
    elements = first.numel() * second.shape[-2]
    if isinstance(elements, int) and elements > LIMIT:
        return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{elements} differences, at most {LIMIT}")
    return None


def minkowski(ctx: ConversionContext, difference: Operand, axis: int, p: float) -> Any:
    """Returns the p-norm of differences over an axis, which is removed; float32 inside."""
    dtype = dtype_of(difference)
    size = unary(ctx, "ABS", cast(ctx, difference, torch.float32))
    if p == 0:
        size = cast(ctx, logical_not(ctx, binary(ctx, "EQUAL", size, torch.zeros(()))), torch.float32)
    if math.isinf(p):
        return cast(ctx, reduce(ctx, "MAX", size, (axis,), False), dtype)
    if p in (0, 1):
        return cast(ctx, reduce(ctx, "SUM", size, (axis,), False), dtype)
    if p == 2:
        total = reduce(ctx, "SUM", binary(ctx, "PROD", size, size, "square"), (axis,), False)
        return cast(ctx, unary(ctx, "SQRT", total), dtype)
    total = reduce(ctx, "SUM", binary(ctx, "POW", size, torch.tensor(float(p))), (axis,), False)
    return cast(ctx, binary(ctx, "POW", total, torch.tensor(1.0 / p)), dtype)


@converter(aten._cdist_forward.default, aten.cdist.default, checks=(dtypes("x1", FLOATS), affordable))
def aten__cdist_forward(ctx: ConversionContext, x1: Operand, x2: Operand, p: float, compute_mode: int | None) -> Any:
    """_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor"""
    left = unsqueeze(ctx, x1, (rank_of(x1) - 1,))
    right = unsqueeze(ctx, x2, (rank_of(x2) - 2,))
    difference = binary(ctx, "SUB", left, right, "difference")
    return minkowski(ctx, difference, rank_of(difference) - 1, p)


@converter(aten._pdist_forward.default, aten.pdist.default, checks=(dtypes("self", FLOATS), static_axis("self", 0)))
def aten__pdist_forward(ctx: ConversionContext, self: Operand, p: float) -> Any:
    """_pdist_forward(Tensor self, float p=2.0) -> Tensor"""
    rows = int(ctx.symbolic_shape("self")[0])
    first, second = torch.triu_indices(rows, rows, 1)
    difference = binary(ctx, "SUB", gather(ctx, self, first, 0), gather(ctx, self, second, 0), "difference")
    return minkowski(ctx, difference, 1, p)
