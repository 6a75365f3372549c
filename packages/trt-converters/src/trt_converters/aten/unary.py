"""Elementary and special functions of one operand, rounding, signs, and activations, softmax among them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from trt_converters.aten.ordering import clip
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
    promote,
    reduce,
    reshape,
    select,
    sizes_of,
    slice_tensor,
    softmax,
    unary,
    with_rank,
)
from trt_converters.layers.pointwise import (
    expm1,
    has_sign,
    is_nan,
    log1p,
    maximum,
    minimum,
    negate,
    polynomial,
    truncate,
    widen,
)
from trt_converters.layers.reductions import any_along
from trt_converters.registry import convert_each, converter

aten = torch.ops.aten


def as_result(ctx: ConversionContext, value: Operand) -> Any:
    """Casts an operand to the type of the node's result: integers become floats."""
    return cast(ctx, value, ctx.result_dtype)


def in_float32(ctx: ConversionContext, value: Operand, function: Callable[[Any], Any]) -> Any:
    """Applies a function to a float value, in float32 when it is a half type, and returns the node's result type."""
    return cast(ctx, function(widen(ctx, as_result(ctx, value))), ctx.result_dtype)


def of_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a converter of what computes a function of a float32 value."""

    @functools.wraps(function)
    def convert(ctx: ConversionContext, self: Operand, **arguments: Any) -> Any:
        return in_float32(ctx, self, lambda value: function(ctx, value, **arguments))

    return convert


@converter(aten.square.default, checks=computable)
def aten_square(ctx: ConversionContext, self: Operand) -> Any:
    """square(Tensor self) -> Tensor"""
    value = as_result(ctx, self)
    return binary(ctx, "PROD", value, value)


convert_each(
    {
        aten.log2.default: lambda ctx, self: in_float32(
            ctx, self, lambda value: binary(ctx, "PROD", unary(ctx, "LOG", value), 1 / math.log(2))
        ),
        aten.log10.default: lambda ctx, self: in_float32(
            ctx, self, lambda value: binary(ctx, "PROD", unary(ctx, "LOG", value), 1 / math.log(10))
        ),
        aten.rsqrt.default: lambda ctx, self: in_float32(
            ctx, self, lambda value: unary(ctx, "RECIP", unary(ctx, "SQRT", value))
        ),
        aten.exp.default: lambda ctx, self: unary(ctx, "EXP", as_result(ctx, self)),
        aten.exp2.default: lambda ctx, self: binary(ctx, "POW", 2.0, as_result(ctx, self)),
        aten.expm1.default: lambda ctx, self: in_float32(ctx, self, lambda value: expm1(ctx, value)),
        aten.log.default: lambda ctx, self: unary(ctx, "LOG", as_result(ctx, self)),
        aten.log1p.default: lambda ctx, self: in_float32(ctx, self, lambda value: log1p(ctx, value)),
        aten.sqrt.default: lambda ctx, self: unary(ctx, "SQRT", as_result(ctx, self)),
        aten.reciprocal.default: lambda ctx, self: unary(ctx, "RECIP", as_result(ctx, self)),
        (aten.sigmoid.default, aten.special_expit.default): lambda ctx, self: activation(
            ctx, "SIGMOID", as_result(ctx, self)
        ),
    },
    checks=computable,
)


@converter(aten.logit.default, checks=computable)
@of_float32
def aten_logit(ctx: ConversionContext, value: Operand, eps: float | None) -> Any:
    """logit(Tensor self, float? eps=None) -> Tensor"""
    if eps is not None:
        low, high = (cast(ctx, bound, dtype_of(value)) for bound in (eps, 1.0 - eps))
        value = minimum(ctx, maximum(ctx, value, low), high)
    return unary(ctx, "LOG", binary(ctx, "DIV", value, binary(ctx, "SUB", 1.0, value)))


# Trigonometric and hyperbolic functions and their inverses ----------------------------------------------------------


def _through_float32(ctx: ConversionContext, operation: str, value: Operand) -> Any:
    """Layers that not every version of TensorRT has for bfloat16 compute it in float32."""
    value = as_result(ctx, value)
    if ctx.result_dtype is torch.bfloat16:
        value = cast(ctx, value, torch.float32)
    return cast(ctx, unary(ctx, operation, value), ctx.result_dtype)


convert_each(
    {
        aten.sin.default: lambda ctx, self: unary(ctx, "SIN", as_result(ctx, self)),
        aten.cos.default: lambda ctx, self: unary(ctx, "COS", as_result(ctx, self)),
        aten.tan.default: lambda ctx, self: _through_float32(ctx, "TAN", self),
        aten.sinh.default: lambda ctx, self: _through_float32(ctx, "SINH", self),
        aten.cosh.default: lambda ctx, self: _through_float32(ctx, "COSH", self),
        aten.tanh.default: lambda ctx, self: activation(ctx, "TANH", as_result(ctx, self)),
        aten.asin.default: lambda ctx, self: _through_float32(ctx, "ASIN", self),
        aten.acos.default: lambda ctx, self: _through_float32(ctx, "ACOS", self),
        aten.atan.default: lambda ctx, self: _through_float32(ctx, "ATAN", self),
        aten.asinh.default: lambda ctx, self: _through_float32(ctx, "ASINH", self),
        aten.acosh.default: lambda ctx, self: _through_float32(ctx, "ACOSH", self),
        aten.atanh.default: lambda ctx, self: _through_float32(ctx, "ATANH", self),
        aten.deg2rad.default: lambda ctx, self: binary(ctx, "PROD", as_result(ctx, self), math.pi / 180),
        aten.rad2deg.default: lambda ctx, self: binary(ctx, "PROD", as_result(ctx, self), 180 / math.pi),
    },
    checks=computable,
)


@converter(aten.sinc.default, checks=computable)
def aten_sinc(ctx: ConversionContext, self: Operand) -> Any:
    """sinc(Tensor self) -> Tensor"""
    angle = binary(ctx, "PROD", widen(ctx, as_result(ctx, self)), math.pi)
    ratio = binary(ctx, "DIV", unary(ctx, "SIN", angle), angle)
    one = torch.ones((), dtype=torch.float32)
    return cast(ctx, select(ctx, binary(ctx, "EQUAL", angle, 0.0), one, ratio), ctx.result_dtype)


@converter(aten.atan2.default, aten.arctan2.default, checks=computable)
def aten_atan2(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """atan2(Tensor self, Tensor other) -> Tensor"""
    y, x = promote(ctx, self, other, dtype=ctx.result_dtype)
    y, x = widen(ctx, y), widen(ctx, x)
    # inf / inf has no value: only the signs of two infinities count
    both = binary(ctx, "AND", unary(ctx, "ISINF", y), unary(ctx, "ISINF", x))
    y = select(ctx, both, unary(ctx, "SIGN", y), y)
    x = select(ctx, both, unary(ctx, "SIGN", x), x)
    # nor has 0 / 0: a zero keeps its sign, unless the other operand is NaN
    zero = binary(ctx, "AND", binary(ctx, "EQUAL", y, 0.0), logical_not(ctx, is_nan(ctx, x)))
    angle = unary(ctx, "ATAN", select(ctx, zero, y, binary(ctx, "DIV", y, x)))
    pi = torch.tensor(math.pi, dtype=torch.float32)
    turn = binary(ctx, "SUM", angle, select(ctx, has_sign(ctx, y), -pi, pi))
    return cast(ctx, select(ctx, has_sign(ctx, x), turn, angle), ctx.result_dtype)


# Rounding, signs and absolute values --------------------------------------------------------------------------------


def _round(ctx: ConversionContext, operation: str, value: Operand) -> Any:
    return unary(ctx, operation, value) if dtype_of(value).is_floating_point else value


@converter(aten.positive.default)
def aten_positive(ctx: ConversionContext, self: Operand) -> Any:
    """positive(Tensor(a) self) -> Tensor(a)"""
    return self


@converter(aten.sign.default, aten.sgn.default, checks=computable)
def aten_sign(ctx: ConversionContext, self: Operand) -> Any:
    """sign(Tensor self) -> Tensor"""
    if dtype_of(self) is torch.bool:
        return self
    if not dtype_of(self).is_floating_point:
        return unary(ctx, "SIGN", self)
    # the layer's sign of NaN is not specified, PyTorch's is 0
    positive = cast(ctx, binary(ctx, "GREATER", self, 0.0), dtype_of(self))
    return binary(ctx, "SUB", positive, cast(ctx, binary(ctx, "LESS", self, 0.0), dtype_of(self)))


@converter(aten.signbit.default, checks=computable)
def aten_signbit(ctx: ConversionContext, self: Operand) -> Any:
    """signbit(Tensor self) -> Tensor"""
    if dtype_of(self) is torch.bool:
        self = cast(ctx, self, torch.int32)
    return has_sign(ctx, self)


@converter(
    aten.round.decimals,
    checks=(computable, argument("decimals", lambda decimals: abs(decimals) <= 30, "10 ** decimals is not finite")),
)
def aten_round_decimals(ctx: ConversionContext, self: Operand, decimals: int) -> Any:
    """round.decimals(Tensor self, *, int decimals) -> Tensor"""
    dtype = dtype_of(self)
    if decimals == 0 or not dtype.is_floating_point:
        return _round(ctx, "ROUND", self)
    scale = 10.0 ** abs(decimals)
    self = widen(ctx, self)  # 65504 * 10 is no half number
    forward, back = ("PROD", "DIV") if decimals > 0 else ("DIV", "PROD")
    rounded = unary(ctx, "ROUND", binary(ctx, forward, self, scale))
    return cast(ctx, binary(ctx, back, rounded, scale), dtype)


convert_each(
    {
        (aten.trunc.default, aten.fix.default): lambda ctx, self: (
            truncate(ctx, self) if dtype_of(self).is_floating_point else self
        ),
        aten.abs.default: lambda ctx, self: self if dtype_of(self) is torch.bool else unary(ctx, "ABS", self),
        aten.neg.default: lambda ctx, self: negate(ctx, self),
        aten.ceil.default: lambda ctx, self: _round(ctx, "CEIL", self),
        aten.floor.default: lambda ctx, self: _round(ctx, "FLOOR", self),
        aten.round.default: lambda ctx, self: _round(ctx, "ROUND", self),
        aten.frac.default: lambda ctx, self: binary(ctx, "SUB", self, truncate(ctx, self)),
    },
    checks=computable,
)


@converter(aten.angle.default, checks=computable)
def aten_angle(ctx: ConversionContext, self: Operand) -> Any:
    """angle(Tensor self) -> Tensor"""
    dtype = ctx.result_dtype
    value = cast(ctx, self, dtype)
    real = select(
        ctx, binary(ctx, "LESS", value, 0.0), torch.tensor(torch.pi, dtype=dtype), torch.zeros((), dtype=dtype)
    )
    return select(ctx, unary(ctx, "ISNAN", value), value, real)


# The error and gamma functions and their relatives ------------------------------------------------------------------
# None of them has a layer but erf. Polynomials below approximate smooth factors of them in a variable that is scaled to
# [-1, 1]; they are Chebyshev fits with errors below 1e-7, so that float32 results are right to a few units in the last
# places. Coefficients stand from the highest power down.


_ERFC = (
    *(-1.10323004e-05, -1.53977347e-05, 0.00012608398, 0.000159021482, -0.0012098925, -0.0026066636, 0.0111672138),
    *(0.0763387419, 0.229341784, 0.456323064),
)
_ERFINV_CENTER = (
    *(-3.33397449e-05, 3.55312599e-05, 0.000284074803, -0.000845544523, -0.000484350475, 0.00852916905, -0.0195741754),
    *(-0.0261086873, 0.61660059, 1.50140948),
)
_ERFINV_TAIL = (
    *(7.97065725e-05, -8.49990642e-05, -0.000318747254, 0.000995847127, -0.00171507015, 0.00255776502, -0.00387041368),
    *(0.00554395355, 0.986781331, 3.05175705),
)
_LGAMMA = (
    *(7.81756283e-05, -0.000158938519, 0.000130632441, -0.000319052293, 0.000944296622, -0.00214866367, 0.00499156091),
    *(-0.0123766533, 0.0329656257, -0.100317689, 0.422784326),
)

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def _scaled(ctx: ConversionContext, value: Operand, low: float, high: float) -> Any:
    """Maps [low, high] to [-1, 1]."""
    shifted = binary(ctx, "SUB", value, (low + high) / 2)
    return binary(ctx, "PROD", shifted, 2 / (high - low))


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


@converter(aten.erfc.default, checks=computable)
@of_float32
def aten_erfc(ctx: ConversionContext, x: Operand) -> Any:
    """erfc(Tensor self) -> Tensor"""
    size = unary(ctx, "ABS", x)
    # erfc(x) = exp(-x^2) u p(u) with u = 1 / (1 + x / 2); 1 - erf(x) would cancel
    u = unary(ctx, "RECIP", binary(ctx, "SUM", binary(ctx, "PROD", size, 0.5), 1.0))
    decay = unary(ctx, "EXP", negate(ctx, binary(ctx, "PROD", x, x)))
    smooth = polynomial(ctx, _scaled(ctx, u, 0.03, 0.8), _ERFC)
    tail = binary(ctx, "PROD", binary(ctx, "PROD", decay, u), smooth)
    outer = select(ctx, binary(ctx, "LESS", x, 0.0), binary(ctx, "SUB", 2.0, tail), tail)
    inner = binary(ctx, "SUB", 1.0, unary(ctx, "ERF", x))
    return select(ctx, binary(ctx, "LESS", size, 0.5), inner, outer)


@converter(aten.erfinv.default, checks=computable)
@of_float32
def aten_erfinv(ctx: ConversionContext, x: Operand) -> Any:
    """erfinv(Tensor self) -> Tensor"""
    # erfinv(x) = x p(w) with w = -log(1 - x^2), in two pieces
    product = binary(ctx, "PROD", binary(ctx, "SUB", 1.0, x), binary(ctx, "SUM", x, 1.0))
    w = negate(ctx, unary(ctx, "LOG", product))
    center = polynomial(ctx, _scaled(ctx, w, 1e-6, 5.0), _ERFINV_CENTER)
    root = unary(ctx, "SQRT", binary(ctx, "MAX", w, 0.0))
    tail = polynomial(ctx, _scaled(ctx, root, math.sqrt(5.0), 4.2), _ERFINV_TAIL)
    factor = select(ctx, binary(ctx, "LESS", w, 5.0), center, tail)
    found = binary(ctx, "PROD", x, factor)
    end = binary(ctx, "EQUAL", unary(ctx, "ABS", x), 1.0)
    found = select(ctx, end, binary(ctx, "PROD", x, float("inf")), found)
    beyond = binary(ctx, "GREATER", unary(ctx, "ABS", x), 1.0)
    return select(ctx, beyond, _number(float("nan")), found)


@converter(aten.lgamma.default, checks=computable)
@of_float32
def aten_lgamma(ctx: ConversionContext, x: Operand) -> Any:
    """lgamma(Tensor self) -> Tensor"""
    left = binary(ctx, "LESS", x, 0.5)
    z = select(ctx, left, binary(ctx, "SUB", 1.0, x), x)
    right_half = _log_gamma_right(ctx, z)
    # reflection: gamma(x) gamma(1 - x) = pi / sin(pi x), the angle reduced to where the sine is exact
    rest = binary(ctx, "SUB", x, unary(ctx, "ROUND", x))
    sine = unary(ctx, "ABS", unary(ctx, "SIN", binary(ctx, "PROD", rest, math.pi)))
    reflected = binary(ctx, "SUB", binary(ctx, "SUB", math.log(math.pi), unary(ctx, "LOG", sine)), right_half)
    found = select(ctx, left, reflected, right_half)
    # poles are named: far to the left, where every number is one, the reflection takes infinity from infinity
    pole = binary(ctx, "AND", left, binary(ctx, "EQUAL", rest, 0.0))
    infinite = binary(ctx, "OR", pole, unary(ctx, "ISINF", x))
    return select(ctx, infinite, _number(float("inf")), found)


def _log_gamma_right(ctx: ConversionContext, z: Operand) -> Any:
    """Returns log(gamma(z)) for z >= 0.5: its zeros 1 and 2 as factors below 3, Stirling's series above."""
    low = binary(ctx, "LESS", z, 1.0)
    y = select(ctx, low, binary(ctx, "SUM", z, 1.0), z)
    zeros = binary(ctx, "PROD", binary(ctx, "SUB", y, 1.0), binary(ctx, "SUB", y, 2.0))
    near = binary(ctx, "PROD", zeros, polynomial(ctx, _scaled(ctx, y, 1.0, 3.0), _LGAMMA))
    near = select(ctx, low, binary(ctx, "SUB", near, unary(ctx, "LOG", z)), near)
    inverse = unary(ctx, "RECIP", z)
    square = binary(ctx, "PROD", inverse, inverse)
    series = binary(ctx, "PROD", inverse, polynomial(ctx, square, (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12)))
    growth = binary(ctx, "PROD", binary(ctx, "SUB", z, 0.5), binary(ctx, "SUB", unary(ctx, "LOG", z), 1.0))
    far = binary(ctx, "SUM", binary(ctx, "SUM", growth, _HALF_LOG_TAU - 0.5), series)
    return select(ctx, binary(ctx, "LESS", z, 3.0), near, far)


