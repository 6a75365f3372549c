"""The bound on rounding errors: correct implementations are within it, wrong ones are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_converters.testing import compare, rounding_bounds
from trt_converters.testing.comparison import is_within

NARROW = (torch.float16, torch.bfloat16, torch.float32)


def _product(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors[0] @ tensors[1]]


def _one_by_one(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A product whose partial sums are rounded after every term."""
    total = torch.zeros(left.shape[0], right.shape[1], dtype=left.dtype)
    for index in range(left.shape[1]):
        total = total + left[:, index, None] * right[None, index]
    return total


@pytest.mark.parametrize("dtype", NARROW)
@given(terms=st.integers(1, 600), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_a_sum_in_another_order_and_in_the_narrow_type_is_right(dtype: torch.dtype, terms: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(3, terms, generator=generator).to(dtype)
    right = torch.randn(terms, 5, generator=generator).to(dtype)
    (bound,) = rounding_bounds(_product, [left, right], [dtype])
    assert bound is not None
    assert is_within(left @ right, *bound)
    assert is_within(_one_by_one(left, right), *bound)


@pytest.mark.parametrize("dtype", NARROW)
@given(terms=st.integers(1, 200), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_an_operand_that_is_missing_is_wrong(dtype: torch.dtype, terms: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = (torch.rand(4, terms, generator=generator) + 1).to(dtype)
    right = (torch.rand(terms, 4, generator=generator) + 1).to(dtype)
    exact = left.double() @ right.double()
    (bound,) = rounding_bounds(_product, [left, right], [dtype])
    assert bound is not None
    assert not is_within((exact * 2).to(dtype), *bound)
    assert not is_within((exact - exact).to(dtype), *bound)


def test_nan_and_infinity_must_be_where_the_exact_result_has_them() -> None:
    tensors = [torch.tensor([1.0, float("nan"), 60000.0]).half(), torch.tensor([1.0, 1.0, 2.0]).half()]
    (bound,) = rounding_bounds(lambda t: [t[0] * t[1]], tensors, [torch.float16])
    assert bound is not None
    nan, inf = float("nan"), float("inf")
    assert is_within(torch.tensor([1.0, nan, inf]).half(), *bound)
    assert not is_within(torch.tensor([1.0, 0.0, inf]).half(), *bound)
    assert not is_within(torch.tensor([nan, nan, inf]).half(), *bound)
    assert not is_within(torch.tensor([1.0, nan, 60000.0]).half(), *bound)


def test_integers_and_functions_without_a_wide_kernel_have_no_bound() -> None:
    assert rounding_bounds(lambda t: [t[0] + 1], [torch.arange(3)], [torch.int64]) == [None]
    assert rounding_bounds(lambda t: [t[0].half()], [torch.ones(3).half()], [torch.float16]) == [None]

    def refuse(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise NotImplementedError("no kernel")

    assert rounding_bounds(refuse, [torch.ones(2)], [torch.float32]) == [None]


def test_a_comparison_asks_for_bounds_only_beyond_tolerance_and_keeps_tolerances_that_are_given() -> None:
    left, right = torch.randn(4, 800).bfloat16(), torch.randn(800, 8).bfloat16()  # of 32 sums some are small
    found, wanted = _one_by_one(left, right), left @ right

    def unasked() -> list[None]:
        raise AssertionError("asked for")

    compare([wanted], [wanted], bounds=unasked)
    compare([found], [wanted], bounds=lambda: rounding_bounds(_product, [left, right], [wanted.dtype]))
    for options in ({}, {"rtol": 0.0, "atol": 0.0, "bounds": unasked}):
        with pytest.raises(AssertionError, match=r"not (close|equal)"):
            compare([found], [wanted], **options)
