"""Bitwise operators and shifts of integers; TensorRT has layers for bools alone, so integers are taken apart."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import binary, logical_not, promote, reduce, select, unsqueeze
from trt_converters.registry import converter
from trt_core import Reason, Verdict

aten = torch.ops.aten

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
