"""The error function's relatives, and the gamma function's logarithm and its derivative.

None of them has a layer but erf. Polynomials below approximate smooth factors of them in a variable that is scaled to
[-1, 1]; they are Chebyshev fits with errors below 1e-7, so that float32 results are right to a few units in the last
places. Coefficients stand from the highest power down.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.aten.exponentials import in_float32
from trt_converters.checks import computable
from trt_converters.context import ConversionContext, Operand
from trt_converters.layers import binary, cast, promote, select, unary
from trt_converters.layers.elementary import log1p, negate, polynomial, widen
from trt_converters.registry import converter

aten = torch.ops.aten

_ERFC = (
    -1.10323004e-05,
    -1.53977347e-05,
    0.00012608398,
    0.000159021482,
    -0.0012098925,
    -0.0026066636,
    0.0111672138,
    0.0763387419,
    0.229341784,
    0.456323064,
)
_ERFINV_CENTER = (
    -3.33397449e-05,
    3.55312599e-05,
    0.000284074803,
    -0.000845544523,
    -0.000484350475,
    0.00852916905,
    -0.0195741754,
    -0.0261086873,
    0.61660059,
    1.50140948,
)
_ERFINV_TAIL = (
    7.97065725e-05,
    -8.49990642e-05,
    -0.000318747254,
    0.000995847127,
    -0.00171507015,
    0.00255776502,
    -0.00387041368,
    0.00554395355,
    0.986781331,
    3.05175705,
)
_LGAMMA = (
    7.81756283e-05,
    -0.000158938519,
    0.000130632441,
    -0.000319052293,
    0.000944296622,
    -0.00214866367,
    0.00499156091,
    -0.0123766533,
    0.0329656257,
    -0.100317689,
    0.422784326,
)

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def _scaled(ctx: ConversionContext, value: Operand, low: float, high: float) -> Any:
    """Maps [low, high] to [-1, 1]."""
    shifted = binary(ctx, "SUB", value, (low + high) / 2)
    return binary(ctx, "PROD", shifted, 2 / (high - low))


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


@converter(aten.erf.default, checks=computable)
def aten_erf(ctx: ConversionContext, self: Operand) -> Any:
    """erf(Tensor self) -> Tensor"""
    return unary(ctx, "ERF", cast(ctx, self, ctx.result_dtype))


@converter(aten.erfc.default, checks=computable)
def aten_erfc(ctx: ConversionContext, self: Operand) -> Any:
    """erfc(Tensor self) -> Tensor"""

    def erfc(x: Any) -> Any:
        size = unary(ctx, "ABS", x)
        # erfc(x) = exp(-x^2) u p(u) with u = 1 / (1 + x / 2); 1 - erf(x) would cancel
        u = unary(ctx, "RECIP", binary(ctx, "SUM", binary(ctx, "PROD", size, 0.5), 1.0))
        decay = unary(ctx, "EXP", negate(ctx, binary(ctx, "PROD", x, x)))
        smooth = polynomial(ctx, _scaled(ctx, u, 0.03, 0.8), _ERFC)
        tail = binary(ctx, "PROD", binary(ctx, "PROD", decay, u), smooth)
        outer = select(ctx, binary(ctx, "LESS", x, 0.0), binary(ctx, "SUB", 2.0, tail), tail)
        inner = binary(ctx, "SUB", 1.0, unary(ctx, "ERF", x))
        return select(ctx, binary(ctx, "LESS", size, 0.5), inner, outer)

    return in_float32(ctx, self, erfc)


@converter(aten.erfinv.default, checks=computable)
def aten_erfinv(ctx: ConversionContext, self: Operand) -> Any:
    """erfinv(Tensor self) -> Tensor"""

    def erfinv(x: Any) -> Any:
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

    return in_float32(ctx, self, erfinv)


@converter(aten.lgamma.default, checks=computable)
def aten_lgamma(ctx: ConversionContext, self: Operand) -> Any:
    """lgamma(Tensor self) -> Tensor"""

    def lgamma(x: Any) -> Any:
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

    return in_float32(ctx, self, lgamma)


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
def aten_digamma(ctx: ConversionContext, self: Operand) -> Any:
    """digamma(Tensor self) -> Tensor"""

    def digamma(x: Any) -> Any:
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

    return in_float32(ctx, self, digamma)


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


@converter(
    aten.special_xlog1py.default,
    aten.special_xlog1py.other_scalar,
    aten.special_xlog1py.self_scalar,
    checks=computable,
)
def aten_special_xlog1py(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """special_xlog1py(Tensor self, Tensor other) -> Tensor"""
    left, right = (widen(ctx, operand) for operand in promote(ctx, self, other, dtype=ctx.result_dtype))
    product = binary(ctx, "PROD", left, log1p(ctx, right))
    found = select(ctx, binary(ctx, "EQUAL", left, 0.0), _number(0.0), product)
    return cast(ctx, select(ctx, unary(ctx, "ISNAN", right), right, found), ctx.result_dtype)