@converter(aten.digamma.default, checks=computable)
@of_float32
def aten_digamma(ctx: ConversionContext, x: Operand) -> Any:
    """digamma(Tensor self) -> Tensor"""
    left = binary(ctx, "LESS", x, 0.5)
    z = select(ctx, left, binary(ctx, "SUB", 1.0, x), x)
    right_half = _digamma_right(ctx, z)
    rest = binary(ctx, "SUB", x, unary(ctx, "ROUND", x))
    tangent = unary(ctx, "TAN", binary(ctx, "PROD", rest, math.pi))
    reflected = binary(ctx, "SUB", right_half, binary(ctx, "DIV", math.pi, tangent))
    found = select(ctx, left, reflected, right_half)
    # at 0 the function is infinite, with the sign of the side, at the negative integers PyTorch has no value
    inverse = unary(ctx, "NEG", unary(ctx, "RECIP", x))
    found = select(ctx, binary(ctx, "EQUAL", x, 0.0), inverse, found)
    pole = binary(ctx, "AND", binary(ctx, "LESS", x, 0.0), binary(ctx, "EQUAL", rest, 0.0))
    return select(ctx, pole, _number(float("nan")), found)


def _digamma_right(ctx: ConversionContext, z: Operand) -> Any:
    """Returns digamma(z) for z >= 0.5: six steps of the recurrence lead to where the asymptotic series holds."""
    steps: Any = unary(ctx, "RECIP", z)
    for step in range(1, 6):
        steps = binary(ctx, "SUM", steps, unary(ctx, "RECIP", binary(ctx, "SUM", z, float(step))))
    far = binary(ctx, "SUM", z, 6.0)
    inverse = unary(ctx, "RECIP", far)
    square = binary(ctx, "PROD", inverse, inverse)
    series = binary(ctx, "PROD", square, polynomial(ctx, square, (1 / 252, -1 / 120, 1 / 12)))
    logarithm = binary(ctx, "SUB", unary(ctx, "LOG", far), binary(ctx, "PROD", inverse, 0.5))
    return binary(ctx, "SUB", binary(ctx, "SUB", logarithm, series), steps)


