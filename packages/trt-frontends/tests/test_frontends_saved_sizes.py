"""Arithmetic on sizes that no extent expresses: computed by steps of the program, compiled and loaded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import Input

SIZES = (2, 3, 5, 6, 10, 15)

FUNCTIONS = {
    "round": lambda n: round(n / 4),
    "round to a digit": lambda n: torch.sym_int(round(n / 3, 1) * 10),
    "abs": lambda n: abs(n - 5),
    "abs of a float": lambda n: round(abs(n - 5.5) * 2),
    "shift left": lambda n: 1 << (n % 3),
    "shift right": lambda n: n >> 1,
    "root": lambda n: torch.sym_int(torch.sym_sqrt(n)),
    "floor": lambda n: math.floor(n * 0.3),
    "ceil": lambda n: math.ceil(n * 0.3),
    "trunc": lambda n: math.trunc(n / 3),
    "sum": lambda n: torch.sym_sum([n, n // 2, 1]),
    "choice": lambda n: torch.sym_ite(n > 5, n, n + 1),
    "bits": lambda n: (n & 3) | 4,
    "power": lambda n: n**2 % 7,
    "least": lambda n: torch.sym_max(torch.sym_min(n, 6), 3),
}
"""By what they show."""


class Sizes(nn.Module):
    """Makes a tensor of each size that a function gives, and a number of each."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """x: (N, 2), float32."""
        sizes = [function(x.shape[0]) for function in FUNCTIONS.values()]
        return [x.relu() * size + torch.ones(size + 1).sum() for size in sizes]


def test_functions_of_sizes_are_saved_and_loaded(tmp_path: Path) -> None:
    varying = Input(min_shape=(2, 2), opt_shape=(8, 2), max_shape=(16, 2))
    compiled = trt_frontends.compile(Sizes().eval(), arg_inputs=(varying,), min_block_size=1)
    trt_runtime.save(compiled, tmp_path / "sizes.trtp")
    loaded = trt_runtime.load(tmp_path / "sizes.trtp")
    for size in SIZES:
        x = torch.randn(size, 2)
        for module in (compiled, loaded):
            results = dict(zip(FUNCTIONS, module(x), strict=True))
            torch.testing.assert_close(results, dict(zip(FUNCTIONS, Sizes()(x), strict=True)))


class Resized(nn.Module):
    """Resizes by factors that are no short binary fractions, asked for in the ways that people write."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: (1, 2, H), float32."""
        small = nn.functional.interpolate(x, scale_factor=0.7)
        return small, nn.functional.interpolate(x, size=int(x.shape[2] / 1.1), mode="linear")


def test_what_is_resized_by_any_factor_is_whole_in_one_engine_and_loaded(tmp_path: Path) -> None:
    varying = Input(min_shape=(1, 2, 4), opt_shape=(1, 2, 64), max_shape=(1, 2, 128))
    compiled = trt_frontends.compile(Resized(), arg_inputs=(varying,), require_full_compilation=True)
    trt_runtime.save(compiled, tmp_path / "resized.trtp")
    loaded = trt_runtime.load(tmp_path / "resized.trtp")
    for size in (4, 11, 33, 55, 89, 90, 99, 110, 128):  # 0.7 * 90 and 55 / 1.1 are below 63 and 50 in floats
        x = torch.randn(1, 2, size)
        for module in (compiled, loaded):
            torch.testing.assert_close(module(x), Resized()(x))


class Rounded(nn.Module):
    """Cuts a row at a part of its length, rounded to the nearest integer."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (1, L), float32."""
        return torch.tanh(x)[:, : round(self.part * x.shape[1])] * 2 + 1


def test_a_part_of_a_long_range_is_rounded_as_python_rounds(caplog: pytest.LogCaptureFixture) -> None:
    """Half way to even in one engine; where floats round otherwise, the report says so before anything is compiled."""
    varying = Input(min_shape=(1, 8), opt_shape=(1, 16), max_shape=(1, 100_000))
    compiled = trt_frontends.compile(Rounded(0.3), arg_inputs=(varying,), require_full_compilation=True)
    for size in (8, 15, 16, 25, 35, 45, 55, 99_995):
        x = torch.randn(1, size)
        torch.testing.assert_close(compiled(x), Rounded(0.3)(x))
    report = trt_frontends.explain(Rounded(0.7), arg_inputs=(varying,))
    assert report.coverage < 1
    assert "no line of integers" in report.to_text()
    with caplog.at_level("WARNING"):
        other = trt_frontends.compile(Rounded(0.7), arg_inputs=(varying,), min_block_size=1)
    assert "runs in PyTorch" not in caplog.text
    for size in (8, 45, 99_995):
        x = torch.randn(1, size)
        torch.testing.assert_close(other(x), Rounded(0.7)(x))
