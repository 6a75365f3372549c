"""Comparisons and logic."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand
from trt_converters.layers import binary, cast, greater_equal, less_equal, logical_not, promote
from trt_converters.layers.casts import result_type
from trt_converters.registry import converter

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