_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


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


@converter(aten.mish.default, checks=computable)
@of_float32
def aten_mish(ctx: ConversionContext, value: Operand) -> Any:
    """mish(Tensor self) -> Tensor"""
    return binary(ctx, "PROD", value, activation(ctx, "TANH", _softplus(ctx, value, 1.0, 20.0)))


def _softplus(ctx: ConversionContext, value: Operand, beta: float, threshold: float) -> Any:
    """Returns log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds the threshold."""
    scaled = value if is_exactly(beta, 1) else binary(ctx, "PROD", value, beta)
    if is_size_number(beta):
        curved = binary(ctx, "DIV", activation(ctx, "SOFTPLUS", scaled, 1.0, 1.0), beta)
    else:
        curved = activation(ctx, "SOFTPLUS", value, 1.0 / beta, beta)
    return select(ctx, binary(ctx, "GREATER", scaled, threshold), value, curved)


@converter(aten.log_sigmoid.default, checks=computable)
@of_float32
def aten_log_sigmoid(ctx: ConversionContext, value: Operand) -> Any:
    """log_sigmoid(Tensor self) -> Tensor"""
    tail = log1p(ctx, unary(ctx, "EXP", negate(ctx, unary(ctx, "ABS", value))))
    return binary(ctx, "SUB", binary(ctx, "MIN", value, 0.0), tail)


