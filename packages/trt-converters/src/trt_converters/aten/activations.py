"""Activation functions of neural networks, softmax among them."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.aten.ordering import clip
from trt_converters.aten.unary import in_float32
from trt_converters.checks import argument, computable, fixed_number
from trt_converters.context import (
    ConversionContext,
    Operand,
    dtype_of,
    is_exactly,
    is_size_number,
    normalize_axis,
    rank_of,
)
from trt_converters.layers import (
    activation,
    binary,
    cast,
    less_equal,
    logical_not,
    reduce,
    reshape,
    select,
    sizes_of,
    slice_tensor,
    softmax,
    unary,
    with_rank,
)
from trt_converters.layers.elementary import log1p, negate, widen
from trt_converters.layers.extremum import any_along
from trt_converters.registry import converter

aten = torch.ops.aten

_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


@converter(aten.relu.default, checks=computable)
def aten_relu(ctx: ConversionContext, self: Operand) -> Any:
    """relu(Tensor self) -> Tensor"""
    return activation(ctx, "RELU", self)


@converter(aten.relu6.default, checks=computable)
def aten_relu6(ctx: ConversionContext, self: Operand) -> Any:
    """relu6(Tensor self) -> Tensor"""
    return clip(ctx, self, 0, 6)


@converter(aten.hardtanh.default, checks=computable)
def aten_hardtanh(ctx: ConversionContext, self: Operand, min_val: float, max_val: float) -> Any:
    """hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"""
    return clip(ctx, self, min_val, max_val)


@converter(aten.leaky_relu.default, checks=computable)
def aten_leaky_relu(ctx: ConversionContext, self: Operand, negative_slope: float) -> Any:
    """leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"""
    if not is_size_number(negative_slope):
        return activation(ctx, "LEAKY_RELU", self, negative_slope)
    value = widen(ctx, self)
    below = binary(ctx, "PROD", value, negative_slope)
    return cast(ctx, select(ctx, binary(ctx, "GREATER", value, 0.0), value, below), dtype_of(self))


@converter(
    aten.rrelu.default,
    checks=(
        computable,
        argument("training", lambda training: not training, "training draws random slopes"),
        fixed_number("lower", "upper"),
    ),
    random=True,
)
def aten_rrelu(
    ctx: ConversionContext, self: Operand, lower: float, upper: float, training: bool, generator: Any
) -> Any:
    """rrelu(Tensor self, Scalar lower=0.125, Scalar upper=0.333, bool training=False, Generator? generator=None) -> Tensor"""  # noqa: E501 - the schema
    return activation(ctx, "LEAKY_RELU", self, (lower + upper) / 2)


@converter(aten.prelu.default, aten._prelu_kernel.default, checks=computable)
def aten_prelu(ctx: ConversionContext, self: Operand, weight: Operand) -> Any:
    """prelu(Tensor self, Tensor weight) -> Tensor"""
    rank = rank_of(self)
    if rank_of(weight) < rank:  # one slope per channel, which is axis 1
        count = weight.shape[0] if rank_of(weight) else 1
        weight = reshape(ctx, weight, [count if axis == min(1, rank - 1) else 1 for axis in range(rank)])
    elif rank_of(weight) > rank:
        weight = reshape(ctx, weight, [1] * rank)
    layer = ctx.network.add_parametric_relu(ctx.tensor(self), ctx.tensor(with_rank(ctx, weight, rank)))
    return ctx.output(layer, "prelu")


@converter(aten.elu.default, checks=computable)
def aten_elu(ctx: ConversionContext, self: Operand, alpha: float, scale: float, input_scale: float) -> Any:
    """elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor"""
    return _elu(ctx, self, alpha, scale, input_scale)


@converter(aten.celu.default, checks=computable)
def aten_celu(ctx: ConversionContext, self: Operand, alpha: float) -> Any:
    """celu(Tensor self, Scalar alpha=1.) -> Tensor"""
    return _elu(ctx, self, alpha, 1.0, 1.0 / alpha)


def _elu(ctx: ConversionContext, value: Operand, alpha: float, scale: float, input_scale: float) -> Any:
    """Returns scale * (x if x > 0 else alpha * (exp(x * input_scale) - 1))."""
    if is_exactly(input_scale, 1) and not is_size_number(alpha):
        result = activation(ctx, "ELU", value, alpha)
    else:
        inner = value if is_exactly(input_scale, 1) else binary(ctx, "PROD", value, input_scale)
        if is_size_number(alpha):
            below = binary(ctx, "PROD", activation(ctx, "ELU", inner, 1.0), alpha)
        else:
            below = activation(ctx, "ELU", inner, alpha)
        result = select(ctx, binary(ctx, "GREATER", value, 0.0), value, below)
    return result if is_exactly(scale, 1) else binary(ctx, "PROD", result, scale, "scale")


@converter(aten.selu.default, checks=computable)
def aten_selu(ctx: ConversionContext, self: Operand) -> Any:
    """selu(Tensor self) -> Tensor"""
    return activation(ctx, "SELU", self, _SELU_ALPHA, _SELU_SCALE)


@converter(aten.gelu.default, checks=computable)
def aten_gelu(ctx: ConversionContext, self: Operand, approximate: str) -> Any:
    """gelu(Tensor self, *, str approximate="none") -> Tensor"""
    return activation(ctx, "GELU_TANH" if approximate == "tanh" else "GELU_ERF", self)


@converter(aten.silu.default, checks=computable)
def aten_silu(ctx: ConversionContext, self: Operand) -> Any:
    """silu(Tensor self) -> Tensor"""
    return binary(ctx, "PROD", self, activation(ctx, "SIGMOID", self))


@converter(aten.mish.default, checks=computable)
def aten_mish(ctx: ConversionContext, self: Operand) -> Any:
    """mish(Tensor self) -> Tensor"""

    def mish(value: Any) -> Any:
        return binary(ctx, "PROD", value, activation(ctx, "TANH", _softplus(ctx, value, 1.0, 20.0)))

    return in_float32(ctx, self, mish)


@converter(aten.softplus.default, checks=computable)
def aten_softplus(ctx: ConversionContext, self: Operand, beta: float, threshold: float) -> Any:
    """softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"""
    return in_float32(ctx, self, lambda value: _softplus(ctx, value, beta, threshold))


def _softplus(ctx: ConversionContext, value: Operand, beta: float, threshold: float) -> Any:
    """Returns log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds the threshold."""
    scaled = value if is_exactly(beta, 1) else binary(ctx, "PROD", value, beta)
    if is_size_number(beta):
        curved = binary(ctx, "DIV", activation(ctx, "SOFTPLUS", scaled, 1.0, 1.0), beta)
    else:
        curved = activation(ctx, "SOFTPLUS", value, 1.0 / beta, beta)
    return select(ctx, binary(ctx, "GREATER", scaled, threshold), value, curved)


@converter(aten.log_sigmoid.default, checks=computable)
def aten_log_sigmoid(ctx: ConversionContext, self: Operand) -> Any:
    """log_sigmoid(Tensor self) -> Tensor"""

    def log_sigmoid(value: Any) -> Any:
        tail = log1p(ctx, unary(ctx, "EXP", negate(ctx, unary(ctx, "ABS", value))))
        return binary(ctx, "SUB", binary(ctx, "MIN", value, 0.0), tail)

    return in_float32(ctx, self, log_sigmoid)


@converter(aten.log_sigmoid_forward.default, checks=computable)
def aten_log_sigmoid_forward(ctx: ConversionContext, self: Operand) -> Any:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)"""
    # the buffer serves the backward pass only; on some devices it is empty
    return aten_log_sigmoid(ctx, self), None


