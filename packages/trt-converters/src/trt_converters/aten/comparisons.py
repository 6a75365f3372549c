"""Comparisons, logic and bits, choice between elements, and the special values of floats."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import (
    binary,
    cast,
    greater_equal,
    less_equal,
    logical_not,
    promote,
    reduce,
    select,
    unary,
    unsqueeze,
)
from trt_converters.layers.casts import result_type
from trt_converters.registry import converter
from trt_core import Reason, Verdict

aten = torch.ops.aten


def comparable(ctx: ConversionContext, left: Operand, right: Operand) -> tuple[Any, Any]:
    """Promotes operands as a comparison does; bools, which comparison layers do not take, become int32."""
    common = result_type(left, right)
    if common is torch.bool:
        common = torch.int32
        left, right = (int(side) if isinstance(side, bool) else side for side in (left, right))
    one, other = promote(ctx, left, right, dtype=common)
    return one, other


@converter(aten.eq.Tensor, aten.eq.Scalar, checks=computable)
def aten_eq(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """eq.Tensor(Tensor self, Tensor other) -> Tensor"""
    return binary(ctx, "EQUAL", *comparable(ctx, self, other))


@converter(aten.ne.Tensor, aten.ne.Scalar, checks=computable)
def aten_ne(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """ne.Tensor(Tensor self, Tensor other) -> Tensor"""
    return logical_not(ctx, binary(ctx, "EQUAL", *comparable(ctx, self, other)))


@converter(aten.lt.Tensor, aten.lt.Scalar, checks=computable)
def aten_lt(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """lt.Tensor(Tensor self, Tensor other) -> Tensor"""
    return binary(ctx, "LESS", *comparable(ctx, self, other))


@converter(aten.gt.Tensor, aten.gt.Scalar, checks=computable)
def aten_gt(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """gt.Tensor(Tensor self, Tensor other) -> Tensor"""
    return binary(ctx, "GREATER", *comparable(ctx, self, other))


@converter(aten.le.Tensor, aten.le.Scalar, checks=computable)
def aten_le(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """le.Tensor(Tensor self, Tensor other) -> Tensor"""
    left, right = comparable(ctx, self, other)
    if not result_type(left, right).is_floating_point:
        return logical_not(ctx, binary(ctx, "GREATER", left, right))
    return less_equal(ctx, left, right)


@converter(aten.ge.Tensor, aten.ge.Scalar, checks=computable)
def aten_ge(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """ge.Tensor(Tensor self, Tensor other) -> Tensor"""
    left, right = comparable(ctx, self, other)
    if not result_type(left, right).is_floating_point:
        return logical_not(ctx, binary(ctx, "LESS", left, right))
    return greater_equal(ctx, left, right)


def _logic(ctx: ConversionContext, operation: str, left: Operand, right: Operand) -> Any:
    return binary(ctx, operation, cast(ctx, left, torch.bool), cast(ctx, right, torch.bool))


@converter(aten.logical_and.default, checks=computable)
def aten_logical_and(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """logical_and(Tensor self, Tensor other) -> Tensor"""
    return _logic(ctx, "AND", self, other)


@converter(aten.logical_or.default, checks=computable)
def aten_logical_or(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """logical_or(Tensor self, Tensor other) -> Tensor"""
    return _logic(ctx, "OR", self, other)


@converter(aten.logical_xor.default, checks=computable)
def aten_logical_xor(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """logical_xor(Tensor self, Tensor other) -> Tensor"""
    return _logic(ctx, "XOR", self, other)


@converter(aten.logical_not.default, checks=computable)
def aten_logical_not(ctx: ConversionContext, self: Operand) -> Any:
    """logical_not(Tensor self) -> Tensor"""
    return logical_not(ctx, cast(ctx, self, torch.bool))


# Bits of integers ---------------------------------------------------------------------------------------------------
# TensorRT has layers for bools alone, so integers are taken apart.


_BITS = {torch.int32: 32, torch.int64: 64}


def _room_for_bits(call: Call) -> Verdict | None:
    """Taking integers apart needs an axis for the bits."""
    rank = call.result.dim()
    if call.result.dtype is not torch.bool and rank > 7:
        return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"the result has rank {rank}, and its bits need an axis more")
    return None


def _bits(ctx: ConversionContext, value: Operand) -> Any:
    """Returns the bits of an integer value in two's complement along a new last axis, lowest first, as 0 and 1."""
    dtype = dtype_of(value)
    width = _BITS[dtype]
    # the sign bit's weight would be negative: the quotient by half of it, halved again, is the sign alone
    weights = torch.tensor([1 << bit for bit in range(width - 1)] + [1 << (width - 2)], dtype=dtype)
    halves = torch.tensor([1] * (width - 1) + [2], dtype=dtype)
    column = unsqueeze(ctx, value, (rank_of(value),))
    shifted = binary(ctx, "FLOOR_DIV", binary(ctx, "FLOOR_DIV", column, weights), halves)
    even = binary(ctx, "PROD", binary(ctx, "FLOOR_DIV", shifted, 2), 2)
    return binary(ctx, "SUB", shifted, even, "bits")


