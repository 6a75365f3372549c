"""Pooling against eager PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_converters.testing import ExtentOf, check_conversion, emitted_layers, samples_from_opinfo

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
randn = torch.randn
torch.manual_seed(0)
WINDOWS = [
    ([3, 3], [2, 2], [1, 1]),
    ([2, 2], [2, 2], [0, 0]),
    ([2, 2], [3, 3], [1, 1]),  # the last window may start in the padding: PyTorch drops it
    ([2, 3], [], [1, 1]),
    ([3], [1], [1]),
]


@pytest.mark.sampled
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
def test_max_pool(kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool) -> None:
    for dilation in ([1, 1], [2, 1]):
        args = (randn(2, 3, 9, 10), kernel, stride, padding, dilation, ceil_mode)
        check_conversion(aten.max_pool2d.default, args, dynamic={0: {0: (1, 2, 4)}})
        check_conversion(aten.max_pool2d_with_indices.default, args, dynamic={0: {0: (1, 2, 4)}})


@pytest.mark.sampled
@pytest.mark.parametrize(("ceil_mode", "include"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
def test_average_pool(kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool, include: bool) -> None:
    for divisor in (None, 3):
        args = (randn(2, 3, 9, 10), kernel, stride, padding, ceil_mode, include, divisor)
        check_conversion(aten.avg_pool2d.default, args, dynamic={0: {0: (1, 2, 4)}})


@pytest.mark.parametrize("dtype", FLOATS)
def test_types(dtype: torch.dtype) -> None:
    check_conversion(aten.max_pool2d.default, (randn(2, 3, 8, 8).to(dtype), [3, 3], [2, 2], [1, 1]))
    check_conversion(aten.avg_pool2d.default, (randn(2, 3, 8, 8).to(dtype), [3, 3], [2, 2], [1, 1]))
    check_conversion(aten.adaptive_avg_pool2d.default, (randn(2, 3, 7, 8).to(dtype), [3, 5]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_keep_their_bits(dtype: torch.dtype) -> None:
    value = torch.randint(-(2**30), 2**30, (1, 2, 6, 6), dtype=dtype)
    check_conversion(aten.max_pool2d.default, (value, [3, 3], [2, 2], [1, 1]))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.max_pool1d.default, (randn(2, 3, 9), [3], [2], [1], [1], True)),
        (aten.max_pool1d.default, (randn(3, 9), [3], [2], [1], [2], True)),
        (aten.max_pool3d.default, (randn(2, 3, 5, 6, 7), [3, 2, 2], [2, 2, 2], [1, 1, 1], [1, 1, 1], True)),
        (aten.max_pool3d_with_indices.default, (randn(3, 5, 6, 7), [3, 2, 2], [2, 2, 2], [1, 1, 1])),
        (aten.avg_pool1d.default, (randn(2, 3, 9), [3], [2], [1], True, False)),
        (aten.avg_pool3d.default, (randn(2, 3, 5, 6, 7), [3, 2, 2], [2, 2, 2], [1, 1, 1], True, False, 5)),
    ],
)
def test_other_ranks(op: Any, args: tuple[Any, ...]) -> None:
    check_conversion(op, args)


SPATIAL = {0: {0: (1, 2, 4), 2: (5, 9, 12), 3: (6, 10, 11)}}


def test_spatial_extents_may_be_dynamic() -> None:
    dynamic = SPATIAL
    check_conversion(aten.max_pool2d.default, (randn(2, 3, 9, 10), [3, 3], [2, 2], [1, 1]), dynamic=dynamic)
    check_conversion(aten.avg_pool2d.default, (randn(2, 3, 9, 10), [3, 3], [2, 2], [1, 1]), dynamic=dynamic)
    check_conversion(aten.adaptive_avg_pool2d.default, (randn(2, 3, 9, 10), [4, 3]), dynamic=dynamic)
    check_conversion(aten.adaptive_max_pool2d.default, (randn(2, 3, 9, 10), [4, 3]), dynamic=dynamic)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 17), st.integers(1, 13))
def test_adaptive_windows_are_those_of_pytorch_for_every_pair_of_sizes(extent: int, windows: int) -> None:
    value = randn(2, 3, extent)
    check_conversion(aten.adaptive_avg_pool1d.default, (value, [windows]))
    check_conversion(aten.adaptive_max_pool1d.default, (value, [windows]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_adaptive_windows_follow_sizes_that_vary(dtype: torch.dtype) -> None:
    value = randn(2, 3, 7, 8).to(dtype)
    dynamic = {0: {2: (3, 7, 12), 3: (4, 8, 9)}}
    for sizes in ([ExtentOf(0, 3), ExtentOf(0, 2)], [ExtentOf(0, 2), 5], [4, ExtentOf(0, 2)]):
        check_conversion(aten._adaptive_avg_pool2d.default, (value, sizes), dynamic=dynamic)
        check_conversion(aten.adaptive_avg_pool2d.default, (value, sizes), dynamic={0: {3: (4, 8, 9)}})


def test_adaptive_pooling_of_volumes() -> None:
    check_conversion(aten._adaptive_avg_pool3d.default, (randn(2, 3, 7, 5, 4), [3, 2, 5]))
    check_conversion(aten.adaptive_max_pool3d.default, (randn(2, 3, 4, 5, 4), [3, 2, 5]))


def test_the_first_of_equal_maxima_is_found() -> None:
    check_conversion(aten.max_pool2d_with_indices.default, (torch.ones(1, 1, 4, 4), [2, 2], [2, 2]))


def test_plain_pooling_is_one_layer() -> None:
    value = randn(1, 3, 8, 8)
    assert emitted_layers(aten.max_pool2d.default, (value, [3, 3], [2, 2], [1, 1])) == ("POOLING",)
    assert emitted_layers(aten.max_pool2d.default, (value, [2, 2], [2, 2], [0, 0], [1, 1], True)) == ("POOLING",)
    assert emitted_layers(aten.avg_pool2d.default, (value, [2, 2])) == ("POOLING",)
    assert emitted_layers(aten.adaptive_avg_pool2d.default, (value, [4, 2])) == ("POOLING",)
    assert emitted_layers(aten.adaptive_avg_pool2d.default, (value, [1, 1])) == ("REDUCE",)


def test_unpooling_puts_values_back() -> None:
    pooled, indices = torch.nn.functional.max_pool2d(randn(2, 3, 6, 6), 2, return_indices=True)
    check_conversion(aten.max_unpool2d.default, (pooled, indices, [6, 6]))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name",
    [
        *(f"nn.functional.max_pool{rank}d" for rank in (1, 2, 3)),
        *(f"nn.functional.avg_pool{rank}d" for rank in (1, 2, 3)),
        *(f"nn.functional.adaptive_{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)),
        *(f"nn.functional.max_unpool{rank}d" for rank in (1, 2, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, 2):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None, atol=1e-5)


def test_nan_is_the_maximum_of_its_windows() -> None:
    value = randn(1, 2, 9)
    value[0, 0, 3] = float("nan")
    check_conversion(aten.max_pool1d.default, (value, [3], [1], [0], [2]))
    check_conversion(aten.adaptive_max_pool1d.default, (value, [4]))


@pytest.mark.parametrize("include_padding", [True, False])
def test_windows_that_are_larger_than_the_input_cost_no_more_than_it(include_padding: bool) -> None:
    x = torch.randn(1, 3, 2, 5)
    args = (x, [2560, 2560], [2560, 2560], [1, 1], True, include_padding)
    check_conversion(aten.avg_pool2d.default, args)
    check_conversion(aten.max_pool2d.default, (x, [1000, 3], [1000, 2], [1, 1], [1, 1], True))
