"""Scans, sorts, order statistics and searches against eager PyTorch."""

from __future__ import annotations

import dataclasses

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_converters.testing import check_conversion, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten

INF, NAN = float("inf"), float("nan")
SCANS = (aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default, aten.cummax.default, aten.cummin.default)


@pytest.mark.sampled
@pytest.mark.parametrize("op", SCANS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_scan_along_every_axis(op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 7, 2).to(dtype)
    for dim in (0, 1, -1):
        check_conversion(op, (x, dim))
    check_conversion(op, (x, 1), dynamic={0: {1: (2, 7, 13)}})
    check_conversion(op, (torch.tensor(1.5, dtype=dtype), 0))


@pytest.mark.parametrize("op", [op for op in SCANS if op is not aten.logcumsumexp.default])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_scan_of_integers_stays_in_integers(op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    check_conversion(op, (torch.tensor([[1, 0, 3, 3, 2]]).to(dtype), 1))


def test_running_extremes_keep_nan_and_point_to_the_latest() -> None:
    x = torch.tensor([1.0, 3.0, 3.0, NAN, 5.0, NAN, 2.0])
    check_conversion(aten.cummax.default, (x, 0))
    check_conversion(aten.cummin.default, (x, 0))


NUMBERS = st.sampled_from([NAN, INF, -INF, 0.0, 1.0, -2.0, 3.5])


@hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
@hypothesis.given(st.lists(NUMBERS, min_size=1, max_size=12), st.booleans())
def test_sorts_are_stable_and_put_nan_last(numbers: list[float], descending: bool) -> None:
    check_conversion(aten.sort.stable, (torch.tensor(numbers),), {"stable": True, "descending": descending})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64, torch.bool])
def test_sort_along_every_axis_and_with_dynamic_extents(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (2, 6, 3)).to(dtype)
    for dim in (0, 1, -1):
        check_conversion(aten.sort.stable, (x,), {"stable": True, "dim": dim, "descending": True})
    check_conversion(aten.argsort.stable, (x,), {"stable": True, "dim": 1}, dynamic={0: {1: (2, 6, 11)}})
    check_conversion(aten.sort.default, (torch.tensor(3.0),))


def test_sort_of_an_axis_that_top_k_cannot_look_at() -> None:
    x = torch.randn(3, 1, 2, 1, 2)
    check_conversion(aten.sort.default, (x, 0))


def test_more_than_the_limit_of_top_k_is_refused() -> None:
    long = torch.randn(4000)
    for op, args in ((aten.sort.default, (long,)), (aten.topk.default, (long, 3900)), (aten.median.default, (long,))):
        result = check_conversion(op, args, expect_supported=False)
        assert result.verdict.reason is Reason.TENSORRT_LIMIT
    check_conversion(aten.topk.default, (long, 5))
    dynamic = check_conversion(
        aten.sort.default, (torch.randn(9),), dynamic={0: {0: (2, 9, 5000)}}, expect_supported=False
    )
    assert dynamic.verdict.reason is Reason.TENSORRT_LIMIT


@pytest.mark.parametrize("largest", [True, False])
def test_topk_values_and_places(largest: bool) -> None:
    torch.manual_seed(0)
    x = torch.randperm(24).reshape(2, 12).float()
    check_conversion(aten.topk.default, (x, 3, 1, largest))
    check_conversion(aten.topk.default, (x, 2, 0, largest), dynamic={0: {1: (4, 12, 20)}})
    check_conversion(aten.topk.default, (x, 3, 1, largest), dynamic={0: {1: (3, 12, 20)}})
    check_conversion(aten.topk.default, (x[0].long(), 3, 0, largest))


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0, 5.0], [3.0, NAN, 2.0], [NAN, NAN], [INF, 1.0, -INF]])
def test_medians_with_and_without_nan(values: list[float]) -> None:
    x = torch.tensor([values, values[::-1]])
    for op in (aten.median.default, aten.nanmedian.default):
        check_conversion(op, (x,))
    for op in (aten.median.dim, aten.nanmedian.dim):
        check_conversion(op, (x, 1, True))
    check_conversion(aten.median.dim, (torch.tensor([[4, 1, 9], [7, 8, 0]]), 1))


