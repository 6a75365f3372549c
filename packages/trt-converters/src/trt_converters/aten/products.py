"""Products of matrices and vectors with something added, cross products, traces of products."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.aten.linear import matrix_multiply, multiplies
from trt_converters.checks import computable, dtypes
from trt_converters.context import ConversionContext, Operand, is_exactly, normalize_axis
from trt_converters.layers import binary, cast, expand, gather, reduce, squeeze, unsqueeze
from trt_converters.registry import converter
from trt_core.dtypes import FLOATS, INTEGERS

aten = torch.ops.aten
NUMBERS = FLOATS | INTEGERS


def _scaled(ctx: ConversionContext, value: Operand, factor: float, suffix: str) -> Any:
    return value if is_exactly(factor, 1) else binary(ctx, "PROD", value, factor, suffix)


def _added(ctx: ConversionContext, self: Operand, product: Any, beta: float, alpha: float) -> Any:
    """Returns `beta * self + alpha * product`; with beta 0 `self` does not matter, whatever it holds."""
    product = _scaled(ctx, product, alpha, "alpha")
    if is_exactly(beta, 0):
        return expand(ctx, product, ctx.result_shape)
    return binary(ctx, "SUM", _scaled(ctx, self, beta, "beta"), product, "add")


@converter(aten.addmm.default, checks=(dtypes("self", NUMBERS), multiplies("mat1", "mat2")))
def aten_addmm(ctx: ConversionContext, self: Operand, mat1: Operand, mat2: Operand, beta: float, alpha: float) -> Any:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _added(ctx, self, matrix_multiply(ctx, mat1, mat2), beta, alpha)


@converter(aten.baddbmm.default, checks=(dtypes("self", NUMBERS), multiplies("batch1", "batch2")))
def aten_baddbmm(
    ctx: ConversionContext, self: Operand, batch1: Operand, batch2: Operand, beta: float, alpha: float
) -> Any:
    """baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _added(ctx, self, matrix_multiply(ctx, batch1, batch2), beta, alpha)


@converter(aten.addbmm.default, checks=(dtypes("self", NUMBERS), multiplies("batch1", "batch2")))
def aten_addbmm(
    ctx: ConversionContext, self: Operand, batch1: Operand, batch2: Operand, beta: float, alpha: float
) -> Any:
    """addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    product = reduce(ctx, "SUM", matrix_multiply(ctx, batch1, batch2), (0,), False)
    return _added(ctx, self, product, beta, alpha)


def matrix_vector(ctx: ConversionContext, matrix: Operand, vector: Operand) -> Any:
    """Multiplies (M, K) by (K,)."""
    return squeeze(ctx, matrix_multiply(ctx, matrix, unsqueeze(ctx, vector, (1,))), (1,))


@converter(aten.mv.default, checks=(dtypes("self", NUMBERS), multiplies("self", "vec")))
def aten_mv(ctx: ConversionContext, self: Operand, vec: Operand) -> Any:
    """mv(Tensor self, Tensor vec) -> Tensor"""
    return matrix_vector(ctx, self, vec)


@converter(aten.addmv.default, checks=(dtypes("self", NUMBERS), multiplies("mat", "vec")))
def aten_addmv(ctx: ConversionContext, self: Operand, mat: Operand, vec: Operand, beta: float, alpha: float) -> Any:
    """addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _added(ctx, self, matrix_vector(ctx, mat, vec), beta, alpha)


@converter(aten.addr.default, checks=dtypes("self", NUMBERS))
def aten_addr(ctx: ConversionContext, self: Operand, vec1: Operand, vec2: Operand, beta: float, alpha: float) -> Any:
    """addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    dtype = ctx.result_dtype
    self, vec1, vec2 = (cast(ctx, part, dtype) for part in (self, vec1, vec2))
    product = binary(ctx, "PROD", unsqueeze(ctx, vec1, (1,)), unsqueeze(ctx, vec2, (0,)), "outer")
    return _added(ctx, self, product, beta, alpha)


@converter(aten.dot.default, checks=(dtypes("self", NUMBERS), multiplies("self", "tensor")))
def aten_dot(ctx: ConversionContext, self: Operand, tensor: Operand) -> Any:
    """dot(Tensor self, Tensor tensor) -> Tensor"""
    product = matrix_multiply(ctx, unsqueeze(ctx, self, (0,)), unsqueeze(ctx, tensor, (1,)))
    return squeeze(ctx, product, (0, 1))


@converter(aten.vdot.default, checks=(dtypes("self", NUMBERS), multiplies("self", "other")))
def aten_vdot(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """vdot(Tensor self, Tensor other) -> Tensor"""
    return aten_dot(ctx, self, other)


@converter(aten.outer.default, aten.ger.default, checks=computable)
def aten_outer(ctx: ConversionContext, self: Operand, vec2: Operand) -> Any:
    """outer(Tensor self, Tensor vec2) -> Tensor"""
    dtype = ctx.result_dtype
    work = torch.int32 if dtype is torch.bool else dtype
    left, right = cast(ctx, self, work), cast(ctx, vec2, work)
    return cast(ctx, binary(ctx, "PROD", unsqueeze(ctx, left, (1,)), unsqueeze(ctx, right, (0,))), dtype)


@converter(
    aten.linalg_cross.default,
    checks=dtypes("self", NUMBERS),
)
def aten_linalg_cross(ctx: ConversionContext, self: Operand, other: Operand, dim: int) -> Any:
    """linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor"""
    axis = normalize_axis(dim, len(ctx.result_shape))
    self = expand(ctx, self, ctx.result_shape, ctx.symbolic_shape("self"))
    other = expand(ctx, other, ctx.result_shape, ctx.symbolic_shape("other"))
    next_one, next_two = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])
    plus = binary(ctx, "PROD", gather(ctx, self, next_one, axis), gather(ctx, other, next_two, axis))
    minus = binary(ctx, "PROD", gather(ctx, self, next_two, axis), gather(ctx, other, next_one, axis))
    return binary(ctx, "SUB", plus, minus, "cross")