def _both(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns the bitwise AND of two integer values of one type."""
    common = binary(ctx, "PROD", _bits(ctx, left), _bits(ctx, right))
    dtype = dtype_of(left)
    width = _BITS[dtype]
    weights = torch.tensor([1 << bit for bit in range(width - 1)] + [-(1 << (width - 1))], dtype=dtype)
    weighted = binary(ctx, "PROD", common, weights)
    return reduce(ctx, "SUM", weighted, (rank_of(weighted) - 1,), False)


def _bitwise(ctx: ConversionContext, operation: str, left: Operand, right: Operand) -> Any:
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    if ctx.result_dtype is torch.bool:
        return binary(ctx, operation, left, right)
    common = _both(ctx, left, right)
    if operation == "AND":
        return common
    together = binary(ctx, "SUB", binary(ctx, "SUM", left, right), common)
    return together if operation == "OR" else binary(ctx, "SUB", together, common)


@converter(
    aten.bitwise_and.Tensor,
    aten.bitwise_and.Scalar,
    aten.bitwise_and.Scalar_Tensor,
    aten.__and__.Tensor,
    aten.__and__.Scalar,
    checks=(computable, _room_for_bits),
)
def aten_bitwise_and(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor"""
    return _bitwise(ctx, "AND", self, other)


@converter(
    aten.bitwise_or.Tensor,
    aten.bitwise_or.Scalar,
    aten.bitwise_or.Scalar_Tensor,
    aten.__or__.Tensor,
    aten.__or__.Scalar,
    checks=(computable, _room_for_bits),
)
def aten_bitwise_or(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor"""
    return _bitwise(ctx, "OR", self, other)


@converter(
    aten.bitwise_xor.Tensor,
    aten.bitwise_xor.Scalar,
    aten.bitwise_xor.Scalar_Tensor,
    aten.__xor__.Tensor,
    aten.__xor__.Scalar,
    checks=(computable, _room_for_bits),
)
def aten_bitwise_xor(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor"""
    return _bitwise(ctx, "XOR", self, other)


@converter(aten.bitwise_not.default, checks=computable)
def aten_bitwise_not(ctx: ConversionContext, self: Operand) -> Any:
    """bitwise_not(Tensor self) -> Tensor"""
    if dtype_of(self) is torch.bool:
        return logical_not(ctx, self)
    return binary(ctx, "SUB", -1, self)


def _integers(call: Call) -> Verdict | None:
    """Refuses shifts of types that have no bits to shift."""
    if call.result.dtype in _BITS:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"shifts of {call.result.dtype} have no layers")


@converter(
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.bitwise_left_shift.Scalar_Tensor,
    aten.__lshift__.Tensor,
    aten.__lshift__.Scalar,
    checks=(computable, _integers),
)
def aten_bitwise_left_shift(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor"""
    value, shift = promote(ctx, self, other, dtype=ctx.result_dtype)
    inside, first, second = _two_steps(ctx, shift)
    shifted = binary(ctx, "PROD", binary(ctx, "PROD", value, first), second)
    return select(ctx, inside, shifted, torch.zeros((), dtype=ctx.result_dtype))


@converter(
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.bitwise_right_shift.Scalar_Tensor,
    aten.__rshift__.Tensor,
    aten.__rshift__.Scalar,
    checks=(computable, _integers),
)
def aten_bitwise_right_shift(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor"""
    value, shift = promote(ctx, self, other, dtype=ctx.result_dtype)
    inside, first, second = _two_steps(ctx, shift)
    shifted = binary(ctx, "FLOOR_DIV", binary(ctx, "FLOOR_DIV", value, first), second)
    # a shift of all bits and more leaves the sign
    sign = select(
        ctx,
        binary(ctx, "LESS", value, 0),
        torch.tensor(-1, dtype=ctx.result_dtype),
        torch.zeros((), dtype=ctx.result_dtype),
    )
    return select(ctx, inside, shifted, sign)


def _two_steps(ctx: ConversionContext, shift: Operand) -> tuple[Any, Any, Any]:
    """Returns where shifts lie in [0, width), and two powers of 2 that do the work of one, both in range."""
    width = _BITS[ctx.result_dtype]
    powers = torch.tensor([1 << bit for bit in range(width // 2 + 1)], dtype=ctx.result_dtype)
    if isinstance(shift, torch.Tensor):
        inside = (shift >= 0) & (shift < width)
        bounded = shift.clamp(0, width - 1)
        half = bounded // 2
        return inside, powers[half.long()], powers[(bounded - half).long()]
    inside = binary(ctx, "AND", logical_not(ctx, binary(ctx, "LESS", shift, 0)), binary(ctx, "LESS", shift, width))
    bounded = binary(ctx, "MIN", binary(ctx, "MAX", shift, 0), width - 1)
    half = binary(ctx, "FLOOR_DIV", bounded, 2)
    table = ctx.tensor(powers)
    steps = (half, binary(ctx, "SUB", bounded, half))
    first, second = (ctx.output(ctx.network.add_gather(table, step, 0), "power") for step in steps)
    return inside, first, second


# Choice between elements, and the special values of floats ----------------------------------------------------------


Number = float | int


@converter(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, checks=computable)
def aten_where(ctx: ConversionContext, condition: Operand, self: Operand, other: Operand) -> Any:
    """where.self(Tensor condition, Tensor self, Tensor other) -> Tensor"""
    then, otherwise = promote(ctx, self, other, dtype=ctx.result_dtype)
    return select(ctx, cast(ctx, condition, torch.bool), then, otherwise)


@converter(aten.masked_fill.Scalar, aten.masked_fill.Tensor, checks=computable)
def aten_masked_fill(ctx: ConversionContext, self: Operand, mask: Operand, value: Operand) -> Any:
    """masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor"""
    return select(ctx, cast(ctx, mask, torch.bool), cast(ctx, value, dtype_of(self)), self)


def _special(ctx: ConversionContext, value: Operand, operation: str) -> Any:
    """Returns where a value is NaN or infinite; integers never are."""
    if dtype_of(value).is_floating_point:
        return unary(ctx, operation, value)
    return _nowhere(ctx, value)


def _nowhere(ctx: ConversionContext, value: Operand) -> Any:
    number = cast(ctx, value, torch.int32)
    return binary(ctx, "LESS", number, number)


@converter(aten.isnan.default, checks=computable)
def aten_isnan(ctx: ConversionContext, self: Operand) -> Any:
    """isnan(Tensor self) -> Tensor"""
    return _special(ctx, self, "ISNAN")


@converter(aten.isinf.default, checks=computable)
def aten_isinf(ctx: ConversionContext, self: Operand) -> Any:
    """isinf(Tensor self) -> Tensor"""
    return _special(ctx, self, "ISINF")


@converter(aten.isfinite.default, checks=computable)
def aten_isfinite(ctx: ConversionContext, self: Operand) -> Any:
    """isfinite(Tensor self) -> Tensor"""
    if not dtype_of(self).is_floating_point:
        return logical_not(ctx, _nowhere(ctx, self))
    return logical_not(ctx, binary(ctx, "OR", unary(ctx, "ISNAN", self), unary(ctx, "ISINF", self)))


@converter(aten.isposinf.default, checks=computable)
def aten_isposinf(ctx: ConversionContext, self: Operand) -> Any:
    """isposinf(Tensor self) -> Tensor"""
    if not dtype_of(self).is_floating_point:
        return _nowhere(ctx, self)
    return binary(ctx, "EQUAL", self, float("inf"))


@converter(aten.isneginf.default, checks=computable)
def aten_isneginf(ctx: ConversionContext, self: Operand) -> Any:
    """isneginf(Tensor self) -> Tensor"""
    if not dtype_of(self).is_floating_point:
        return _nowhere(ctx, self)
    return binary(ctx, "EQUAL", self, float("-inf"))


@converter(aten.nan_to_num.default, checks=computable)
def aten_nan_to_num(
    ctx: ConversionContext, self: Operand, nan: Number | None, posinf: Number | None, neginf: Number | None
) -> Any:
    """nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor"""
    dtype = dtype_of(self)
    if not dtype.is_floating_point:
        return self
    limits = torch.finfo(dtype)
    replacements = (
        (unary(ctx, "ISNAN", self), 0.0 if nan is None else nan),
        (binary(ctx, "EQUAL", self, float("inf")), limits.max if posinf is None else posinf),
        (binary(ctx, "EQUAL", self, float("-inf")), limits.min if neginf is None else neginf),
    )
    value = self
    for condition, number in replacements:
        value = select(ctx, condition, cast(ctx, number, dtype), value)
    return value


@converter(aten.heaviside.default, checks=computable)
def aten_heaviside(ctx: ConversionContext, self: Operand, values: Operand) -> Any:
    """heaviside(Tensor self, Tensor values) -> Tensor"""
    dtype = ctx.result_dtype
    value, middle = promote(ctx, self, values, dtype=torch.int32 if dtype is torch.bool else dtype)
    zero, one = torch.zeros((), dtype=dtype_of(value)), torch.ones((), dtype=dtype_of(value))
    step = select(ctx, binary(ctx, "GREATER", value, 0), one, zero)
    return cast(ctx, select(ctx, binary(ctx, "EQUAL", value, 0), middle, step), dtype)
