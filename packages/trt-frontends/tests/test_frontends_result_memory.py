"""Where engines' outputs lie in memory, and what blocks in PyTorch make of tensors that lie otherwise than captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import trt_frontends
from trt_core import Input
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.result_memory import memory_order


def test_strides_are_compared_however_their_products_are_written() -> None:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        assert mode.shape_env is not None
        batch, length = (mode.from_tensor(torch.empty(2, 7)).shape[axis] for axis in (0, 1))
        rows, width, parts = (length + 1) ** 2, 2 * length + 3, length // 3
        expanded = 2 * length**3 + 7 * length**2 + 8 * length + 3
        empty = torch.empty_strided((batch, rows, parts, width), (parts * expanded, width, expanded, 1))
        assert memory_order(empty) == [0, 2, 1, 3]
        by_most = torch.empty_strided((batch, rows, parts, 3), (parts * rows * 3, 3 * torch.sym_max(1, parts), 3, 1))
        assert memory_order(by_most) == [0, 1, 2, 3]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_in_pytorch_of_what_had_gaps(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        parts = torch.relu(x).permute(1, 0, 2)[..., 1:]  # leaves its engine without gaps
        return parts.transpose(0, 1).view(-1, x.shape[2] - 1) * 2

    options = {"min_block_size": 1, "torch_executed_ops": {"aten.view.default", "aten.transpose.int"}}
    optimized = torch.compile(function, backend=torch_tensorrt_backend, options=options, dynamic=dynamic)
    for shape in ((2, 3, 5), (4, 2, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(optimized(x), function(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_over_the_memory_that_a_view_lies_in(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        parts = torch.relu(x)[x.shape[0] // 2 :, 1:]
        return torch.as_strided(parts, (parts.shape[0], x.shape[1] - 2, 2), (parts.stride(0), 1, 1)) * 2

    optimized = torch.compile(function, backend=torch_tensorrt_backend, options={"min_block_size": 1}, dynamic=dynamic)
    for shape in ((3, 5), (4, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(optimized(x), function(x))


class _Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        normalized = self.norm(x.transpose(1, 2))
        places = torch.nonzero(x)  # which lie by columns
        return normalized, normalized.transpose(1, 2) * 2, x[at.t()].relu(), places, places.t(), places + 1


def test_results_lie_at_all_doors_as_kernels_write_them(tmp_path: Path) -> None:
    model = _Normalized().eval()
    inputs = (
        Input(min_shape=(2, 2, 4), opt_shape=(3, 5, 4), max_shape=(8, 8, 4)),
        Input((3, 2), dtype=torch.int64),
    )
    compiled = trt_frontends.compile(model, arg_inputs=inputs, min_block_size=1, optimization_level=0)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    options = {"min_block_size": 1, "optimization_level": 0}
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options=options)
    for shape in ((3, 5, 4), (4, 6, 4)):
        x, at = torch.randn(shape), torch.randint(0, 3, (3, 2))
        wanted = model(x, at)
        for door in (compiled, trt_frontends.load(tmp_path / "model.trtp"), optimized):
            with torch.no_grad():
                found = door(x, at)
            torch.testing.assert_close(found, wanted)
            assert [item.stride() for item in found] == [item.stride() for item in wanted]
