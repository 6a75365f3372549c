"""How long runs take, and whether candidates compute what they should."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from trt_portable.builder.autotune import autotuner, clock
from trt_portable.builder.autotune.autotuner import first_difference


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([torch.ones(3)], None),
        ([torch.ones(3) * 1.001], None),
        ([torch.ones(3) * 1.1], "off by"),
        ([torch.ones(4)], "not torch.float32 (3,)"),
        ([torch.ones(3).half()], "torch.float16"),
        ([torch.tensor([1.0, 1.0, float("nan")])], "finite"),
        ([], "0 outputs"),
    ],
)
def test_what_differs(found: Any, says: str | None) -> None:
    said = first_difference(found, [torch.ones(3)])
    assert said is None if says is None else says in (said or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_infinities_and_nan_are_told_apart(dtype: torch.dtype) -> None:
    inf, nan = torch.inf, torch.nan
    wanted = torch.tensor([1.0, inf, -inf, nan], dtype=dtype)
    assert first_difference([wanted.clone()], [wanted]) is None
    for other in ([1.0, -inf, -inf, nan], [1.0, nan, -inf, nan], [1.0, inf, -inf, inf], [1.0, inf, -inf, -inf]):
        assert first_difference([torch.tensor(other, dtype=dtype)], [wanted]) is not None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_few_bits_may_be_rounded_either_way(dtype: torch.dtype) -> None:
    wanted = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    found = wanted * 1.003  # as far as two orders of adding up are apart
    assert int((found.to(dtype).float() != wanted.to(dtype).float()).sum()) > 40
    assert first_difference([found.to(dtype)], [wanted.to(dtype)]) is None
    assert first_difference([(wanted * 1.3).to(dtype)], [wanted.to(dtype)]) is not None
    assert first_difference([wanted * 1.05], [wanted], {dtype}) is not None  # weights of few bits excuse nothing


@pytest.mark.parametrize("place", [0, 99, 100, 250])
def test_differences_are_found_in_every_piece(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(autotuner, "_PIECE", 100)
    wanted = torch.randn(251)
    for value, says in ((1e3, "off by"), (torch.nan, "finite in other places"), (torch.inf, "finite in other places")):
        found = wanted.clone()
        found[place] = value
        assert says in (first_difference([found], [wanted]) or "")
    assert first_difference([wanted.clone()], [wanted]) is None
    numbers = torch.arange(251)
    assert first_difference([numbers.clone()], [numbers]) is None
    assert first_difference([numbers.roll(1)], [numbers]) is not None


def test_numbers_that_vanish_in_half_precision_agree() -> None:
    vanished = torch.full((8,), 3e-7, dtype=torch.float16)
    assert first_difference([vanished * 2], [vanished]) is None
    assert first_difference([vanished + 1e-3], [vanished]) is not None


@pytest.mark.parametrize(("dtype", "fits"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, True)])
def test_wide_outputs_of_half_precision_are_held_to_half_precision(dtype: torch.dtype, fits: bool) -> None:
    wanted = torch.ones(8)
    found = wanted * 1.015  # as far as two orders of adding up in half precision are apart in a deep network
    assert (first_difference([found], [wanted], {dtype, torch.int32}) is None) is fits
    assert first_difference([wanted * 1.2], [wanted], {dtype}) is not None


def test_work_of_one_thread_is_timed_by_what_the_thread_had_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    waited = clock.least_seconds(lambda: time.sleep(0.02))  # as if others had the processor
    assert clock.host_clock() is time.thread_time and waited < 0.02
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert clock.host_clock() is time.perf_counter


def test_other_memory_is_read_before_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = torch.Tensor.sum
    monkeypatch.setattr(torch.Tensor, "sum", lambda tensor: read.append(tensor.numel()) or plain(tensor))
    weights = clock.ColdWeights(8 << 10)
    assert weights.least_seconds(lambda: read.append(0), torch.zeros(3)) > 0
    assert read == [128, 3, 0] * 3  # a sixteenth of 8 KiB, and the input last
    assert clock.ColdWeights(1 << 40)._nbytes == 32 << 20
