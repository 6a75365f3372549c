"""Tensors made from numbers (fills, ranges, diagonals, triangles, random ones), casts and copies of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.byte_tensor import as_bytes
from trt_converters.call import Call
from trt_converters.checks import argument, computable
from trt_converters.context import ConversionContext, Operand, Size, dtype_of, is_exactly, is_size_number, rank_of
from trt_converters.layers import (
    binary,
    cast,
    expand,
    greater_equal,
    less_equal,
    select,
    shape_vector,
    squeeze,
    unary,
    unsqueeze,
)
from trt_converters.layers.gathering import index_range
from trt_converters.layers.pointwise import widen
from trt_converters.layers.reductions import positions
from trt_converters.registry import convert_each, converter, refuse_each
from trt_core import Reason, Verdict, to_trt, trt
from trt_core.dtypes import TRT_NAMES
from trt_core.sizes.expressions import extent_of

aten = torch.ops.aten

Number = float | int

_SMALL = 1 << 12


def filled(ctx: ConversionContext, shape: Sequence[Size], value: Operand, dtype: torch.dtype) -> Any:
    """Returns a tensor of one number: a constant while it is small, else one element that is repeated."""
    sizes = list(shape)
    number = cast(ctx, value, dtype)
    known = all(isinstance(size, int) for size in sizes)
    if isinstance(number, torch.Tensor) and known and torch.Size(sizes).numel() <= _SMALL:
        return number.expand(sizes).contiguous()
    if not sizes:
        return number
    if isinstance(number, torch.Tensor):
        number = number.reshape([1] * len(sizes))
    if dtype is torch.uint8:
        return as_bytes(expand(ctx, ctx.tensor(cast(ctx, number, torch.float32)), sizes))
    return expand(ctx, ctx.tensor(number), sizes)


def _plain_options(call: Call) -> Verdict | None:
    """Strided tensors on the engine's device, of a type that constants or casts can make."""
    layout = call.arguments.get("layout")
    if layout not in (None, torch.strided):
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"layout={layout}")
    if call.result.dtype is torch.float8_e4m3fn or call.result.dtype not in TRT_NAMES:
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"no constant has type {call.result.dtype}")
    return None


def _full(ctx: ConversionContext, value: Operand) -> Any:
    return filled(ctx, ctx.result_shape, value, ctx.result_dtype)


convert_each(
    {
        (aten.full.default, aten.full_like.default, aten.new_full.default): lambda ctx, fill_value, **_: _full(
            ctx, fill_value
        ),
        (aten.fill.Scalar, aten.fill.Tensor): lambda ctx, self, value: _full(ctx, value),
        (aten.ones.default, aten.ones_like.default, aten.new_ones.default): lambda ctx, **_: _full(ctx, 1),
        (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default): lambda ctx, **_: _full(ctx, 0),
        (
            *(aten.empty.memory_format, aten.empty_like.default),
            *(aten.new_empty.default, aten.empty_permuted.default),
        ): lambda ctx, **_: _full(ctx, 0),  # any content will do
        aten.scalar_tensor.default: lambda ctx, s, **_: filled(ctx, (), s, ctx.result_dtype),
    },
    checks=_plain_options,
)


def _countable(call: Call) -> Verdict | None:
    """How many steps lead to a fraction of a size is no arithmetic on sizes."""
    count = call.result.shape[0]
    if any(isinstance(value, torch.SymFloat) for value in call.arguments.values()) and extent_of(count) is None:
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"no layers compute the extent {count}")
    return None


convert_each(
    {
        (aten.arange.default, aten.arange.start, aten.arange.start_step): lambda ctx, end, start=0, step=1, **_: (
            _arange(ctx, start, end, step)
        )
    },
    checks=(_plain_options, _countable),
)