@converter(aten.hardsigmoid.default, checks=computable)
def aten_hardsigmoid(ctx: ConversionContext, self: Operand) -> Any:
    """hardsigmoid(Tensor self) -> Tensor"""
    return activation(ctx, "HARD_SIGMOID", self, 1 / 6, 0.5)


@converter(aten.hardswish.default, checks=computable)
def aten_hardswish(ctx: ConversionContext, self: Operand) -> Any:
    """hardswish(Tensor self) -> Tensor"""
    return binary(ctx, "PROD", self, activation(ctx, "HARD_SIGMOID", self, 1 / 6, 0.5))


@converter(aten.threshold.default, checks=computable)
def aten_threshold(ctx: ConversionContext, self: Operand, threshold: float, value: float) -> Any:
    """threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor"""
    return select(ctx, less_equal(ctx, self, threshold), cast(ctx, value, dtype_of(self)), self)


@converter(aten.hardshrink.default, checks=computable)
def aten_hardshrink(ctx: ConversionContext, self: Operand, lambd: float) -> Any:
    """hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor"""
    inside = less_equal(ctx, unary(ctx, "ABS", self), lambd)
    return select(ctx, inside, torch.zeros((), dtype=dtype_of(self)), self)


@converter(aten.softshrink.default, checks=computable)
def aten_softshrink(ctx: ConversionContext, self: Operand, lambd: float) -> Any:
    """softshrink(Tensor self, Scalar lambd=0.5) -> Tensor"""
    # the middle is 0 * x, which is NaN for NaN
    value = widen(ctx, self)
    below = select(
        ctx,
        binary(ctx, "LESS", value, -lambd),
        binary(ctx, "SUM", value, lambd),
        binary(ctx, "PROD", value, 0.0),
    )
    above = binary(ctx, "SUB", value, lambd)
    return cast(ctx, select(ctx, binary(ctx, "GREATER", value, lambd), above, below), dtype_of(self))


