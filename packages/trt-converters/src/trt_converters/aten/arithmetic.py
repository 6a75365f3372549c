"""Arithmetic with PyTorch's type promotion, comparisons, logic and bits, choice between elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from trt_converters.call import Call
from trt_converters.checks import computable, dtypes, promotable
from trt_converters.context import ConversionContext, Operand, dtype_of, is_exactly, is_size_number, rank_of
from trt_converters.layers import (
    binary,
    cast,
    greater_equal,
    less_equal,
    logical_not,
    promote,
    reduce,
    select,
    unary,
    unsqueeze,
)
from trt_converters.layers.casts import result_type
from trt_converters.layers.pointwise import has_sign, log1p, maximum, negate, truncate, widen
from trt_converters.registry import convert_each, converter, refuse_each
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS, INTEGERS

aten = torch.ops.aten

Number = float | int


def compute_type(result: torch.dtype, *numbers: Any, is_scaled: bool = False) -> torch.dtype:
    """Returns the type to compute in: float32 when the result is a half type that may not hold a Python number.

    PyTorch keeps Python numbers in float32 beside half tensors: `x * 1e9` must not become `x * inf`, nor 1e-12 be 0.
    Below the normal range digits are lost one by one: float16 has 1.2e-7 for 1e-7.

    Args:
        result: The type of the result.
        numbers: Operands; tensors do not count.
        is_scaled: Whether every digit counts, as in products and quotients. Sums take what the half type holds of a
            number, as PyTorch's do on the CPU.
    """
    if result in (torch.float16, torch.bfloat16):
        range_of = torch.finfo(result)
        for number in numbers:
            if is_size_number(number):
                return torch.float32
            if isinstance(number, (int, float)) and math.isfinite(number) and number:
                stored = torch.tensor(number, dtype=result).item()
                is_held = not is_scaled or stored == torch.tensor(number, dtype=torch.float32).item()
                if not is_held or abs(number) < range_of.smallest_normal or math.isinf(stored):
                    return torch.float32
    return result


def _sum(ctx: ConversionContext, operation: str, left: Operand, right: Operand, alpha: Number) -> Any:
    """Returns left + alpha * right, or left - alpha * right."""
    result = ctx.result_dtype
    if result is torch.bool:  # PyTorch adds bools as logic, and subtracts none
        return binary(ctx, "OR", *promote(ctx, left, right, dtype=result)) if alpha else cast(ctx, left, result)
    if isinstance(right, (int, float)) and not is_exactly(alpha, 1):
        right, alpha = right * alpha, 1
    if not is_exactly(alpha, 1) and result.is_floating_point:
        return _scaled_sum(ctx, operation, left, right, alpha)
    dtype = compute_type(result, left, right)
    left, right = promote(ctx, left, right, dtype=dtype)
    if not is_exactly(alpha, 1):
        right = binary(ctx, "PROD", right, alpha, "alpha")
    return cast(ctx, binary(ctx, operation, left, right), result)


def _scaled_sum(ctx: ConversionContext, operation: str, left: Operand, right: Operand, alpha: Number) -> Any:
    """Returns a sum whose product may be too large for the type where the sum is not: PyTorch rounds once.

    Half types are widened. All is made smaller by a power of two first, where alpha is known and large.
    """
    left, right = promote(ctx, left, right, dtype=torch.float32)
    shrink = 2.0 ** -math.frexp(alpha)[1] if not is_size_number(alpha) and 1 < abs(alpha) < math.inf else 1.0
    right = binary(ctx, "PROD", right, alpha if shrink == 1 else alpha * shrink, "alpha")
    if shrink == 1:
        return cast(ctx, binary(ctx, operation, left, right), ctx.result_dtype)
    left = binary(ctx, "PROD", left, torch.tensor(shrink, dtype=torch.float32), "shrink")
    total = binary(ctx, operation, left, right)
    return cast(
        ctx, binary(ctx, "PROD", total, torch.tensor(1 / shrink, dtype=torch.float32), "grow"), ctx.result_dtype
    )


convert_each(
    {
        (aten.add.Tensor, aten.add.Scalar): lambda ctx, self, other, alpha: _sum(ctx, "SUM", self, other, alpha),
        (aten.sub.Tensor, aten.sub.Scalar): lambda ctx, self, other, alpha: _sum(ctx, "SUB", self, other, alpha),
        (aten.rsub.Tensor, aten.rsub.Scalar): lambda ctx, self, other, alpha: _sum(ctx, "SUB", other, self, alpha),
    },
    checks=promotable,
)


@converter(aten.mul.Tensor, aten.mul.Scalar, checks=promotable)
def aten_mul(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """mul.Tensor(Tensor self, Tensor other) -> Tensor"""
    result = ctx.result_dtype
    left, right = promote(ctx, self, other, dtype=compute_type(result, self, other, is_scaled=True))
    return cast(ctx, binary(ctx, "AND" if result is torch.bool else "PROD", left, right), result)


def _add_scaled(
    ctx: ConversionContext, base: Operand, left: Operand, right: Operand, value: Number, operation: str
) -> Any:
    operands = promote(ctx, base, left, right, dtype=ctx.result_dtype)
    base, left, right = (widen(ctx, operand) for operand in operands)
    if not is_exactly(value, 1):
        left = binary(ctx, "PROD", left, value, "value")
    return cast(ctx, binary(ctx, "SUM", base, binary(ctx, operation, left, right)), ctx.result_dtype)


@converter(aten.lerp.Scalar, aten.lerp.Tensor, checks=computable)
def aten_lerp(ctx: ConversionContext, self: Operand, end: Operand, weight: Operand) -> Any:
    """lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor"""
    start, stop = (widen(ctx, operand) for operand in promote(ctx, self, end, dtype=ctx.result_dtype))
    is_number = isinstance(weight, (int, float)) or is_size_number(weight)
    share = weight if is_number else widen(ctx, cast(ctx, weight, ctx.result_dtype))
    start, stop, share = promote(ctx, start, stop, share)
    distance = binary(ctx, "SUB", stop, start)
    # from the nearer end, as PyTorch does, so that weights 0 and 1 give the ends themselves
    from_start = binary(ctx, "SUM", start, binary(ctx, "PROD", share, distance))
    from_stop = binary(ctx, "SUB", stop, binary(ctx, "PROD", distance, binary(ctx, "SUB", 1.0, share)))
    if isinstance(weight, (int, float)):
        return cast(ctx, from_start if abs(weight) < 0.5 else from_stop, ctx.result_dtype)
    near = binary(ctx, "LESS", unary(ctx, "ABS", share), 0.5)
    return cast(ctx, select(ctx, near, from_start, from_stop), ctx.result_dtype)


@converter(aten.logaddexp.default, checks=computable)
def aten_logaddexp(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """logaddexp(Tensor self, Tensor other) -> Tensor"""
    left, right = (widen(ctx, operand) for operand in promote(ctx, self, other, dtype=ctx.result_dtype))
    return cast(ctx, log_add_exp(ctx, left, right), ctx.result_dtype)


def log_add_exp(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns log(exp(left) + exp(right)) of float32 operands in the form that never overflows."""
    distance = unary(ctx, "ABS", binary(ctx, "SUB", left, right))
    tail = log1p(ctx, unary(ctx, "EXP", negate(ctx, distance)))
    # the difference of two equal infinities has no value, their sum does
    infinite = binary(ctx, "AND", unary(ctx, "ISINF", left), binary(ctx, "EQUAL", left, right))
    return select(ctx, infinite, left, binary(ctx, "SUM", maximum(ctx, left, right), tail))


