"""Casts, copies, and operators that return their input."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.byte_tensor import as_bytes
from trt_converters.call import Call
from trt_converters.checks import argument, computable
from trt_converters.context import ConversionContext, Operand, dtype_of
from trt_converters.layers import binary, cast, expand, squeeze, unary, unsqueeze
from trt_converters.registry import converter
from trt_core import Reason, Verdict, to_trt

aten = torch.ops.aten

_WRAPPED = {torch.int8: (-128, 256), torch.uint8: (0, 256)}


def _same_device(call: Call) -> Verdict | None:
    """Engines live on one device."""
    source, target = call.tensor("self").device, call.result.device
    if source == target:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"it moves a tensor from {source} to {target}")


def _strided(call: Call) -> Verdict | None:
    """Refuses layouts other than strided."""
    layout = call.arguments.get("layout")
    if layout in (None, torch.strided):
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"layout={layout}")


def _castable(call: Call) -> Verdict | None:
    """Casts exist between all types but float8, which comes from float types by quantization with scale 1."""
    types = {call.tensor("self").dtype, call.result.dtype}
    if torch.float8_e4m3fn in types and len(types) == 2:
        (other,) = types - {torch.float8_e4m3fn}
        if not other.is_floating_point:
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"no layer casts between float8_e4m3fn and {other}")
    return None


_CASTS = (_same_device, _strided, _castable)


def convert_type(ctx: ConversionContext, value: Operand, dtype: torch.dtype) -> Any:
    """Casts a value as `Tensor.to` does; integers wrap around in int8 and uint8, and truncated floats in uint8.

    Floats beyond the range of float8 become its largest number where PyTorch makes NaN of them.
    """
    source = dtype_of(value)
    if source is dtype or isinstance(value, torch.Tensor):
        return cast(ctx, value, dtype)
    if torch.float8_e4m3fn in (source, dtype):
        return _cast_float8(ctx, value, dtype)
    if dtype is torch.uint8 and source.is_floating_point:
        whole = cast(ctx, cast(ctx, value, torch.int32), torch.float32)
        turns = unary(ctx, "FLOOR", binary(ctx, "PROD", whole, 1 / 256))
        return as_bytes(binary(ctx, "SUB", whole, binary(ctx, "PROD", turns, 256.0)))  # exact: powers of two
    if dtype is torch.uint8 and source is torch.int8:
        value, source = cast(ctx, value, torch.int32), torch.int32
    if dtype in _WRAPPED and source in (torch.int32, torch.int64):
        low, count = _WRAPPED[dtype]
        moved = binary(ctx, "SUB", value, low)
        whole = binary(ctx, "PROD", binary(ctx, "FLOOR_DIV", moved, count), count)
        value = binary(ctx, "SUM", binary(ctx, "SUB", moved, whole), low)
    return cast(ctx, value, dtype)


def _cast_float8(ctx: ConversionContext, value: Operand, dtype: torch.dtype) -> Any:
    scalar = not value.shape
    if scalar:
        value = unsqueeze(ctx, value, (0,))
    scale = ctx.tensor(torch.ones((), dtype=torch.float32))
    if dtype is torch.float8_e4m3fn:
        layer = ctx.network.add_quantize(value, scale, to_trt(dtype))
        result = ctx.output(layer, "quantize")
    else:
        layer = ctx.network.add_dequantize(value, scale, to_trt(torch.float32))
        result = cast(ctx, ctx.output(layer, "dequantize"), dtype)
    return squeeze(ctx, result, (0,)) if scalar else result


@converter(aten._to_copy.default, checks=_CASTS)
def aten_to_copy(ctx: ConversionContext, self: Operand, **options: Any) -> Any:
    """_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor"""  # noqa: E501 - the schema
    return convert_type(ctx, self, ctx.result_dtype)


@converter(aten.to.dtype, aten.to.device, aten.to.other, aten.to.dtype_layout, checks=_CASTS)
def aten_to(ctx: ConversionContext, self: Operand, **options: Any) -> Any:
    """to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"""  # noqa: E501 - the schema
    return convert_type(ctx, self, ctx.result_dtype)


@converter(aten.type_as.default, checks=_CASTS)
def aten_type_as(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """type_as(Tensor self, Tensor other) -> Tensor"""
    return convert_type(ctx, self, ctx.result_dtype)


@converter(aten.copy.default, checks=(_strided, computable))
def aten_copy(ctx: ConversionContext, self: Operand, src: Operand, non_blocking: bool) -> Any:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    value = cast(ctx, src, ctx.result_dtype)
    return expand(ctx, value, ctx.result_shape, ctx.symbolic_shape("src"))


@converter(aten.clone.default, aten.contiguous.default)
def aten_clone(ctx: ConversionContext, self: Operand, memory_format: Any) -> Any:
    """clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"""
    return self


@converter(
    aten.detach.default,
    aten.detach_copy.default,
    aten.alias.default,
    aten.alias_copy.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
def aten_detach(ctx: ConversionContext, self: Operand) -> Any:
    """detach(Tensor(a) self) -> Tensor(a)"""
    return self


def _evaluating(parameter: str = "train") -> Any:
    return argument(parameter, lambda training: training is False, "training drops elements at random")


@converter(
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    checks=_evaluating(),
    random=True,
)
def aten_dropout(ctx: ConversionContext, input: Operand, p: float, train: bool) -> Any:
    """dropout(Tensor input, float p, bool train) -> Tensor"""
    return input


@converter(aten.native_dropout.default, checks=_evaluating(), random=True)
def aten_native_dropout(ctx: ConversionContext, input: Operand, p: float, train: bool | None) -> Any:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    from trt_converters.aten.creation import filled

    return input, filled(ctx, ctx.result[1].shape, True, torch.bool)


@converter(torch.ops.prims.view_of.default)
def prims_view_of(ctx: ConversionContext, a: Operand) -> Any:
    """view_of(Tensor(a) a) -> Tensor(a)"""
    return a


@converter(torch.ops.prims.convert_element_type.default)
def prims_convert_element_type(ctx: ConversionContext, a: Operand, dtype: torch.dtype) -> Any:
    """convert_element_type(Tensor a, ScalarType dtype) -> Tensor"""
    return cast(ctx, a, dtype)
