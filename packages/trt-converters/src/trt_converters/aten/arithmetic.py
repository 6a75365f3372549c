"""Sums, differences and products with PyTorch's type promotion."""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.checks import computable, promotable
from trt_converters.context import ConversionContext, Operand, dtype_of, is_exactly, is_size_number
from trt_converters.layers import binary, cast, promote, select, unary
from trt_converters.layers.elementary import log1p, maximum, negate, widen
from trt_converters.registry import converter

aten = torch.ops.aten

Number = float | int


def compute_type(result: torch.dtype, *numbers: Any) -> torch.dtype:
    """Returns the type to compute in: float32 when the result is a half type that may not hold a Python number.

    PyTorch keeps Python numbers in float32 beside half tensors: `x * 1e9` must not become `x * inf`, nor 1e-12 be 0.
    Below the normal range digits are lost one by one: float16 has 1.2e-7 for 1e-7.
    """
    if result in (torch.float16, torch.bfloat16):
        range_of = torch.finfo(result)
        for number in numbers:
            if is_size_number(number):
                return torch.float32
            if isinstance(number, (int, float)) and math.isfinite(number) and number:
                stored = torch.tensor(number, dtype=result).item()
                if abs(number) < range_of.smallest_normal or math.isinf(stored):
                    return torch.float32
    return result


def _sum(ctx: ConversionContext, operation: str, left: Operand, right: Operand, alpha: Number) -> Any:
    """Returns left + alpha * right, or left - alpha * right."""
    result = ctx.result_dtype
    if result is torch.bool:  # PyTorch adds bools as logic, and subtracts none
        return binary(ctx, "OR", *promote(ctx, left, right, dtype=result)) if alpha else cast(ctx, left, result)
    if isinstance(right, (int, float)) and not is_exactly(alpha, 1):
        right, alpha = right * alpha, 1
    if not is_exactly(alpha, 1) and result.is_floating_point:
        return _scaled_sum(ctx, operation, left, right, alpha)
    dtype = compute_type(result, left, right)
    left, right = promote(ctx, left, right, dtype=dtype)
    if not is_exactly(alpha, 1):
        right = binary(ctx, "PROD", right, alpha, "alpha")
    return cast(ctx, binary(ctx, operation, left, right), result)


def _scaled_sum(ctx: ConversionContext, operation: str, left: Operand, right: Operand, alpha: Number) -> Any:
    """Returns a sum whose product may be too large for the type where the sum is not: PyTorch rounds once.

    Half types are widened. All is made smaller by a power of two first, where alpha is known and large.
    """
    left, right = promote(ctx, left, right, dtype=torch.float32)
    shrink = 2.0 ** -math.frexp(alpha)[1] if not is_size_number(alpha) and 1 < abs(alpha) < math.inf else 1.0
    right = binary(ctx, "PROD", right, alpha if shrink == 1 else alpha * shrink, "alpha")
    if shrink == 1:
        return cast(ctx, binary(ctx, operation, left, right), ctx.result_dtype)
    left = binary(ctx, "PROD", left, torch.tensor(shrink, dtype=torch.float32), "shrink")
    total = binary(ctx, operation, left, right)
    return cast(
        ctx, binary(ctx, "PROD", total, torch.tensor(1 / shrink, dtype=torch.float32), "grow"), ctx.result_dtype
    )


@converter(aten.add.Tensor, aten.add.Scalar, checks=promotable)
def aten_add(ctx: ConversionContext, self: Operand, other: Operand, alpha: Number) -> Any:
    """add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return _sum(ctx, "SUM", self, other, alpha)


@converter(aten.sub.Tensor, aten.sub.Scalar, checks=promotable)
def aten_sub(ctx: ConversionContext, self: Operand, other: Operand, alpha: Number) -> Any:
    """sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return _sum(ctx, "SUB", self, other, alpha)


@converter(aten.rsub.Tensor, aten.rsub.Scalar, checks=promotable)
def aten_rsub(ctx: ConversionContext, self: Operand, other: Operand, alpha: Number) -> Any:
    """rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return _sum(ctx, "SUB", other, self, alpha)


@converter(aten.mul.Tensor, aten.mul.Scalar, checks=promotable)
def aten_mul(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """mul.Tensor(Tensor self, Tensor other) -> Tensor"""
    result = ctx.result_dtype
    left, right = promote(ctx, self, other, dtype=compute_type(result, self, other))
    return cast(ctx, binary(ctx, "AND" if result is torch.bool else "PROD", left, right), result)


@converter(aten.addcmul.default, checks=computable)
def aten_addcmul(ctx: ConversionContext, self: Operand, tensor1: Operand, tensor2: Operand, value: Number) -> Any:
    """addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    return _add_scaled(ctx, self, tensor1, tensor2, value, "PROD")


@converter(aten.addcdiv.default, checks=computable)
def aten_addcdiv(ctx: ConversionContext, self: Operand, tensor1: Operand, tensor2: Operand, value: Number) -> Any:
    """addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"""
    return _add_scaled(ctx, self, tensor1, tensor2, value, "DIV")


