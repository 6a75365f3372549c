"""Primitive operators that decompositions leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, Size, normalize_axes, rank_of
from trt_converters.layers import binary, cast, expand, reduce, reshape
from trt_converters.registry import converter
from trt_core.dtypes import FLOATS, INTEGERS

prims = torch.ops.prims
NUMBERS = FLOATS | INTEGERS


@converter(prims.broadcast_in_dim.default)
def prims_broadcast_in_dim(
    ctx: ConversionContext, a: Operand, shape: Sequence[Size], broadcast_dimensions: Sequence[int]
) -> Any:
    """broadcast_in_dim(Tensor(a) a, SymInt[] shape, int[] broadcast_dimensions) -> Tensor(a)"""
    own: list[Any] = [1] * len(shape)
    for axis, extent in zip(broadcast_dimensions, ctx.symbolic_shape("a"), strict=True):
        own[axis] = extent
    return expand(ctx, reshape(ctx, a, own), ctx.result_shape, own)


@converter(prims.div.default, checks=dtypes("self", NUMBERS))
def prims_div(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """div(Tensor self, Tensor other) -> Tensor"""
    return binary(ctx, "DIV", self, other)


@converter(prims.sum.default, checks=dtypes("inp", NUMBERS))
def prims_sum(
    ctx: ConversionContext, inp: Operand, dims: Sequence[int] | None, output_dtype: torch.dtype | None
) -> Any:
    """sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    axes = normalize_axes(dims, rank_of(inp)) if dims is None or len(dims) else ()
    return reduce(ctx, "SUM", cast(ctx, inp, ctx.result_dtype), axes, False)


@converter(prims.convert_element_type.default)
def prims_convert_element_type(ctx: ConversionContext, a: Operand, dtype: torch.dtype) -> Any:
    """convert_element_type(Tensor a, ScalarType dtype) -> Tensor"""
    return cast(ctx, a, dtype)


@converter(prims.view_of.default)
def prims_view_of(ctx: ConversionContext, a: Operand) -> Any:
    """view_of(Tensor(a) a) -> Tensor(a)"""
    return a