@converter(aten.glu.default, checks=computable)
def aten_glu(ctx: ConversionContext, self: Operand, dim: int) -> Any:
    """glu(Tensor self, int dim=-1) -> Tensor"""
    rank = rank_of(self)
    axis = normalize_axis(dim, rank)
    sizes: list[Any] = list(sizes_of(ctx, self))
    sizes[axis] = ctx.result_shape[axis]
    ones = [1] * rank
    first = slice_tensor(ctx, self, [0] * rank, sizes, ones)
    starts: list[Any] = [0] * rank
    starts[axis] = ctx.result_shape[axis]
    second = slice_tensor(ctx, self, starts, sizes, ones)
    return binary(ctx, "PROD", first, activation(ctx, "SIGMOID", second))


# Softmax and its logarithm ------------------------------------------------------------------------------------------


@converter(aten._softmax.default, checks=computable)
def aten__softmax(ctx: ConversionContext, self: Operand, dim: int, half_to_float: bool) -> Any:
    """_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return _softmax(ctx, self, dim)


@converter(aten.softmax.int, checks=computable)
def aten_softmax(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    return _softmax(ctx, self, dim)


@converter(aten._safe_softmax.default, checks=computable)
def aten__safe_softmax(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    value = cast(ctx, self, ctx.result_dtype)
    axis = normalize_axis(dim, rank_of(value))
    present = logical_not(ctx, binary(ctx, "EQUAL", value, float("-inf")))
    some = any_along(ctx, present, (axis,), True)
    return select(ctx, some, softmax(ctx, value, axis), torch.zeros((), dtype=ctx.result_dtype))


def _softmax(ctx: ConversionContext, value: Operand, dim: int) -> Any:
    return softmax(ctx, cast(ctx, value, ctx.result_dtype), normalize_axis(dim, rank_of(value)))


@converter(aten._log_softmax.default, checks=computable)
def aten__log_softmax(ctx: ConversionContext, self: Operand, dim: int, half_to_float: bool) -> Any:
    """_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
    return _log_softmax(ctx, self, dim)


@converter(aten.log_softmax.int, checks=computable)
def aten_log_softmax(ctx: ConversionContext, self: Operand, dim: int, dtype: torch.dtype | None) -> Any:
    """log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"""
    return _log_softmax(ctx, self, dim)


def _log_softmax(ctx: ConversionContext, value: Operand, dim: int) -> Any:
    """Returns x - max - log(sum(exp(x - max))): the logarithm of a softmax would be -inf where that underflows."""
    wide = widen(ctx, cast(ctx, value, ctx.result_dtype))
    if rank_of(wide) == 0:
        return cast(ctx, binary(ctx, "SUB", wide, wide), ctx.result_dtype)
    axes = (normalize_axis(dim, rank_of(wide)),)
    shifted = binary(ctx, "SUB", wide, reduce(ctx, "MAX", wide, axes, True))
    total = reduce(ctx, "SUM", unary(ctx, "EXP", shifted), axes, True)
    result = binary(ctx, "SUB", shifted, unary(ctx, "LOG", total))
    return cast(ctx, result, ctx.result_dtype)
