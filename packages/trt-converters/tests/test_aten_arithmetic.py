"""Arithmetic, division, powers, extremes, comparisons, bits and selection against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)


def _values(dtype: torch.dtype) -> torch.Tensor:
    values = torch.tensor([[-3.0, -1.0, 0.0], [1.0, 2.0, 5.0]])
    return values.to(dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_operands_of_two_types_are_promoted(left: torch.dtype, right: torch.dtype) -> None:
    a, b = _values(left), _values(right).flip(1)
    for op in (aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.le.Tensor, aten.maximum.default):
        check_conversion(op, (a, b))
    check_conversion(aten.where.self, (a > 0, a, b))


def test_integer_tensor_with_a_float_literal_is_never_truncated() -> None:
    x = torch.tensor([1, 2, 3, -4])
    for op, literal in (
        (aten.mul.Tensor, 0.5),
        (aten.gt.Scalar, 0.5),
        (aten.ge.Scalar, 1.5),
        (aten.pow.Tensor_Scalar, 2.0),
        (aten.add.Tensor, 0.25),
        (aten.div.Tensor, 0.5),
        (aten.where.ScalarOther, None),
    ):
        arguments: tuple[Any, ...] = (x, literal) if literal is not None else (x > 0, x, 0.5)
        check_conversion(op, arguments)
    check_conversion(aten.pow.Tensor_Scalar, (x.abs(), 2.5))


def test_division_of_integers_in_every_rounding_mode() -> None:
    a, b = torch.tensor([7, -7, 7, -7, 0]), torch.tensor([2, 2, -2, -2, 5])
    assert check_conversion(aten.div.Tensor, (a, b)).outputs[0].dtype is torch.float32
    for mode in ("floor", "trunc", None):
        check_conversion(aten.div.Tensor_mode, (a, b), {"rounding_mode": mode})
    check_conversion(aten.floor_divide.default, (a, b))


def test_remainder_is_floor_modulo_and_fmod_is_not() -> None:
    a, b = torch.tensor([7, -7, 7, -7, 0]), torch.tensor([3, 3, -3, -3, 5])
    assert check_conversion(aten.remainder.Tensor, (a, b)).outputs[0].tolist() == [1, 2, -2, -1, 0]
    assert check_conversion(aten.fmod.Tensor, (a, b)).outputs[0].tolist() == [1, -1, 1, -1, 0]


FINITE = st.floats(-1e4, 1e4, width=32).filter(lambda number: number == 0 or abs(number) > 1e-3)


@hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
@hypothesis.given(st.lists(st.tuples(FINITE, FINITE.filter(bool)), min_size=1, max_size=16))
def test_remainders_and_floor_division_of_floats_are_exact(pairs: list[tuple[float, float]]) -> None:
    a, b = torch.tensor(pairs).unbind(1)
    for op in (aten.remainder.Tensor, aten.fmod.Tensor, aten.floor_divide.default):
        check_conversion(op, (a, b), rtol=0.0, atol=0.0)


QUOTIENTS = (aten.remainder.Tensor, aten.fmod.Tensor, aten.floor_divide.default, aten.div.Tensor_mode)


def _check_quotients(a: torch.Tensor, b: torch.Tensor) -> None:
    for op in QUOTIENTS:
        options = {"rounding_mode": "trunc"} if op is aten.div.Tensor_mode else {}
        result = check_conversion(op, (a, b), options, rtol=0.0, atol=0.0).outputs[0]
        expected = op(a, b, **options)
        assert torch.equal(result.signbit() & ~result.isnan(), expected.signbit() & ~expected.isnan()), op


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_quotients_and_rests_of_special_values(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.5, 3.0, 0.1, -12345.6, INF, -INF, NAN, 2.0**65])
    left, right = torch.meshgrid(values.to(dtype), values.to(dtype), indexing="ij")
    _check_quotients(left.contiguous(), right.contiguous())
    largest = torch.tensor(torch.finfo(dtype).max, dtype=dtype)
    _check_quotients(largest.repeat(5), largest * torch.tensor([1.0, 0.75, -0.3, 1e-9, 0.5], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_quotients_and_rests_of_magnitudes_far_apart(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randn(2, 400, generator=generator, dtype=torch.float64)
    exponents = torch.randint(-30, 30, (2, 400), generator=generator)
    _check_quotients(*(mantissas * 2.0**exponents).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_that_divide_half_values_keep_their_digits(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1, 0.3, 1.0, -7.0, 1000.0], dtype=dtype)
    for number in (0.1, 1 / 3, 2**31):
        check_conversion(aten.div.Tensor, (x, number))
        for mode in ("floor", "trunc"):
            check_conversion(aten.div.Tensor_mode, (x, number), {"rounding_mode": mode}, rtol=0.0, atol=0.0)


def test_powers_of_special_values() -> None:
    x = torch.tensor([0.0, -0.0, 4.0, -4.0, INF, -INF, NAN])
    check_conversion(aten.pow.Tensor_Scalar, (x, -0.5))
    base, exponent = torch.meshgrid(torch.tensor([0, 1, -1, 2, -6]), torch.tensor([0, 3, 63, 64, 101]), indexing="ij")
    check_conversion(aten.pow.Tensor_Tensor, (base.contiguous(), exponent.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_beyond_a_half_type_does_not_become_infinite(dtype: torch.dtype) -> None:
    mask = torch.tensor([0.0, 1.0], dtype=dtype)
    check_conversion(aten.mul.Tensor, (mask, -1e9))
    check_conversion(aten.div.Tensor, (mask, 1e9))


@hypothesis.given(
    number=st.floats(1e-3, 1e3), is_negative=st.booleans(), dtype=st.sampled_from([torch.float16, torch.bfloat16])
)
@hypothesis.settings(max_examples=20)
def test_half_values_are_scaled_by_the_number_itself(number: float, is_negative: bool, dtype: torch.dtype) -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    for op in (aten.mul.Tensor, aten.div.Tensor):
        check_conversion(op, (x, -number if is_negative else number), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(("dtype", "number"), [(torch.float16, 1e-7), (torch.float16, -3e-6), (torch.bfloat16, 1e-40)])
def test_a_number_that_a_half_type_holds_with_few_digits_keeps_its_own(dtype: torch.dtype, number: float) -> None:
    x = torch.tensor([0.25, 1.0, 3.0, 100.0, torch.finfo(dtype).max / 3], dtype=dtype)
    for op in (aten.mul.Tensor, aten.add.Tensor):
        check_conversion(op, (x, number))
    check_conversion(aten.div.Tensor, (x * number, number))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [2, -3, 1000.5])
def test_a_product_that_is_too_large_alone_is_not_in_a_sum(dtype: torch.dtype, alpha: float) -> None:
    most = torch.finfo(dtype).max
    y = torch.tensor([0.0, 1.5, most / 2, -most / 2, most, -INF, 0.125], dtype=dtype)
    x = torch.where(y.isinf(), y, (-y.double() * alpha * 0.9).clamp(-most, most).to(dtype))
    check_conversion(aten.add.Tensor, (x, y), {"alpha": alpha})
    check_conversion(aten.sub.Tensor, (x, -y), {"alpha": alpha})
    check_conversion(aten.rsub.Scalar, (y, 1), {"alpha": 0.5})


@pytest.mark.parametrize("alpha", [1, 2, 0.5])
def test_sums_scale_the_second_operand(alpha: float) -> None:
    x, y = torch.randn(2, 3), torch.randn(3)
    for op in (aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor):
        check_conversion(op, (x, y), {"alpha": alpha}, dynamic={0: {0: (1, 2, 6)}})


def test_sum_of_two_tensors_is_one_layer() -> None:
    assert emitted_layers(aten.add.Tensor, (torch.randn(2), torch.randn(2))) == ("ELEMENTWISE",)


def test_broadcasting_over_ranks_and_dynamic_axes() -> None:
    x, y = torch.randn(4, 1, 3), torch.randn(5, 1)
    check_conversion(aten.mul.Tensor, (x, y), dynamic={0: {0: (1, 4, 6)}, 1: {0: (2, 5, 8)}})
    check_conversion(aten.add.Tensor, (torch.tensor(2.0), torch.randn(3)))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.5, 2.5, -2, 5])
def test_power_of_floats(exponent: float) -> None:
    for dtype in (torch.float32, torch.float16):
        check_conversion(aten.pow.Tensor_Scalar, (torch.tensor([0.5, 1.0, 2.0, NAN], dtype=dtype), exponent))


def test_negative_powers_of_integers_are_refused() -> None:
    result = check_conversion(aten.pow.Tensor_Scalar, (torch.tensor([1, 2]), -1), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


def test_powers_of_integers_are_exact() -> None:
    bases = torch.tensor([-3, -2, -1, 0, 1, 2, 3, 10])
    check_conversion(aten.pow.Tensor_Scalar, (bases, 13))
    check_conversion(aten.pow.Tensor_Scalar, (bases, 0))
    exponents = torch.tensor([5, 61, 101, 0, 70, 62, 39, 18])
    check_conversion(aten.pow.Tensor_Tensor, (bases, exponents))
    check_conversion(aten.pow.Scalar, (3, torch.tensor([0, 1, 20])))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_powers_of_integers_wrap_around(dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    bases = torch.tensor([-7, -1, 3, 6, most, -most - 1], dtype=dtype)
    exponents = torch.tensor([63, 64, 100, 46341, most - 1, most, -3], dtype=dtype)
    base, exponent = torch.meshgrid(bases, exponents, indexing="ij")
    check_conversion(aten.pow.Tensor_Tensor, (base.contiguous(), exponent.contiguous()))
    for number in (-2, -1, 0, 1, 2, 5, -9):
        check_conversion(aten.pow.Scalar, (number, exponents[exponents >= 0] if number == 0 else exponents))


def test_float_power_needs_float64_and_is_refused() -> None:
    result = check_conversion(aten.float_power.Tensor_Scalar, (torch.ones(2), 2), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_DTYPE


GRID = torch.tensor([-INF, -2.0, -0.0, 0.0, 1.5, INF, NAN])


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "hypot", "logaddexp", "atan2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_pair_of_special_values(name: str, dtype: torch.dtype) -> None:
    a, b = torch.meshgrid(GRID.to(dtype), GRID.to(dtype), indexing="ij")
    check_conversion(getattr(aten, name).default, (a.contiguous(), b.contiguous()))


@pytest.mark.parametrize("op", [aten.xlogy.Tensor, aten.copysign.Tensor])
def test_every_pair_of_special_values_of_tensor_overloads(op: torch._ops.OpOverload) -> None:
    a, b = torch.meshgrid(GRID, GRID[:-1], indexing="ij")  # the sign of a NaN is nobody's
    check_conversion(op, (a.contiguous(), b.contiguous()))


def test_clamp_propagates_nan_and_lets_the_upper_bound_win() -> None:
    for low, high in ((-1.0, 1.0), (None, 1.0), (-1.0, None), (2.0, -2.0), (-INF, INF)):
        check_conversion(aten.clamp.default, (GRID, low, high))
    check_conversion(aten.clamp.Tensor, (GRID, torch.tensor(-1.0), torch.tensor(1.0)))
    check_conversion(aten.clamp.default, (torch.tensor([-3, 0, 9]), -1, 4))
    check_conversion(aten.clamp.default, (torch.tensor([-3, 0, 9]), 0.5))
    result = check_conversion(aten.clamp.default, (GRID, NAN), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_with_nan_and_of_every_type(name: str) -> None:
    packet = getattr(aten, name)
    a, b = torch.meshgrid(GRID, GRID, indexing="ij")
    check_conversion(packet.Tensor, (a.contiguous(), b.contiguous()))
    for dtype in DTYPES:
        check_conversion(packet.Tensor, (_values(dtype), _values(dtype).flip(1)))
        check_conversion(packet.Scalar, (_values(dtype), 1))


def test_int64_survives_selection_and_comparison() -> None:
    big = torch.tensor([2**53 + 1, -(2**60) - 1, 5])
    check_conversion(aten.where.self, (torch.tensor([True, False, True]), big, big + 1))
    check_conversion(aten.gt.Tensor, (big, big - 1))
    check_conversion(aten.maximum.default, (big, big + 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise(name: str, dtype: torch.dtype) -> None:
    limits = [0, 1] if dtype is torch.bool else [torch.iinfo(dtype).min, torch.iinfo(dtype).max, -1, 0, 5, -77, 2**20]
    a, b = torch.meshgrid(torch.tensor(limits, dtype=dtype), torch.tensor(limits, dtype=dtype), indexing="ij")
    check_conversion(getattr(aten, name).Tensor, (a.contiguous(), b.contiguous()))
    check_conversion(getattr(aten, name).Scalar, (a.contiguous(), dtype is torch.bool or 6))


@pytest.mark.parametrize("number", [0x80000000, -(2**33) + 5])
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "add", "sub", "mul", "eq", "lt", "ge"])
def test_numbers_that_integers_have_no_room_for_wrap_around(name: str, number: int) -> None:
    values = torch.tensor([-1, 5, 0, -(2**31)], dtype=torch.int32)
    check_conversion(getattr(aten, name).Scalar, (values, number))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_shifts(dtype: torch.dtype) -> None:
    values = torch.tensor([-1, 1, 7, -100, 2**20], dtype=dtype)
    shifts = torch.tensor([0, 30, 3, 2, 31], dtype=dtype)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        check_conversion(getattr(aten, name).Tensor, (values, shifts))
        check_conversion(getattr(aten, name).Tensor_Scalar, (values, 4))


def test_masked_fill_and_special_values() -> None:
    mask = torch.tensor([True, False, True])
    check_conversion(aten.masked_fill.Scalar, (torch.randn(2, 3), mask, -INF), dynamic={0: {0: (1, 2, 4)}})
    check_conversion(aten.masked_fill.Scalar, (torch.tensor([1, 2, 3]), mask, 7))
    for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf"):
        check_conversion(getattr(aten, name).default, (GRID,))
        check_conversion(getattr(aten, name).default, (torch.tensor([1, 2]),))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        check_conversion(aten.nan_to_num.default, (GRID.to(dtype),))
    check_conversion(aten.nan_to_num.default, (GRID, 1.0, 2.0, 3.0))


@pytest.mark.parametrize("weight", [0.25, 0.75, 2.0])
def test_lerp_from_the_nearer_end(weight: float) -> None:
    check_conversion(aten.lerp.Scalar, (torch.randn(4), torch.randn(4), weight))
    check_conversion(aten.lerp.Tensor, (torch.randn(4), torch.randn(4), torch.full((4,), weight)))


OPINFO = [
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "true_divide",
    "floor_divide",
    "fmod",
    "remainder",
    "pow",
    "__rpow__",
    "float_power",
    "addcmul",
    "addcdiv",
    "lerp",
    "hypot",
    "copysign",
    "ldexp",
    "xlogy",
    "logaddexp",
    "fmax",
    "fmin",
    "maximum",
    "minimum",
    "clamp",
    "clamp_min",
    "clamp_max",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_not",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "where",
    "masked_fill",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "nan_to_num",
    "heaviside",
]


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPINFO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, limit=3):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None)
