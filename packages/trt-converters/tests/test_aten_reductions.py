"""Reductions, statistics, softmax and extremes with their places against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int32, torch.int64, torch.bool)


def _values(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(3, 4, 5) * 3).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "op", [aten.sum.dim_IntList, aten.any.dims, aten.all.dims, aten.amax.default, aten.amin.default]
)
@pytest.mark.parametrize(("dim", "keep"), [([1], False), ([-1, 0], True)])
def test_reduction_over_axes(op: torch._ops.OpOverload, dim: list[int], keep: bool, dtype: torch.dtype) -> None:
    check_conversion(op, (_values(dtype), dim, keep))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduction_of_everything_and_of_a_scalar(dtype: torch.dtype) -> None:
    for op in (aten.sum.default, aten.prod.default, aten.any.default, aten.all.default, aten.max.default):
        check_conversion(op, (_values(dtype)[0, :2],))
        check_conversion(op, (_values(dtype)[0, 0, 0],))


@pytest.mark.sampled
@pytest.mark.parametrize("op", [aten.mean.dim, aten.var.correction, aten.std.correction, aten.logsumexp.default])
@pytest.mark.parametrize("dtype", FLOATS)
def test_statistics_static_and_dynamic(op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    for dim in ([0], [1, 2], [-1]):
        check_conversion(op, (_values(dtype), dim))
        check_conversion(op, (_values(dtype), dim), dynamic={0: {0: (2, 3, 6)}})


@pytest.mark.parametrize("op", [aten.var.dim, aten.std.correction, aten.var_mean.correction, aten.mean.dim])
@pytest.mark.parametrize("keep", [False, True])
def test_statistics_of_a_scalar_along_its_only_axis(op: torch._ops.OpOverload, keep: bool) -> None:
    arguments = {"correction": 0} if op._overloadname == "correction" else {}
    check_conversion(op, (torch.tensor(1.5), [-1]), {**arguments, "keepdim": keep})


def test_integer_reductions_lose_no_bits() -> None:
    big = torch.tensor([[2**53 + 1, 1], [2**60 + 3, -(2**60)]])
    for op in (aten.sum.default, aten.max.default, aten.min.default, aten.argmax.default):
        check_conversion(op, (big,))
    check_conversion(aten.cumsum.default, (big, 1))
    narrow = torch.tensor([2**31 - 1, 2**31 - 1], dtype=torch.int32)
    assert check_conversion(aten.sum.default, (narrow,)).outputs[0].item() == 2**32 - 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.float16])
def test_sum_prod_mean_and_cumsum_honour_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.5, 2.5], [3.75, -1.25]])
    check_conversion(aten.sum.dim_IntList, (x, [0]), {"dtype": dtype})
    check_conversion(aten.prod.dim_int, (x, 0), {"dtype": dtype})
    check_conversion(aten.cumsum.default, (x, 0), {"dtype": dtype})
    if dtype.is_floating_point:
        check_conversion(aten.mean.dim, (x.int(), [0]), {"dtype": dtype})


def test_half_types_add_up_in_float32() -> None:
    ones = torch.ones(1, 5000, dtype=torch.float16)
    assert check_conversion(aten.sum.dim_IntList, (ones, [1])).outputs[0].item() == 5000
    large = torch.full((64,), 200.0, dtype=torch.float16)
    check_conversion(aten.linalg_vector_norm.default, (large,))
    check_conversion(aten.var.correction, (large * 10 + torch.arange(64), [0]))


def test_extremes_propagate_nan() -> None:
    x = torch.tensor([[1.0, NAN, 3.0], [INF, 2.0, -INF], [NAN, NAN, NAN]])
    for op in (aten.amax.default, aten.amin.default):
        check_conversion(op, (x, [1]))
    for op in (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default):
        check_conversion(op, (x, 1))
    for op in (aten.max.default, aten.min.default):
        check_conversion(op, (x,))


@pytest.mark.parametrize("op", [aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_the_first_of_equal_elements_is_found(op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    ties = torch.tensor([[1, 3, 3, 0, 0], [2, 2, 2, 2, 2]]).to(dtype)
    if not (dtype is torch.bool and op in (aten.argmax.default, aten.argmin.default)):
        check_conversion(op, (ties, 1))
        check_conversion(op, (ties, -1, True), dynamic={0: {1: (2, 5, 9)}})
    if op in (aten.argmax.default, aten.argmin.default) and dtype is not torch.bool:
        check_conversion(op, (ties,), dynamic={0: {0: (1, 2, 4)}})


def test_degrees_of_freedom_of_a_variance() -> None:
    x = torch.randn(4, 3)
    for correction in (None, 0, 1, 2.5, 5):
        check_conversion(aten.var.correction, (x, [0]), {"correction": correction})
    check_conversion(aten.var_mean.correction, (x, [0, 1]), {"keepdim": True})
    check_conversion(aten.std_mean.correction, (x, [1]))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, INF, -INF, -1])
def test_norms(order: float) -> None:
    check_conversion(aten.linalg_vector_norm.default, (torch.randn(3, 4), order, [1]))
    check_conversion(aten.linalg_vector_norm.default, (torch.randn(3, 4), order, None, True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_family_is_stable(dtype: torch.dtype) -> None:
    x = torch.tensor([[1000.0, -1000.0, 0.0], [-INF, 1.0, 2.0], [3.0, 3.0, 3.0]], dtype=dtype)
    check_conversion(aten._softmax.default, (x, -1, False))
    check_conversion(aten._log_softmax.default, (x, 1, False))
    check_conversion(aten.logsumexp.default, (x, [1]))
    check_conversion(aten.logsumexp.default, (torch.tensor([[-INF, -INF], [INF, 1.0]]), [1]))
    check_conversion(aten._safe_softmax.default, (torch.tensor([[-INF, -INF], [0.0, 1.0]]), -1))
    check_conversion(aten.softmax.int, (x, 0, torch.float32))
    check_conversion(aten._softmax.default, (torch.tensor(2.0), 0, False))


def test_softmax_is_one_layer() -> None:
    assert emitted_layers(aten._softmax.default, (torch.randn(2, 3), 1, False)) == ("SOFTMAX",)


def test_nan_aware_means_and_counts() -> None:
    x = torch.tensor([[1.0, NAN, 3.0], [0.0, 2.0, 0.0]])
    check_conversion(aten.nanmean.default, (x, [1]))
    check_conversion(aten.count_nonzero.default, (x, 1))


OPINFO: list[Any] = [
    "sum",
    "prod",
    "mean",
    "nanmean",
    "amax",
    "amin",
    "max",
    "min",
    "any",
    "all",
    "count_nonzero",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "logsumexp",
    "linalg.vector_norm",
    "argmax",
    "argmin",
    "softmax",
    "log_softmax",
]


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPINFO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, limit=3):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None)