@converter(aten.log_sigmoid_forward.default, checks=computable)
def aten_log_sigmoid_forward(ctx: ConversionContext, self: Operand) -> Any:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)"""
    # the buffer serves the backward pass only; on some devices it is empty
    return aten_log_sigmoid(ctx, self), None


convert_each(
    {
        aten.gelu.default: lambda ctx, self, approximate: activation(
            ctx, "GELU_TANH" if approximate == "tanh" else "GELU_ERF", self
        ),
        aten.softplus.default: lambda ctx, self, beta, threshold: in_float32(
            ctx, self, lambda value: _softplus(ctx, value, beta, threshold)
        ),
        aten.erf.default: lambda ctx, self: unary(ctx, "ERF", cast(ctx, self, ctx.result_dtype)),
        aten.relu.default: lambda ctx, self: activation(ctx, "RELU", self),
        aten.relu6.default: lambda ctx, self: clip(ctx, self, 0, 6),
        aten.hardtanh.default: lambda ctx, self, min_val, max_val: clip(ctx, self, min_val, max_val),
        aten.elu.default: lambda ctx, self, alpha, scale, input_scale: _elu(ctx, self, alpha, scale, input_scale),
        aten.celu.default: lambda ctx, self, alpha: _elu(ctx, self, alpha, 1.0, 1.0 / alpha),
        aten.selu.default: lambda ctx, self: activation(ctx, "SELU", self, _SELU_ALPHA, _SELU_SCALE),
        aten.silu.default: lambda ctx, self: binary(ctx, "PROD", self, activation(ctx, "SIGMOID", self)),
        aten.hardsigmoid.default: lambda ctx, self: activation(ctx, "HARD_SIGMOID", self, 1 / 6, 0.5),
        aten.hardswish.default: lambda ctx, self: binary(
            ctx, "PROD", self, activation(ctx, "HARD_SIGMOID", self, 1 / 6, 0.5)
        ),
        aten.threshold.default: lambda ctx, self, threshold, value: select(
            ctx, less_equal(ctx, self, threshold), cast(ctx, value, dtype_of(self)), self
        ),
    },
    checks=computable,
)


@converter(aten.softshrink.default, checks=computable)
def aten_softshrink(ctx: ConversionContext, self: Operand, lambd: float) -> Any:
    """softshrink(Tensor self, Scalar lambd=0.5) -> Tensor"""
    # the middle is 0 * x, which is NaN for NaN
    value = widen(ctx, self)
    below = select(
        ctx, binary(ctx, "LESS", value, -lambd), binary(ctx, "SUM", value, lambd), binary(ctx, "PROD", value, 0.0)
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


convert_each(
    {
        aten._softmax.default: lambda ctx, self, dim, half_to_float: _softmax(ctx, self, dim),
        aten.softmax.int: lambda ctx, self, dim, dtype: _softmax(ctx, self, dim),
        aten._log_softmax.default: lambda ctx, self, dim, half_to_float: _log_softmax(ctx, self, dim),
        aten.log_softmax.int: lambda ctx, self, dim, dtype: _log_softmax(ctx, self, dim),
    },
    checks=computable,
)


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
