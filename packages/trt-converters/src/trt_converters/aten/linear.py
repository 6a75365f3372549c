"""Matrix products."""

from __future__ import annotations

from typing import Any, Final

import torch

from trt_converters.call import Call
from trt_converters.checks import refuses
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.converter import Check
from trt_converters.layers import binary, permute, reduce, squeeze, unsqueeze, with_rank
from trt_converters.registry import converter
from trt_core import Reason, Verdict, trt
from trt_core.dtypes import FLOATS, INTEGERS, dtype_name

aten = torch.ops.aten
INTEGER_LIMIT: Final = 1 << 24
"""Most products that a matrix product of integers may need, all of which exist at once."""


def multiplies(left: str, right: str) -> Check:
    """Refuses operands that cannot be multiplied: other types, and integers beyond `INTEGER_LIMIT`."""

    @refuses(f"integers in more than {INTEGER_LIMIT} products, and types that no layer multiplies")
    def check(call: Call) -> Verdict | None:
        first, second = call.tensor(left), call.tensor(right)
        if first.dtype in FLOATS:
            return None
        if first.dtype not in INTEGERS:
            return Verdict.refuse(
                Reason.UNSUPPORTED_DTYPE, f"no layer multiplies matrices of {dtype_name(first.dtype)}"
            )
        if max(first.dim(), second.dim()) > 7:
            return Verdict.refuse(Reason.UNSUPPORTED_RANK, "products of integers need one more dimension")
        columns = second.shape[-1] if second.dim() > 1 else 1
        products = first.numel() * columns
        if isinstance(products, int) and products > INTEGER_LIMIT:
            return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{products} products of integers, at most {INTEGER_LIMIT}")
        return None

    return check


def matrix_multiply(
    ctx: ConversionContext, left: Operand, right: Operand, transpose_right: bool = False, suffix: str = "matmul"
) -> Any:
    """Multiplies operands of rank >= 2 and one type.

    Matrix multiply layers take floats only: integers, which must lose no bits, are multiplied one by one and summed.

    Args:
        ctx: The context.
        left: (..., M, K).
        right: (..., K, N), or (..., N, K) when transposed.
        transpose_right: Whether `right` is given transposed.
        suffix: What the layer is for, in its name.
    """
    rank = max(rank_of(left), rank_of(right))
    left, right = with_rank(ctx, left, rank), with_rank(ctx, right, rank)
    if not dtype_of(left).is_floating_point:
        if not transpose_right:
            right = permute(ctx, right, [*range(rank - 2), rank - 1, rank - 2])
        products = binary(ctx, "PROD", unsqueeze(ctx, left, (rank - 1,)), unsqueeze(ctx, right, (rank - 2,)), suffix)
        return reduce(ctx, "SUM", products, (rank,), False)
    operations = (
        trt.MatrixOperation.NONE,
        trt.MatrixOperation.TRANSPOSE if transpose_right else trt.MatrixOperation.NONE,
    )
    layer = ctx.network.add_matrix_multiply(ctx.tensor(left), operations[0], ctx.tensor(right), operations[1])
    return ctx.output(layer, suffix)


@converter(aten.linear.default, checks=multiplies("input", "weight"))
def aten_linear(ctx: ConversionContext, input: Operand, weight: Operand, bias: Operand | None) -> Any:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    rank = rank_of(input)
    rows = unsqueeze(ctx, input, (0,)) if rank == 1 else input
    product = matrix_multiply(ctx, rows, weight, transpose_right=True)
    if bias is not None:
        product = binary(ctx, "SUM", product, bias, "bias")
    return squeeze(ctx, product, (0,)) if rank == 1 else product


@converter(aten.mm.default, aten.bmm.default, checks=multiplies("self", "mat2"))
def aten_mm(ctx: ConversionContext, self: Operand, mat2: Operand) -> Any:
    """mm(Tensor self, Tensor mat2) -> Tensor"""
    return matrix_multiply(ctx, self, mat2)


@converter(aten.matmul.default, aten.linalg_matmul.default, checks=multiplies("self", "other"))
def aten_matmul(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """matmul(Tensor self, Tensor other) -> Tensor"""
    left_vector, right_vector = rank_of(self) == 1, rank_of(other) == 1
    left = unsqueeze(ctx, self, (0,)) if left_vector else self
    right = unsqueeze(ctx, other, (1,)) if right_vector else other
    product = matrix_multiply(ctx, left, right)
    rank = rank_of(product)
    removed = [axis for axis, gone in ((rank - 2, left_vector), (rank - 1, right_vector)) if gone]
    return squeeze(ctx, product, removed)
