"""Matrix products of quantized values: layers multiply floats, so that the values are dequantized for them.

A provider that has kernels for it computes such a product in low precision: it sees quantized operands behind the
dequantize layers. Products of weights that are packed for one library's kernels are refused by name.
"""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.aten.copies import convert_type
from trt_converters.aten.linear import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import constant, dtypes, never
from trt_converters.context import ConversionContext, Operand, dtype_of, rank_of
from trt_converters.layers import binary, cast
from trt_converters.layers.quantization import dequantize_layer, layer_dequantizes, to_float
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS

aten = torch.ops.aten

_ONE = torch.ones(())


def _operand(ctx: ConversionContext, value: Operand, dtype: torch.dtype) -> Any:
    """Returns quantized values as they are, in a float type, behind a dequantize layer where there is one for them."""
    if layer_dequantizes(value, _ONE):
        return dequantize_layer(ctx, value, _ONE, dtype)
    return cast(ctx, to_float(ctx, value), dtype)


@converter(aten._int_mm.default)
def aten__int_mm(ctx: ConversionContext, self: Operand, mat2: Operand) -> Any:
    """_int_mm(Tensor self, Tensor mat2) -> Tensor"""
    left, right = (_operand(ctx, value, torch.float32) for value in (self, mat2))
    return cast(ctx, matrix_multiply(ctx, left, right), torch.int32)


def _float8_e4m3(call: Call) -> Verdict | None:
    """Refuses other types than float8_e4m3fn, scales for each block, and `scale_result`."""
    for name in ("self", "mat2"):
        dtype = call.tensor(name).dtype
        if dtype is not torch.float8_e4m3fn:
            return Verdict.refuse(Reason.NO_LOW_PRECISION, f"{name} is {dtype}: networks have float8_e4m3fn alone")
    for name in ("scale_a", "scale_b"):
        scale = call.tensor(name)
        if scale.dtype is not torch.float32 or scale.dim() > 2:
            return Verdict.refuse(Reason.NO_LOW_PRECISION, f"{name} has a scale for each block")
    if call["scale_result"] is not None:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "scale_result is given")
    return None


def _fits_rows_or_columns(call: Call) -> Verdict | None:
    """Refuses scales that are not those of rows and columns."""
    rows, columns = call.tensor("scale_a"), call.tensor("scale_b")
    broadcast = (rows.dim() < 2 or rows.shape[1] == 1) and (columns.dim() < 2 or columns.shape[0] == 1)
    if broadcast:
        return None
    return Verdict.refuse(Reason.NO_LOW_PRECISION, "scales are not those of rows and columns")


@converter(aten._scaled_mm.default, checks=(_float8_e4m3, _fits_rows_or_columns))
def aten__scaled_mm(
    ctx: ConversionContext,
    self: Operand,
    mat2: Operand,
    scale_a: Operand,
    scale_b: Operand,
    bias: Operand | None,
    scale_result: Operand | None,
    out_dtype: torch.dtype | None,
    use_fast_accum: bool,
) -> Any:
    """_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor"""  # noqa: E501 - the schema
    dtype = ctx.result_dtype if ctx.result_dtype in FLOATS else torch.float32
    factors = []
    operands = []
    for value, scale, axis in ((self, scale_a, 0), (mat2, scale_b, 1)):
        if layer_dequantizes(value, scale):  # scales of weights, and known ones of whole tensors
            flat = scale if scale.numel() == 1 else scale.reshape(-1)
            operands.append(dequantize_layer(ctx, value, flat, dtype, axis=axis))
        else:
            operands.append(_operand(ctx, value, dtype))
            factors.append(scale)
    product = matrix_multiply(ctx, *operands)
    for factor in factors:
        wide = cast(ctx, factor, torch.float32)
        product = binary(ctx, "PROD", cast(ctx, product, torch.float32), wide, "scale")
    product = cast(ctx, product, dtype)
    if bias is not None:
        product = binary(ctx, "SUM", product, cast(ctx, bias, dtype), "bias")
    return convert_type(ctx, product, ctx.result_dtype)  # float8 where no other type is asked for


@converter(aten._weight_int8pack_mm.default, checks=(dtypes("self", FLOATS), constant("mat2", "scales")))
def aten__weight_int8pack_mm(ctx: ConversionContext, self: Operand, mat2: Operand, scales: Operand) -> Any:
    """_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor"""
    assert rank_of(mat2) == 2
    weight = dequantize_layer(ctx, mat2, scales, dtype_of(self), axis=0)
    return matrix_multiply(ctx, self, weight, transpose_right=True)


def _unpackable(ctx: ConversionContext, **operands: Operand) -> Any:
    """Products of weights that are packed for one kernel."""
    raise ctx.fail("its weights are packed for one library's kernels")


for _name in (
    "_weight_int4pack_mm",
    "_weight_int4pack_mm_for_cpu",
    "_weight_int4pack_mm_with_scales_and_zeros",
    "_dyn_quant_matmul_4bit",
):
    _operator: Any = getattr(aten, _name, None)
    if _operator is not None:
        converter(
            _operator.default,
            checks=never(Reason.NO_LOW_PRECISION, "its weights are packed for one kernel of PyTorch"),
        )(_unpackable)


def _without_groups(ctx: ConversionContext, **operands: Operand) -> Any:
    """Products of groups of rows, each with a matrix of its own."""
    raise ctx.fail("no layer multiplies groups of rows")


for _name in ("_scaled_grouped_mm", "_scaled_grouped_mm_v2"):
    _operator = getattr(aten, _name, None)
    if _operator is not None:
        converter(
            _operator.default,
            checks=never(Reason.NO_LOW_PRECISION, "no layer multiplies groups of rows, whose ends are data"),
        )(_without_groups)