def test_kth_value_of_distinct_elements() -> None:
    torch.manual_seed(0)
    x = torch.randperm(20).reshape(4, 5)
    for k in (1, 3, 5):
        check_conversion(aten.kthvalue.default, (x, k))
        check_conversion(aten.kthvalue.default, (x.float(), k, 1, True), dynamic={0: {0: (1, 4, 6)}})


def test_mode_is_the_smallest_of_the_most_frequent() -> None:
    x = torch.tensor([[1, 2, 2, 3, 3], [5, 4, 4, 5, 1]])
    for dtype in (torch.int64, torch.float32):
        check_conversion(aten.mode.default, (x.to(dtype), 1))
    check_conversion(aten.mode.default, (x, 0, True))


@pytest.mark.parametrize("right", [False, True])
def test_searches_in_sorted_sequences(right: bool) -> None:
    edges, values = torch.tensor([-1.0, 0.0, 0.0, 2.0]), torch.tensor([[-2.0, 0.0, 1.0], [2.0, 3.0, NAN]])
    check_conversion(aten.bucketize.Tensor, (values, edges), {"right": right}, dynamic={0: {0: (1, 2, 5)}})
    check_conversion(aten.bucketize.Tensor, (values, edges), {"right": right, "out_int32": True}, constants=(1,))
    check_conversion(aten.searchsorted.Tensor, (edges, values), {"right": right})
    check_conversion(aten.searchsorted.Scalar, (edges, 0.5), {"right": right})
    rows = torch.stack([edges, edges + 1])
    check_conversion(aten.searchsorted.Tensor, (rows, values), {"right": right})
    shuffled, sorter = torch.tensor([0.0, 2.0, -1.0, 0.0]), torch.tensor([2, 0, 3, 1])
    check_conversion(aten.searchsorted.Tensor, (shuffled, values), {"right": right, "sorter": sorter})


def test_boundaries_of_other_ranks_are_left_to_pytorch_which_refuses_them() -> None:
    check_conversion(aten.bucketize.Tensor, (torch.ones(3), torch.ones(2, 2)), expect_supported=False)


def test_histogram_with_given_and_with_found_range() -> None:
    torch.manual_seed(0)
    x = torch.randn(50)
    check_conversion(aten.histc.default, (x, 7, -1, 2))
    check_conversion(aten.histc.default, (x, 5))
    check_conversion(aten.histc.default, (torch.ones(4), 3))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("bins", "low", "high"), [(8, 0, 7), (3, 0, 7), (5, -2, 9), (4, 0, 0)])
def test_histograms_of_integers(dtype: torch.dtype, bins: int, low: int, high: int) -> None:
    """PyTorch counts integers on a GPU only, with the integer arithmetic that stands here."""
    with torch.library._scoped_library("trt_histograms", "FRAGMENT") as library:
        library.define("histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor")

        def histogram(x: torch.Tensor, bins: int = 100, first: int = 0, last: int = 0) -> torch.Tensor:
            if first == last:
                first, last = int(x.min()), int(x.max())
            inside = x[(x >= first) & (x <= last)].long()
            places = torch.div((inside - first) * bins, last - first, rounding_mode="floor").clamp(max=bins - 1)
            return torch.bincount(places, minlength=bins).to(x.dtype)

        library.impl("histc", histogram, "CPU")
        library.impl("histc", lambda x, bins=100, *_: x.new_empty(bins), "Meta")
        registry = ConverterRegistry()
        (builtin,) = DYNAMO_CONVERTERS.candidates(aten.histc.default)
        operator = torch.ops.trt_histograms.histc.default
        registry.register(dataclasses.replace(builtin, target=operator))
        x = torch.tensor([0, 1, 1, 2, 3, 5, 7, 7, 8, -1, 6], dtype=dtype)
        check_conversion(operator, (x, bins, low, high), registry=registry)


def test_bincount_depends_on_data_and_is_refused() -> None:
    result = check_conversion(aten.bincount.default, (torch.tensor([1, 2, 2]),), expect_supported=False)
    assert result.verdict.reason is Reason.DATA_DEPENDENT_SHAPE


OPINFO = [
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "cummax",
    "cummin",
    "sort",
    "argsort",
    "topk",
    "median",
    "nanmedian",
    "mode",
    "searchsorted",
    "bucketize",
    "histc",
]


@pytest.mark.sampled
@pytest.mark.parametrize("name", OPINFO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, limit=3):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None)
