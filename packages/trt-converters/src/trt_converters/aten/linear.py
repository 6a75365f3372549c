"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import binary, cast, squeeze, unsqueeze, with_rank
from trt_converters.registry import converter
from trt_core import trt

aten = torch.ops.aten


def matrix_multiply(
    ctx: ConversionContext, left: Operand, right: Operand, transpose_right: bool = False, suffix: str = "matmul"
) -> Any:
    """Multiplies operands of rank >= 2 and one type; integers, which TensorRT does not multiply, go through float32.

    Args:
        ctx: The context.
        left: (..., M, K).
        right: (..., K, N), or (..., N, K) when transposed.
        transpose_right: Whether `right` is given transposed.
        suffix: What the layer is for, in its name.
    """
    dtype = dtype_of(left)
    if not dtype.is_floating_point:
        left, right = cast(ctx, left, torch.float32), cast(ctx, right, torch.float32)
    rank = max(rank_of(left), rank_of(right))
    operands = [ctx.tensor(with_rank(ctx, side, rank)) for side in (left, right)]
    operations = (
        trt.MatrixOperation.NONE,
        trt.MatrixOperation.TRANSPOSE if transpose_right else trt.MatrixOperation.NONE,
    )
    layer = ctx.network.add_matrix_multiply(operands[0], operations[0], operands[1], operations[1])
    return cast(ctx, ctx.output(layer, suffix), dtype)


@converter(aten.linear.default)
def aten_linear(ctx: ConversionContext, input: Operand, weight: Operand, bias: Operand | None) -> Any:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    rank = rank_of(input)
    rows = unsqueeze(ctx, input, (0,)) if rank == 1 else input
    product = matrix_multiply(ctx, rows, weight, transpose_right=True)
    if bias is not None:
        product = binary(ctx, "SUM", product, bias, "bias")
    return squeeze(ctx, product, (0,)) if rank == 1 else product


@converter(aten.mm.default, aten.bmm.default)
def aten_mm(ctx: ConversionContext, self: Operand, mat2: Operand) -> Any:
    """mm(Tensor self, Tensor mat2) -> Tensor"""
    return matrix_multiply(ctx, self, mat2)


@converter(aten.matmul.default)
def aten_matmul(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """matmul(Tensor self, Tensor other) -> Tensor"""
    left_vector, right_vector = rank_of(self) == 1, rank_of(other) == 1
    left = unsqueeze(ctx, self, (0,)) if left_vector else self
    right = unsqueeze(ctx, other, (1,)) if right_vector else other
    product = matrix_multiply(ctx, left, right)
    rank = rank_of(product)
    removed = [axis for axis, gone in ((rank - 2, left_vector), (rank - 1, right_vector)) if gone]
    return squeeze(ctx, product, removed)
