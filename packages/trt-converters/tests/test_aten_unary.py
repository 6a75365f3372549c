"""Rounding, exponentials, trigonometry and special functions against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from trt_converters.testing import check_conversion, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([-INF, -20.0, -2.5, -1.0, -0.5, -1e-6, -0.0, 0.0, 1e-6, 0.5, 1.0, 1.5, 2.5, 3.0, 20.0, INF, NAN])

FLOAT_FUNCTIONS = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "log",
    "log10",
    "log1p",
    "log2",
    "logit",
    "neg",
    "rad2deg",
    "reciprocal",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]
INTEGER_FUNCTIONS = [name for name in FLOAT_FUNCTIONS if name != "frac"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_function_of_every_kind_of_float(name: str, dtype: torch.dtype) -> None:
    check_conversion(getattr(aten, name).default, (SPECIAL.to(dtype),))


@pytest.mark.parametrize("name", INTEGER_FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_function_of_integers(name: str, dtype: torch.dtype) -> None:
    check_conversion(getattr(aten, name).default, (torch.tensor([[-3, 0, 1], [2, 7, -1]], dtype=dtype),))


@pytest.mark.parametrize("name", ["exp", "expm1", "log1p", "rsqrt", "sigmoid", "trunc"])
def test_function_of_a_dynamic_tensor_and_of_a_scalar(name: str) -> None:
    op = getattr(aten, name).default
    check_conversion(op, (torch.rand(3, 4) + 0.1,), dynamic={0: {0: (1, 3, 7)}})
    check_conversion(op, (torch.tensor(0.25),))


@pytest.mark.parametrize("dtype", FLOATS)
def test_expm1_and_log1p_keep_the_digits_of_small_arguments(dtype: torch.dtype) -> None:
    small = torch.tensor([1e-6, -1e-6, 3e-5, 1e-3, -0.02, 0.3, -0.4], dtype=dtype)
    rtol = 2e-6 if dtype is torch.float32 else torch.finfo(dtype).eps
    for op in (aten.expm1.default, aten.log1p.default):
        check_conversion(op, (small,), rtol=rtol, atol=0.0)


def test_signbit_sees_negative_zero() -> None:
    result = check_conversion(aten.signbit.default, (SPECIAL[:-1],))
    assert result.outputs[0].tolist()[6:8] == [True, False]


@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_round_to_decimals(decimals: int) -> None:
    check_conversion(aten.round.decimals, (torch.tensor([1.2345, -27.5, 155.0]),), {"decimals": decimals})
    large = torch.tensor([65504.0, -32768.0, 12345.0, 0.005], dtype=torch.float16)
    check_conversion(aten.round.decimals, (large,), {"decimals": decimals}, rtol=0.0, atol=0.0)


def test_round_goes_to_the_even_neighbour() -> None:
    result = check_conversion(aten.round.default, (torch.tensor([0.5, 1.5, 2.5, -0.5]),))
    assert result.outputs[0].tolist() == [0.0, 2.0, 2.0, -0.0]


def test_logit_clamps_to_eps() -> None:
    check_conversion(aten.logit.default, (torch.tensor([-0.5, 0.0, 0.2, 1.0, 1.5, NAN]), 0.1))


def test_atan2_in_every_quadrant_with_every_special_value() -> None:
    y, x = torch.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    check_conversion(aten.atan2.default, (y.contiguous(), x.contiguous()))


def test_erfc_keeps_its_relative_accuracy_where_erf_is_one() -> None:
    check_conversion(aten.erfc.default, (torch.cat([torch.linspace(-5, 9, 500), SPECIAL]),), rtol=3e-5, atol=0.0)


def test_erfinv_up_to_its_ends() -> None:
    ends = torch.tensor([-1.0, 1.0, 1 - 6e-8, 0.9999, 1e-8, -1.5, NAN])
    check_conversion(aten.erfinv.default, (torch.cat([torch.linspace(-1, 1, 501), ends]),), rtol=3e-6, atol=1e-7)


def test_lgamma_and_digamma_on_both_sides_of_zero() -> None:
    points = torch.cat([torch.linspace(-6.3, 9.4, 777), torch.tensor([INF, NAN, 1e-5, 30.0, 1000.0])])
    check_conversion(aten.lgamma.default, (torch.cat([points, torch.tensor([-INF, 0.0, -2.0, -3e38, 3e36])]),))
    check_conversion(aten.digamma.default, (points,), rtol=1e-4, atol=1e-5)
    check_conversion(aten.digamma.default, (torch.tensor([-1.0, -2.0, 0.0, -0.0]),))


def test_types_that_networks_do_not_compute_with_are_refused() -> None:
    result = check_conversion(aten.abs.default, (torch.ones(2, dtype=torch.int8),), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_DTYPE


OPINFO = [
    "abs",
    "acos",
    "acosh",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logit",
    "neg",
    "positive",
    "rad2deg",
    "reciprocal",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "special.xlog1py",
]


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPINFO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, limit=3):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None)