def _add_scaled(
    ctx: ConversionContext, base: Operand, left: Operand, right: Operand, value: Number, operation: str
) -> Any:
    operands = promote(ctx, base, left, right, dtype=ctx.result_dtype)
    base, left, right = (widen(ctx, operand) for operand in operands)
    if not is_exactly(value, 1):
        left = binary(ctx, "PROD", left, value, "value")
    return cast(ctx, binary(ctx, "SUM", base, binary(ctx, operation, left, right)), ctx.result_dtype)


@converter(aten.lerp.Scalar, aten.lerp.Tensor, checks=computable)
def aten_lerp(ctx: ConversionContext, self: Operand, end: Operand, weight: Operand) -> Any:
    """lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor"""
    start, stop = (widen(ctx, operand) for operand in promote(ctx, self, end, dtype=ctx.result_dtype))
    is_number = isinstance(weight, (int, float)) or is_size_number(weight)
    share = weight if is_number else widen(ctx, cast(ctx, weight, ctx.result_dtype))
    start, stop, share = promote(ctx, start, stop, share)
    distance = binary(ctx, "SUB", stop, start)
    # from the nearer end, as PyTorch does, so that weights 0 and 1 give the ends themselves
    from_start = binary(ctx, "SUM", start, binary(ctx, "PROD", share, distance))
    from_stop = binary(ctx, "SUB", stop, binary(ctx, "PROD", distance, binary(ctx, "SUB", 1.0, share)))
    if isinstance(weight, (int, float)):
        return cast(ctx, from_start if abs(weight) < 0.5 else from_stop, ctx.result_dtype)
    near = binary(ctx, "LESS", unary(ctx, "ABS", share), 0.5)
    return cast(ctx, select(ctx, near, from_start, from_stop), ctx.result_dtype)


@converter(aten.logaddexp.default, checks=computable)
def aten_logaddexp(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """logaddexp(Tensor self, Tensor other) -> Tensor"""
    left, right = (widen(ctx, operand) for operand in promote(ctx, self, other, dtype=ctx.result_dtype))
    return cast(ctx, log_add_exp(ctx, left, right), ctx.result_dtype)


def log_add_exp(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns log(exp(left) + exp(right)) of float32 operands in the form that never overflows."""
    distance = unary(ctx, "ABS", binary(ctx, "SUB", left, right))
    tail = log1p(ctx, unary(ctx, "EXP", negate(ctx, distance)))
    # the difference of two equal infinities has no value, their sum does
    infinite = binary(ctx, "AND", unary(ctx, "ISINF", left), binary(ctx, "EQUAL", left, right))
    return select(ctx, infinite, left, binary(ctx, "SUM", maximum(ctx, left, right), tail))


@converter(aten.hypot.default, checks=computable)
def aten_hypot(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """hypot(Tensor self, Tensor other) -> Tensor"""
    operands = promote(ctx, self, other, dtype=ctx.result_dtype)
    left, right = (unary(ctx, "ABS", widen(ctx, operand)) for operand in operands)
    first = binary(ctx, "GREATER", left, right)
    longer, shorter = select(ctx, first, left, right), select(ctx, first, right, left)
    # scaled by the longer side, squares neither overflow nor vanish
    ratio = binary(ctx, "DIV", shorter, longer)
    root = unary(ctx, "SQRT", binary(ctx, "SUM", binary(ctx, "PROD", ratio, ratio), 1.0))
    # 0 / 0 has no value: the sum of two zeros is the length, and NaN beside a NaN
    zero = binary(ctx, "EQUAL", longer, 0.0)
    length = select(ctx, zero, binary(ctx, "SUM", longer, shorter), binary(ctx, "PROD", longer, root))
    infinite = binary(ctx, "OR", unary(ctx, "ISINF", left), unary(ctx, "ISINF", right))
    infinity = torch.tensor(float("inf"), dtype=torch.float32)
    return cast(ctx, select(ctx, infinite, infinity, length), ctx.result_dtype)


@converter(aten.xlogy.Tensor, aten.special_xlogy.default, checks=computable)
@converter(aten.xlogy.Scalar_Other, aten.special_xlogy.other_scalar, checks=computable)
@converter(aten.xlogy.Scalar_Self, aten.special_xlogy.self_scalar, checks=computable)
def aten_xlogy(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """xlogy.Tensor(Tensor self, Tensor other) -> Tensor"""
    left, right = (widen(ctx, operand) for operand in promote(ctx, self, other, dtype=ctx.result_dtype))
    product = binary(ctx, "PROD", left, unary(ctx, "LOG", right))
    zero = torch.zeros((), dtype=dtype_of(left))
    found = select(ctx, binary(ctx, "EQUAL", left, 0.0), zero, product)
    return cast(ctx, select(ctx, unary(ctx, "ISNAN", right), right, found), ctx.result_dtype)