@converter(aten.hypot.default, checks=computable)
def aten_hypot(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """hypot(Tensor self, Tensor other) -> Tensor"""
    operands = promote(ctx, self, other, dtype=ctx.result_dtype)
    left, right = (unary(ctx, "ABS", widen(ctx, operand)) for operand in operands)
    first = binary(ctx, "GREATER", left, right)
    longer, shorter = select(ctx, first, left, right), select(ctx, first, right, left)
    # scaled by the longer side, squares neither overflow nor vanish
    ratio = binary(ctx, "DIV", shorter, longer)
    root = unary(ctx, "SQRT", binary(ctx, "SUM", binary(ctx, "PROD", ratio, ratio), 1.0))
    # 0 / 0 has no value: the sum of two zeros is the length, and NaN beside a NaN
    zero = binary(ctx, "EQUAL", longer, 0.0)
    length = select(ctx, zero, binary(ctx, "SUM", longer, shorter), binary(ctx, "PROD", longer, root))
    infinite = binary(ctx, "OR", unary(ctx, "ISINF", left), unary(ctx, "ISINF", right))
    infinity = torch.tensor(float("inf"), dtype=torch.float32)
    return cast(ctx, select(ctx, infinite, infinity, length), ctx.result_dtype)


def _times_logarithm(ctx: ConversionContext, self: Operand, other: Operand, logarithm: Callable[[Operand], Any]) -> Any:
    """Returns `self * logarithm(other)`, 0 where `self` is, and NaN where `other` is."""
    left, right = (widen(ctx, operand) for operand in promote(ctx, self, other, dtype=ctx.result_dtype))
    product = binary(ctx, "PROD", left, logarithm(right))
    zero = torch.zeros((), dtype=dtype_of(left))
    found = select(ctx, binary(ctx, "EQUAL", left, 0.0), zero, product)
    return cast(ctx, select(ctx, unary(ctx, "ISNAN", right), right, found), ctx.result_dtype)


@converter(torch.ops.prims.div.default, checks=dtypes("self", FLOATS | INTEGERS))
def prims_div(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """div(Tensor self, Tensor other) -> Tensor"""
    return binary(ctx, "DIV", self, other)


# Quotients and remainders -------------------------------------------------------------------------------------------
# What a division of floats leaves over is exact: no layer computes it.


@converter(aten.div.Tensor_mode, aten.div.Scalar_mode, checks=computable)
def aten_div_mode(ctx: ConversionContext, self: Operand, other: Operand, rounding_mode: str | None) -> Any:
    """div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"""
    if rounding_mode is None:
        return _quotient(ctx, self, other)
    if rounding_mode == "floor":
        return _floor_quotient(ctx, self, other)
    if ctx.result_dtype.is_floating_point:
        return cast(ctx, truncate(ctx, binary(ctx, "DIV", *_float_operands(ctx, self, other))), ctx.result_dtype)
    return binary(ctx, "DIV", *promote(ctx, self, other, dtype=ctx.result_dtype))


@converter(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, checks=computable)
def aten_remainder(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """remainder.Tensor(Tensor self, Tensor other) -> Tensor"""
    if not ctx.result_dtype.is_floating_point:
        return _integer_rest(ctx, self, other, "FLOOR_DIV")
    left, right = (widen(ctx, item) for item in promote(ctx, self, other, dtype=ctx.result_dtype))
    rest, _ = with_sign_of_divisor(ctx, exact_remainder(ctx, left, right), right)
    return cast(ctx, rest, ctx.result_dtype)


@converter(aten.fmod.Tensor, aten.fmod.Scalar, checks=computable)
def aten_fmod(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """fmod.Tensor(Tensor self, Tensor other) -> Tensor"""
    if not ctx.result_dtype.is_floating_point:
        return _integer_rest(ctx, self, other, "DIV")
    left, right = (widen(ctx, item) for item in promote(ctx, self, other, dtype=ctx.result_dtype))
    return cast(ctx, exact_remainder(ctx, left, right), ctx.result_dtype)


def _quotient(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    left, right = promote(ctx, self, other, dtype=compute_type(ctx.result_dtype, self, other, is_scaled=True))
    return cast(ctx, binary(ctx, "DIV", left, right), ctx.result_dtype)


def _floor_quotient(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """Rounds a quotient down as `c10::div_floor_floating` does.

    The floor of a rounded quotient is one too many where rounding lifts it to an integer: 1 // 0.1 is 9. So the rest is
    taken away before dividing.
    """
    if not ctx.result_dtype.is_floating_point:
        return binary(ctx, "FLOOR_DIV", *promote(ctx, self, other, dtype=ctx.result_dtype))
    left, right = _float_operands(ctx, self, other)
    quotient = binary(ctx, "DIV", left, right)
    rest = cast(ctx, exact_remainder(ctx, widen(ctx, left), widen(ctx, right)), dtype_of(left))
    _, moved = with_sign_of_divisor(ctx, rest, right)
    exact = binary(ctx, "DIV", binary(ctx, "SUB", left, rest), right)
    exact = select(ctx, moved, binary(ctx, "SUB", exact, 1.0), exact)
    whole = unary(ctx, "FLOOR", exact)
    short = binary(ctx, "GREATER", binary(ctx, "SUB", exact, whole), 0.5)
    whole = select(ctx, short, binary(ctx, "SUM", whole, 1.0), whole)
    whole = select(ctx, binary(ctx, "EQUAL", whole, 0.0), binary(ctx, "PROD", quotient, 0.0), whole)
    # nothing is to be rounded in a quotient beyond the range, by 0 or not, unless the dividend was infinite already
    finite = logical_not(ctx, unary(ctx, "ISINF", left))
    beyond = binary(ctx, "AND", unary(ctx, "ISINF", quotient), finite)
    plain = binary(ctx, "OR", beyond, binary(ctx, "EQUAL", right, 0.0))
    return cast(ctx, select(ctx, plain, quotient, whole), ctx.result_dtype)


def _float_operands(ctx: ConversionContext, self: Operand, other: Operand) -> list[Any]:
    """Returns the operands of a float quotient that is rounded, in the type that PyTorch computes it in.

    That is the result's, each step rounded to it, and float32 where the divisor of half values is a Python number.
    """
    left = promote(ctx, self, dtype=ctx.result_dtype)[0]
    if isinstance(other, (int, float)) or is_size_number(other):
        return promote(ctx, left, other, dtype=torch.float32)
    return promote(ctx, left, other, dtype=ctx.result_dtype)


def _integer_rest(ctx: ConversionContext, left: Operand, right: Operand, division: str) -> Any:
    left, right = promote(ctx, left, right, dtype=ctx.result_dtype)
    whole = binary(ctx, division, left, right)
    return binary(ctx, "SUB", left, binary(ctx, "PROD", whole, right))


convert_each(
    {
        aten.addcmul.default: lambda ctx, self, tensor1, tensor2, value: _add_scaled(
            ctx, self, tensor1, tensor2, value, "PROD"
        ),
        aten.addcdiv.default: lambda ctx, self, tensor1, tensor2, value: _add_scaled(
            ctx, self, tensor1, tensor2, value, "DIV"
        ),
        (aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar): _quotient,
        (
            *(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self),
            *(aten.special_xlogy.default, aten.special_xlogy.other_scalar, aten.special_xlogy.self_scalar),
        ): lambda ctx, self, other: _times_logarithm(ctx, self, other, lambda value: unary(ctx, "LOG", value)),
        (
            aten.special_xlog1py.default,
            aten.special_xlog1py.other_scalar,
            aten.special_xlog1py.self_scalar,
        ): lambda ctx, self, other: _times_logarithm(ctx, self, other, lambda value: log1p(ctx, value)),
        (aten.floor_divide.default, aten.floor_divide.Scalar): _floor_quotient,
    },
    checks=computable,
)
refuse_each(
    Reason.TENSORRT_LIMIT,
    "Euclid's algorithm takes as many steps as the numbers want, and no layer does",
    *(aten.gcd.default, aten.lcm.default),
)


_STEPS: Final = (46, 23, 0)
"""Powers of two that the divisor is multiplied by, one after the other: each leaves a quotient below 2 ** 24."""

_LARGE: Final = 2.0**96
_SCALE: Final = 2.0**-32


def exact_remainder(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns `left - trunc(left / right) * right` of float32 operands, as C's `fmod` does.

    It is exact while the quotient is below 2 ** 70, and 0 beyond. A rest of 0 has the sign of `left`; infinite `left`
    and `right` of 0 give NaN.
    """
    # where products of the halves of large numbers would overflow, both are made smaller first
    large = binary(ctx, "GREATER", unary(ctx, "ABS", left), _LARGE)
    dividend = select(ctx, large, binary(ctx, "PROD", left, _SCALE), left)
    divisor = select(ctx, large, binary(ctx, "PROD", right, _SCALE), right)
    rest = dividend
    for power in _STEPS:
        rest = _step(ctx, rest, binary(ctx, "PROD", divisor, 2.0**power) if power else divisor)
    nothing = binary(ctx, "PROD", rest, 0.0)
    beyond = binary(ctx, "GREATER", unary(ctx, "ABS", rest), unary(ctx, "ABS", divisor))
    rest = select(ctx, beyond, nothing, rest)
    rest = select(ctx, large, binary(ctx, "DIV", rest, _SCALE), rest)
    # nothing is taken away from what is smaller than the divisor, be that infinite
    smaller = binary(ctx, "LESS", unary(ctx, "ABS", left), unary(ctx, "ABS", right))
    rest = select(ctx, smaller, left, rest)
    return select(ctx, binary(ctx, "EQUAL", rest, 0.0), binary(ctx, "PROD", left, 0.0), rest)


def with_sign_of_divisor(ctx: ConversionContext, rest: Operand, divisor: Operand) -> tuple[Any, Any]:
    """Moves a rest of the dividend's sign to the divisor's, as Python's `%` has it.

    Returns:
        The rest, and where it was moved, bool.
    """
    opposite = binary(ctx, "XOR", binary(ctx, "LESS", rest, 0.0), binary(ctx, "LESS", divisor, 0.0))
    moved = binary(ctx, "AND", opposite, logical_not(ctx, binary(ctx, "EQUAL", rest, 0.0)))
    return select(ctx, moved, binary(ctx, "SUM", rest, divisor), rest), moved


def _step(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    """Returns what is left of a quotient below 2 ** 24.

    The product is formed without rounding (as a sum of two floats), so that the difference keeps every digit.
    """
    whole = truncate(ctx, binary(ctx, "DIV", left, right))
    product, error = _two_product(ctx, whole, right)
    rest = binary(ctx, "SUB", binary(ctx, "SUB", left, product), error)
    # a quotient that rounding lifted to the next integer leaves a rest of the wrong sign
    overshot = binary(ctx, "LESS", binary(ctx, "PROD", unary(ctx, "SIGN", rest), unary(ctx, "SIGN", left)), 0.0)
    back = binary(ctx, "PROD", unary(ctx, "ABS", right), unary(ctx, "SIGN", left))
    rest = select(ctx, overshot, binary(ctx, "SUM", rest, back), rest)
    smaller = binary(ctx, "LESS", unary(ctx, "ABS", left), unary(ctx, "ABS", right))
    return select(ctx, smaller, left, rest)


def _two_product(ctx: ConversionContext, left: Operand, right: Operand) -> tuple[Any, Any]:
    """Returns the rounded product of float32 operands, and what rounding took away (Dekker's algorithm)."""
    product = binary(ctx, "PROD", left, right)
    left_high, left_low = _split(ctx, left)
    right_high, right_low = _split(ctx, right)
    error = binary(ctx, "SUB", binary(ctx, "PROD", left_high, right_high), product)
    for one, other in ((left_high, right_low), (left_low, right_high), (left_low, right_low)):
        error = binary(ctx, "SUM", error, binary(ctx, "PROD", one, other))
    return product, error


def _split(ctx: ConversionContext, value: Operand) -> tuple[Any, Any]:
    """Splits a float32 value into two of 12 bits each, whose products are exact."""
    scaled = binary(ctx, "PROD", value, 4097.0)
    high = binary(ctx, "SUB", scaled, binary(ctx, "SUB", scaled, value))
    return high, binary(ctx, "SUB", value, high)


# Powers -------------------------------------------------------------------------------------------------------------


def _powers_exist(call: Call) -> Verdict | None:
    """Refuses a known negative exponent of integers, for which PyTorch raises an error."""
    exponent = call["exponent"]
    if call.result.dtype.is_floating_point or isinstance(exponent, torch.SymInt) or exponent >= 0:
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"integers have no power of {exponent}")


@converter(aten.pow.Tensor_Scalar, checks=(computable, _powers_exist))
def aten_pow_scalar(ctx: ConversionContext, self: Operand, exponent: Number) -> Any:
    """pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"""
    dtype = ctx.result_dtype
    base = cast(ctx, self, dtype)
    if isinstance(exponent, torch.SymInt) and not dtype.is_floating_point:
        _, _, most = ctx.ranges.bounds(exponent)
        return _integer_tensor_power(ctx, base, cast(ctx, exponent, dtype), most.bit_length())
    if is_size_number(exponent):
        return _float_power(ctx, base, cast(ctx, exponent, torch.float32))
    if not dtype.is_floating_point:
        return _integer_power(ctx, base, int(exponent))
    if exponent == 0:
        # 1 whatever the base, NaN included: POW promises that, multiplication by 0 would not
        return binary(ctx, "POW", base, 0.0)
    if exponent in (1, 2, 3):
        return _integer_power(ctx, base, int(exponent))
    if exponent == -1:
        return unary(ctx, "RECIP", base)
    if exponent == 0.5:
        return unary(ctx, "SQRT", base)
    if exponent == -0.5:  # PyTorch's kernel is that of rsqrt, of which zeros and negative numbers know
        return cast(ctx, unary(ctx, "RECIP", unary(ctx, "SQRT", widen(ctx, base))), dtype)
    return _float_power(ctx, base, torch.tensor(exponent, dtype=torch.float32))


def _float_power(ctx: ConversionContext, base: Operand, exponent: Operand) -> Any:
    power = binary(ctx, "POW", widen(ctx, base), widen(ctx, exponent))
    return cast(ctx, power, ctx.result_dtype)


def _integer_power(ctx: ConversionContext, base: Operand, exponent: int) -> Any:
    """Returns a power by repeated squaring, exact for integers."""
    result = None
    while exponent:
        if exponent & 1:
            result = base if result is None else binary(ctx, "PROD", result, base)
        exponent >>= 1
        if exponent:
            base = binary(ctx, "PROD", base, base)
    if result is None:
        one = torch.ones((), dtype=dtype_of(base))
        return select(ctx, binary(ctx, "EQUAL", base, base), one, one)
    return result


@converter(aten.pow.Tensor_Tensor, aten.pow.Scalar, checks=computable)
def aten_pow(ctx: ConversionContext, self: Operand, exponent: Operand) -> Any:
    """pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor"""
    base, power = promote(ctx, self, exponent, dtype=ctx.result_dtype)
    if ctx.result_dtype.is_floating_point:
        return _float_power(ctx, base, power)
    return _integer_tensor_power(ctx, base, power)


def _integer_tensor_power(ctx: ConversionContext, base: Operand, exponent: Operand, bits: int | None = None) -> Any:
    """Powers of integers by repeated squaring over the bits of the exponent, which wrap around as products do.

    Modulo 2^n, powers of an odd number repeat after 2^(n-2), and nothing is left of an even one beyond n. So n-2 bits
    matter, and fewer for numbers known ahead: six for even ones, one for 1 and -1. Negative exponents give the integer
    part of the inverse: 1, -1, or 0. An exponent of which the largest is known has as many `bits` as that.
    """
    one = torch.ones((), dtype=ctx.result_dtype)
    zero = torch.zeros((), dtype=ctx.result_dtype)
    size = unary(ctx, "ABS", exponent)
    result: Any = None
    square, rest = base, size
    matter = _bits_that_matter(base, ctx.result_dtype)
    bits = matter if bits is None else min(max(bits, 1), matter)
    for bit in range(bits):
        half = binary(ctx, "FLOOR_DIV", rest, 2)
        odd = binary(ctx, "GREATER", rest, binary(ctx, "PROD", half, 2))
        factor = select(ctx, odd, square, one)
        result = factor if result is None else binary(ctx, "PROD", result, factor)
        rest = half
        if bit < bits - 1:
            square = binary(ctx, "PROD", square, square)
    half = binary(ctx, "FLOOR_DIV", base, 2)
    even = binary(ctx, "EQUAL", binary(ctx, "PROD", half, 2), base)
    result = select(ctx, binary(ctx, "AND", binary(ctx, "GREATER", size, 63), even), zero, result)
    unit = binary(ctx, "EQUAL", unary(ctx, "ABS", base), 1)
    inverse = select(ctx, unit, result, zero)
    return select(ctx, binary(ctx, "LESS", exponent, 0), inverse, result)


def _bits_that_matter(base: Operand, dtype: torch.dtype) -> int:
    """How many bits of an exponent change the power; what is beyond 63 is told from the rest where the base is even."""
    if isinstance(base, torch.Tensor):
        if bool((base.abs() == 1).all()):
            return 1
        if bool((base % 2 == 0).all()):
            return 6
    return torch.iinfo(dtype).bits - 2


refuse_each(
    Reason.UNSUPPORTED_DTYPE,
    "float_power computes in float64, which TensorRT does not have",
    *(aten.float_power.Tensor_Tensor, aten.float_power.Tensor_Scalar, aten.float_power.Scalar),
)


@converter(aten.ldexp.Tensor, checks=computable)
def aten_ldexp(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """ldexp.Tensor(Tensor self, Tensor other) -> Tensor"""
    value, exponent = (widen(ctx, operand) for operand in promote(ctx, self, other, dtype=ctx.result_dtype))
    return cast(ctx, binary(ctx, "PROD", value, binary(ctx, "POW", 2.0, exponent)), ctx.result_dtype)


@converter(aten.copysign.Tensor, aten.copysign.Scalar, checks=computable)
def aten_copysign(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """copysign.Tensor(Tensor self, Tensor other) -> Tensor"""
    value, sign = promote(ctx, self, other, dtype=ctx.result_dtype)
    size = unary(ctx, "ABS", value)
    return select(ctx, has_sign(ctx, sign), negate(ctx, size), size)


def comparable(ctx: ConversionContext, left: Operand, right: Operand) -> tuple[Any, Any]:
    """Promotes operands as a comparison does; bools, which comparison layers do not take, become int32."""
    common = result_type(left, right)
    if common is torch.bool:
        common = torch.int32
        left, right = (int(side) if isinstance(side, bool) else side for side in (left, right))
    one, other = promote(ctx, left, right, dtype=common)
    return one, other


def _ordered(ctx: ConversionContext, left: Operand, right: Operand, order: Callable[..., Any], opposite: str) -> Any:
    """Returns where operands are ordered or equal; of integers, of which none is NaN, where the opposite is false."""
    left, right = comparable(ctx, left, right)
    if result_type(left, right).is_floating_point:
        return order(ctx, left, right)
    return logical_not(ctx, binary(ctx, opposite, left, right))


def _logic(ctx: ConversionContext, operation: str, left: Operand, right: Operand) -> Any:
    return binary(ctx, operation, cast(ctx, left, torch.bool), cast(ctx, right, torch.bool))


convert_each(
    {
        (aten.eq.Tensor, aten.eq.Scalar): lambda ctx, self, other: binary(ctx, "EQUAL", *comparable(ctx, self, other)),
        (aten.ne.Tensor, aten.ne.Scalar): lambda ctx, self, other: logical_not(
            ctx, binary(ctx, "EQUAL", *comparable(ctx, self, other))
        ),
        (aten.gt.Tensor, aten.gt.Scalar): lambda ctx, self, other: binary(
            ctx, "GREATER", *comparable(ctx, self, other)
        ),
        (aten.le.Tensor, aten.le.Scalar): lambda ctx, self, other: _ordered(ctx, self, other, less_equal, "GREATER"),
        (aten.ge.Tensor, aten.ge.Scalar): lambda ctx, self, other: _ordered(ctx, self, other, greater_equal, "LESS"),
        (aten.lt.Tensor, aten.lt.Scalar): lambda ctx, self, other: binary(ctx, "LESS", *comparable(ctx, self, other)),
        aten.logical_and.default: lambda ctx, self, other: _logic(ctx, "AND", self, other),
        aten.logical_or.default: lambda ctx, self, other: _logic(ctx, "OR", self, other),
        aten.logical_xor.default: lambda ctx, self, other: _logic(ctx, "XOR", self, other),
        aten.logical_not.default: lambda ctx, self: logical_not(ctx, cast(ctx, self, torch.bool)),
    },
    checks=computable,
)


# Bits of integers ---------------------------------------------------------------------------------------------------
# TensorRT has layers for bools alone, so integers are taken apart.


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


def _forms(name: str) -> tuple[Any, ...]:
    """A bitwise operator for tensors and numbers, by its name and by that of Python's operator."""
    named, special = getattr(aten, f"bitwise_{name}"), getattr(aten, f"__{name}__")
    return named.Tensor, named.Scalar, named.Scalar_Tensor, special.Tensor, special.Scalar


def _shift_forms(side: str) -> tuple[Any, ...]:
    """The same of a shift."""
    named, special = getattr(aten, f"bitwise_{side}_shift"), getattr(aten, f"__{side[0]}shift__")
    return named.Tensor, named.Tensor_Scalar, named.Scalar_Tensor, special.Tensor, special.Scalar


convert_each(
    {
        _forms("and"): lambda ctx, self, other: _bitwise(ctx, "AND", self, other),
        _forms("or"): lambda ctx, self, other: _bitwise(ctx, "OR", self, other),
        _forms("xor"): lambda ctx, self, other: _bitwise(ctx, "XOR", self, other),
    },
    checks=(computable, _room_for_bits),
)


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


def _shift(ctx: ConversionContext, value: Operand, shift: Operand, operation: str) -> Any:
    """Returns a value multiplied or divided by a power of 2; a shift of all bits and more leaves zeros, or the sign."""
    value, shift = promote(ctx, value, shift, dtype=ctx.result_dtype)
    inside, first, second = _two_steps(ctx, shift)
    shifted = binary(ctx, operation, binary(ctx, operation, value, first), second)
    beyond: Any = torch.zeros((), dtype=ctx.result_dtype)
    if operation == "FLOOR_DIV":
        beyond = select(ctx, binary(ctx, "LESS", value, 0), torch.tensor(-1, dtype=ctx.result_dtype), beyond)
    return select(ctx, inside, shifted, beyond)


convert_each(
    {
        _shift_forms("left"): lambda ctx, self, other: _shift(ctx, self, other, "PROD"),
        _shift_forms("right"): lambda ctx, self, other: _shift(ctx, self, other, "FLOOR_DIV"),
    },
    checks=(computable, _integers),
)


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


# Choice between elements, and the special values of floats ----------------------------------------------------------


@converter(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, checks=computable)
def aten_where(ctx: ConversionContext, condition: Operand, self: Operand, other: Operand) -> Any:
    """where.self(Tensor condition, Tensor self, Tensor other) -> Tensor"""
    then, otherwise = promote(ctx, self, other, dtype=ctx.result_dtype)
    return select(ctx, cast(ctx, condition, torch.bool), then, otherwise)


def _special(ctx: ConversionContext, value: Operand, operation: str) -> Any:
    """Returns where a value is NaN or infinite; integers never are."""
    if dtype_of(value).is_floating_point:
        return unary(ctx, operation, value)
    return _nowhere(ctx, value)


def _infinite(ctx: ConversionContext, value: Operand, number: float) -> Any:
    return binary(ctx, "EQUAL", value, number) if dtype_of(value).is_floating_point else _nowhere(ctx, value)


def _nowhere(ctx: ConversionContext, value: Operand) -> Any:
    number = cast(ctx, value, torch.int32)
    return binary(ctx, "LESS", number, number)


convert_each(
    {
        (aten.masked_fill.Scalar, aten.masked_fill.Tensor): lambda ctx, self, mask, value: select(
            ctx, cast(ctx, mask, torch.bool), cast(ctx, value, dtype_of(self)), self
        ),
        aten.isnan.default: lambda ctx, self: _special(ctx, self, "ISNAN"),
        aten.isinf.default: lambda ctx, self: _special(ctx, self, "ISINF"),
        aten.isposinf.default: lambda ctx, self: _infinite(ctx, self, float("inf")),
        aten.isneginf.default: lambda ctx, self: _infinite(ctx, self, float("-inf")),
    },
    checks=computable,
)


@converter(aten.isfinite.default, checks=computable)
def aten_isfinite(ctx: ConversionContext, self: Operand) -> Any:
    """isfinite(Tensor self) -> Tensor"""
    if not dtype_of(self).is_floating_point:
        return logical_not(ctx, _nowhere(ctx, self))
    return logical_not(ctx, binary(ctx, "OR", unary(ctx, "ISNAN", self), unary(ctx, "ISINF", self)))


@converter(aten.nan_to_num.default, checks=computable)
def aten_nan_to_num(
    ctx: ConversionContext, self: Operand, nan: Number | None, posinf: Number | None, neginf: Number | None
) -> Any:
    """nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor"""
    dtype = dtype_of(self)
    if not dtype.is_floating_point:
        return self
    limits = torch.finfo(dtype)
    replacements = (
        (unary(ctx, "ISNAN", self), 0.0 if nan is None else nan),
        (binary(ctx, "EQUAL", self, float("inf")), limits.max if posinf is None else posinf),
        (binary(ctx, "EQUAL", self, float("-inf")), limits.min if neginf is None else neginf),
    )
    value = self
    for condition, number in replacements:
        value = select(ctx, condition, cast(ctx, number, dtype), value)
    return value


@converter(aten.heaviside.default, checks=computable)
def aten_heaviside(ctx: ConversionContext, self: Operand, values: Operand) -> Any:
    """heaviside(Tensor self, Tensor values) -> Tensor"""
    dtype = ctx.result_dtype
    value, middle = promote(ctx, self, values, dtype=torch.int32 if dtype is torch.bool else dtype)
    zero, one = torch.zeros((), dtype=dtype_of(value)), torch.ones((), dtype=dtype_of(value))
    step = select(ctx, binary(ctx, "GREATER", value, 0), one, zero)
    return cast(ctx, select(ctx, binary(ctx, "EQUAL", value, 0), middle, step), dtype)