def _arange(ctx: ConversionContext, start: Operand, end: Operand, step: Operand) -> Any:
    if all(isinstance(number, (int, float)) for number in (start, end, step)):
        return torch.arange(start, end, step, dtype=ctx.result_dtype)
    places = index_range(ctx, ctx.result_shape[0])
    integral = not isinstance(start, (float, torch.SymFloat)) and not isinstance(step, (float, torch.SymFloat))
    value = cast(ctx, places, torch.int64 if integral else torch.float32)
    for operation, number in (("PROD", step), ("SUM", start)):
        if not is_exactly(number, 1 if operation == "PROD" else 0):
            value = binary(ctx, operation, value, number)
    return cast(ctx, value, ctx.result_dtype)


def _known_or_float(call: Call) -> Verdict | None:
    """Whole numbers are cut off the points of a line, where the last digit of a float would count."""
    varies = any(is_size_number(call[name]) for name in ("start", "end", "steps"))
    if varies and not call.result.dtype.is_floating_point:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "it makes integers between ends that vary with a size")
    return None


def _line(ctx: ConversionContext, start: Number, end: Number, steps: Size) -> Any:
    """Returns points from start to end, float32; each from the nearer end, so that both are met."""
    places = cast(ctx, index_range(ctx, steps), torch.float32)
    last = binary(ctx, "SUB", cast(ctx, steps, torch.float32), 1.0)
    first, final = (cast(ctx, number, torch.float32) for number in (start, end))
    step = binary(ctx, "DIV", binary(ctx, "SUB", final, first), binary(ctx, "MAX", last, 1.0))
    rest = binary(ctx, "SUB", last, places)
    from_start = binary(ctx, "SUM", first, binary(ctx, "PROD", step, places))
    from_end = binary(ctx, "SUB", final, binary(ctx, "PROD", step, rest))
    beyond_middle = binary(ctx, "GREATER", places, rest)
    return select(ctx, beyond_middle, from_end, from_start)


