"""Random numbers: layers that draw anew on every call. PyTorch's seed does not reach them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import computable, never
from trt_converters.context import ConversionContext, Operand, Size
from trt_converters.layers import binary, cast, shape_vector, unary
from trt_converters.layers.elementary import widen
from trt_converters.registry import converter
from trt_core import Reason, Verdict, to_trt, trt

aten = torch.ops.aten

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


@converter(aten.rand.default, aten.rand.generator, checks=(computable, _plain), random=True)
@converter(aten.rand_like.default, checks=(computable, _plain), random=True)
def aten_rand(ctx: ConversionContext, **options: Any) -> Any:
    """rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    return _uniform(ctx, ctx.result_shape, ctx.result_dtype)


@converter(aten.randn.default, aten.randn.generator, checks=(computable, _plain), random=True)
@converter(aten.randn_like.default, checks=(computable, _plain), random=True)
def aten_randn(ctx: ConversionContext, **options: Any) -> Any:
    """randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    return _normal(ctx, ctx.result_shape, ctx.result_dtype)


def _narrow_range(call: Call) -> Verdict | None:
    """Refuses ranges with more integers than uniform floats can tell apart."""
    low, high = call.arguments.get("low", 0), call["high"]
    if isinstance(low, int) and isinstance(high, int) and high - low <= _EXACT:
        return None
    return Verdict.refuse(
        Reason.UNSUPPORTED_ARGUMENT, f"uniform floats do not reach every integer from {low} to {high}"
    )


_INTEGERS = (computable, _plain, _narrow_range)


@converter(aten.randint.default, aten.randint.generator, checks=_INTEGERS, random=True)
@converter(aten.randint_like.default, checks=_INTEGERS, random=True)
def aten_randint(ctx: ConversionContext, high: int, **options: Any) -> Any:
    """randint(SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    return _integers(ctx, 0, high)


@converter(aten.randint.low, aten.randint.low_generator, checks=_INTEGERS, random=True)
@converter(aten.randint_like.low_dtype, checks=_INTEGERS, random=True)
def aten_randint_low(ctx: ConversionContext, low: int, high: int, **options: Any) -> Any:
    """randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    return _integers(ctx, low, high)


def _integers(ctx: ConversionContext, low: int, high: int) -> Any:
    """Returns integers in [low, high)."""
    drawn = binary(ctx, "PROD", _draw(ctx, ctx.result_shape, "RANDOM_UNIFORM", torch.float32), float(high - low))
    # the product may round up to the end of the range
    place = binary(ctx, "MIN", unary(ctx, "FLOOR", drawn), float(high - low - 1))
    whole = cast(ctx, place, torch.int64)
    return cast(ctx, binary(ctx, "SUM", whole, low) if low else whole, ctx.result_dtype)


@converter(aten.bernoulli.default, checks=(computable, _plain), random=True)
def aten_bernoulli(ctx: ConversionContext, self: Operand, generator: Any) -> Any:
    """bernoulli(Tensor self, *, Generator? generator=None) -> Tensor"""
    return _coin(ctx, self)


@converter(aten.bernoulli.p, aten.bernoulli.Tensor, checks=(computable, _plain), random=True)
def aten_bernoulli_p(ctx: ConversionContext, self: Operand, p: Operand, generator: Any) -> Any:
    """bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor"""
    return _coin(ctx, torch.tensor(float(p)) if isinstance(p, (int, float)) else p)


def _coin(ctx: ConversionContext, probability: Operand) -> Any:
    """Returns 1 with a probability, else 0, in the result's type."""
    probability = widen(ctx, probability)
    drawn = _draw(ctx, ctx.result_shape, "RANDOM_UNIFORM", torch.float32)
    return cast(ctx, binary(ctx, "LESS", drawn, cast(ctx, probability, torch.float32)), ctx.result_dtype)


_PERMUTATION = never(Reason.SIDE_EFFECT, "a random permutation has no layer, and PyTorch draws it")


@converter(aten.randperm.default, aten.randperm.generator, checks=_PERMUTATION, random=True)
def aten_randperm(ctx: ConversionContext, n: Size, **options: Any) -> Any:
    """randperm(SymInt n, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"""  # noqa: E501 - the schema
    raise ctx.fail("a random permutation has no layer")
