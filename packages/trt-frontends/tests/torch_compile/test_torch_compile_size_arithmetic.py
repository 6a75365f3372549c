"""Numbers that models compute from sizes that vary: amounts of padding, quotients rounded up, places between pixels."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trt_frontends import model_report
from trt_frontends.backend import torch_tensorrt_backend

SIZES = ((2, 3, 12, 13), (3, 3, 17, 16), (2, 3, 16, 24))


@pytest.fixture(scope="module")
def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, 3, 3, padding=1).eval()


def padded_to_multiples(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2:]
    whole = F.pad(x, (0, -width % 8, 1, -height % 8), value=0.5)
    return F.pad(whole, (0, -height % 4, 1, 0), mode="reflect")


def cropped(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2:]
    return F.pad(x, (0, 3 - width % 5, 0, -(height // 2)))


def rounded_up(x: torch.Tensor) -> torch.Tensor:
    rows, columns = (math.ceil(size / 2) for size in x.shape[-2:])
    grown = F.interpolate(x, size=(2 * rows, 2 * columns))
    return grown.reshape(x.shape[0], 3, rows, 2, columns, 2).permute(0, 1, 3, 5, 2, 4).contiguous()


def between_pixels(x: torch.Tensor) -> torch.Tensor:
    return x * torch.arange(0.5, x.shape[-1], dtype=torch.float32)


def square_again(x: torch.Tensor) -> torch.Tensor:
    patches = F.avg_pool2d(F.interpolate(x, size=(x.shape[0] * 4, x.shape[0] * 4)), 2).flatten(2)
    side = int(patches.shape[-1] ** 0.5)
    return patches.reshape(x.shape[0], 3, side, side).transpose(2, 3).contiguous()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [padded_to_multiples, cropped, rounded_up, between_pixels, square_again])
def test_numbers_computed_from_sizes_stay_in_the_engine(
    function: Callable[[torch.Tensor], torch.Tensor], convolution: nn.Module
) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(function(convolution(x)))

    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1}, dynamic=True)
    for size in SIZES:
        x = torch.randn(size)
        with torch.no_grad():
            torch.testing.assert_close(optimized(x), model(x))
    (graph,) = model_report(optimized).graphs
    (build,) = graph.builds
    assert build.partition is not None
    assert [node.op for node in build.partition.torch_nodes] == []


def test_amounts_that_vary_leave_wide_integers_in_pytorch() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, x.shape[0] % 4)) + 1

    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1}, dynamic=True)
    x = torch.arange(30).reshape(5, 6)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))
    (graph,) = model_report(optimized).graphs
    assert graph.builds[-1].partition is not None
    assert "pad is symbolic" in {node.verdict.message for node in graph.builds[-1].partition.torch_nodes}