@converter(aten.linspace.default, checks=(_plain_options, _known_or_float))
def aten_linspace(ctx: ConversionContext, start: Number, end: Number, steps: int, **options: Any) -> Any:
    """linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    if any(map(is_size_number, (start, end, steps))):
        return cast(ctx, _line(ctx, start, end, steps), ctx.result_dtype)
    return torch.linspace(start, end, steps, dtype=ctx.result_dtype)


@converter(aten.logspace.default, checks=(_plain_options, _known_or_float))
def aten_logspace(ctx: ConversionContext, start: Number, end: Number, steps: int, base: float, **options: Any) -> Any:
    """logspace(Scalar start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    if any(map(is_size_number, (start, end, steps))):
        return cast(ctx, binary(ctx, "POW", float(base), _line(ctx, start, end, steps)), ctx.result_dtype)
    return torch.logspace(start, end, steps, base, dtype=ctx.result_dtype)


@converter(aten.eye.default, aten.eye.m, checks=_plain_options)
def aten_eye(ctx: ConversionContext, **options: Any) -> Any:
    """eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    rows, columns = _rows_and_columns(ctx, ctx.result_shape, 2)
    return cast(ctx, _compare(ctx, rows, columns, "EQUAL"), ctx.result_dtype)


def _rows_and_columns(ctx: ConversionContext, shape: Sequence[Size], rank: int) -> tuple[Any, Any]:
    """Returns row numbers along the last axis but one, and column numbers along the last."""
    return positions(ctx, shape[-2], rank - 2, rank), positions(ctx, shape[-1], rank - 1, rank)


def _compare(ctx: ConversionContext, left: Operand, right: Operand, relation: str) -> Any:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return {"EQUAL": torch.eq, "LESS_EQUAL": torch.le, "GREATER_EQUAL": torch.ge}[relation](left, right)
    if relation == "EQUAL":
        return binary(ctx, "EQUAL", left, right)
    return (less_equal if relation == "LESS_EQUAL" else greater_equal)(ctx, left, right)


def _triangle(ctx: ConversionContext, value: Operand, diagonal: Size, relation: str) -> Any:
    rows, columns = _rows_and_columns(ctx, ctx.result_shape, rank_of(value))
    edge = ctx.size(diagonal)
    if not (isinstance(edge, int) and edge == 0):
        edge = torch.tensor([edge]) if isinstance(edge, int) else edge
        rows = (
            rows + edge
            if isinstance(rows, torch.Tensor) and isinstance(edge, torch.Tensor)
            else binary(ctx, "SUM", rows, edge)
        )
    inside = _compare(ctx, columns, rows, relation)
    return select(ctx, inside, value, torch.zeros((), dtype=dtype_of(value)))


def _selectable(call: Call) -> Verdict | None:
    """Refuses int8 and float8, between whose elements no layer selects."""
    dtype = call.result.dtype
    if dtype in (torch.int8, torch.float8_e4m3fn):
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"no layer selects between elements of type {dtype}")
    return None


convert_each(
    {
        aten.tril.default: lambda ctx, self, diagonal: _triangle(ctx, self, diagonal, "LESS_EQUAL"),
        aten.triu.default: lambda ctx, self, diagonal: _triangle(ctx, self, diagonal, "GREATER_EQUAL"),
    },
    checks=_selectable,
)


# Random numbers -----------------------------------------------------------------------------------------------------
# Layers draw anew on every call. PyTorch's seed does not reach them.


_EXACT = 1 << 24  # float32 counts to here

_HALF_BITS = {torch.bfloat16: 8}


def _plain(call: Call) -> Verdict | None:
    """Numbers drawn with a generator of the model's are the model's own; sparse results do not exist."""
    if call.arguments.get("generator") is not None:
        return Verdict.refuse(Reason.SIDE_EFFECT, "it draws with a generator of the model's")
    if call.arguments.get("layout") not in (None, torch.strided):
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"layout={call['layout']}")
    return None


def _draw(ctx: ConversionContext, shape: Sequence[Size], operation: str, dtype: torch.dtype) -> Any:
    """Adds a layer that draws float32 or float16 numbers: uniform in [0, 1), or normal."""
    sizes = [ctx.size(size) for size in shape]
    static = tuple(size if isinstance(size, int) else 1 for size in sizes)
    layer = ctx.network.add_fill(static, getattr(trt.FillOperation, operation), to_trt(dtype))
    if layer is not None and not all(isinstance(size, int) for size in sizes):
        layer.set_input(0, ctx.tensor(shape_vector(ctx, sizes)))
    return ctx.output(layer, "random")


def _uniform(ctx: ConversionContext, shape: Sequence[Size], dtype: torch.dtype) -> Any:
    """Returns numbers in [0, 1) of a float type; bfloat16 gets the 256 it can tell apart, as 1.0 must not appear."""
    if dtype is not torch.bfloat16:
        return _draw(ctx, shape, "RANDOM_UNIFORM", dtype)
    steps = 1 << _HALF_BITS[dtype]
    fine = binary(ctx, "PROD", _draw(ctx, shape, "RANDOM_UNIFORM", torch.float32), float(steps))
    return cast(ctx, binary(ctx, "DIV", unary(ctx, "FLOOR", fine), float(steps)), dtype)


def _normal(ctx: ConversionContext, shape: Sequence[Size], dtype: torch.dtype) -> Any:
    drawn = torch.float16 if dtype is torch.float16 else torch.float32
    return cast(ctx, _draw(ctx, shape, "RANDOM_NORMAL", drawn), dtype)


convert_each(
    {
        (aten.rand.default, aten.rand.generator, aten.rand_like.default): lambda ctx, **_: _uniform(
            ctx, ctx.result_shape, ctx.result_dtype
        ),
        (aten.randn.default, aten.randn.generator, aten.randn_like.default): lambda ctx, **_: _normal(
            ctx, ctx.result_shape, ctx.result_dtype
        ),
        aten.bernoulli.default: lambda ctx, self, generator: _coin(ctx, self),
        (aten.bernoulli.p, aten.bernoulli.Tensor): lambda ctx, self, p, generator: _coin(
            ctx, torch.tensor(float(p)) if isinstance(p, (int, float)) else p
        ),
    },
    checks=(computable, _plain),
    random=True,
)


def _narrow_range(call: Call) -> Verdict | None:
    """Refuses ranges with more integers than uniform floats can tell apart."""
    low, high = call.arguments.get("low", 0), call["high"]
    if isinstance(low, int) and isinstance(high, int) and high - low <= _EXACT:
        return None
    return Verdict.refuse(
        Reason.UNSUPPORTED_ARGUMENT, f"uniform floats do not reach every integer from {low} to {high}"
    )


convert_each(
    {
        (
            *(aten.randint.default, aten.randint.generator, aten.randint_like.default),
            *(aten.randint.low, aten.randint.low_generator, aten.randint_like.low_dtype),
        ): lambda ctx, high, low=0, **_: _integers(ctx, low, high)
    },
    checks=(computable, _plain, _narrow_range),
    random=True,
)


def _integers(ctx: ConversionContext, low: int, high: int) -> Any:
    """Returns integers in [low, high)."""
    drawn = binary(ctx, "PROD", _draw(ctx, ctx.result_shape, "RANDOM_UNIFORM", torch.float32), float(high - low))
    # the product may round up to the end of the range
    place = binary(ctx, "MIN", unary(ctx, "FLOOR", drawn), float(high - low - 1))
    whole = cast(ctx, place, torch.int64)
    return cast(ctx, binary(ctx, "SUM", whole, low) if low else whole, ctx.result_dtype)


def _coin(ctx: ConversionContext, probability: Operand) -> Any:
    """Returns 1 with a probability, else 0, in the result's type."""
    probability = widen(ctx, probability)
    drawn = _draw(ctx, ctx.result_shape, "RANDOM_UNIFORM", torch.float32)
    return cast(ctx, binary(ctx, "LESS", drawn, cast(ctx, probability, torch.float32)), ctx.result_dtype)


refuse_each(
    Reason.SIDE_EFFECT,
    "a random permutation has no layer, and PyTorch draws it",
    *(aten.randperm.default, aten.randperm.generator),
    random=True,
)


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


convert_each(
    {
        (
            *(aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.other, aten.to.dtype_layout),
            aten.type_as.default,
        ): lambda ctx, self, **_: convert_type(ctx, self, ctx.result_dtype),
    },
    checks=_CASTS,
)


@converter(aten.copy.default, checks=(_strided, computable))
def aten_copy(ctx: ConversionContext, self: Operand, src: Operand, non_blocking: bool) -> Any:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor"""
    value = cast(ctx, src, ctx.result_dtype)
    return expand(ctx, value, ctx.result_shape, ctx.symbolic_shape("src"))


_EVALUATING = argument("train", lambda training: training is False, "training drops elements at random")


@converter(
    aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default, checks=_EVALUATING, random=True
)
def aten_dropout(ctx: ConversionContext, input: Operand, p: float, train: bool) -> Any:
    """dropout(Tensor input, float p, bool train) -> Tensor"""
    return input


@converter(aten.native_dropout.default, checks=_EVALUATING, random=True)
def aten_native_dropout(ctx: ConversionContext, input: Operand, p: float, train: bool | None) -> Any:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)"""
    return input, filled(ctx, ctx.result[1].shape, True, torch.bool)


convert_each(
    {
        (
            *(aten.detach.default, aten.detach_copy.default, aten.alias.default, aten.alias_copy.default),
            *(aten.lift_fresh.default, aten.lift_fresh_copy.default),
        ): lambda ctx, self: self,
        (aten.clone.default, aten.contiguous.default): lambda ctx, self, memory_format: self,
        torch.ops.prims.view_of.default: lambda ctx, a: a,
        torch.ops.prims.convert_element_type.default: lambda ctx, a, dtype: cast(ctx, a, dtype),
    }
)
