"""Operators whose kernels read sizes as numbers, and pooling that asks how windows end, take every size of a range."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import torch
from function_module import Calls
from torch import nn
from torch.nn import functional

import trt_frontends
from trt_core import Input, InputError

pytestmark = pytest.mark.sampled(4)

STRESSED: Final = "TRT_STRESS" in os.environ
"""Whether every size of a range is tried, and every operator by `torch.compile`."""

SIZES: Final = [(rows, columns) for rows in range(4, 10) for columns in (6, 7, 8, 11, 13)]

OPERATORS: Final[dict[str, Callable[[torch.Tensor], Any]]] = {
    # x: (rows, columns), float32
    "kron": lambda x: torch.kron(x, torch.ones(2, 3)),
    "kron with itself": lambda x: torch.kron(x, x),
    "kron of other ranks": lambda x: torch.kron(x, torch.arange(3.0)),
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(1), 1),
    "take_along_dim of one": lambda x: torch.take_along_dim(x, x.argmax(-1, keepdim=True), -1),
    "take_along_dim that broadcasts": lambda x: torch.take_along_dim(x, x[:1].argsort(1), 1),
    "gradient": torch.gradient,
    "gradient of squares": lambda x: torch.gradient(x, spacing=0.5, dim=1, edge_order=2),
    "gradient by spacings": lambda x: torch.gradient(x, spacing=[2.0, 0.3], dim=[1, 0]),
    "gradient by places": lambda x: torch.gradient(
        x, spacing=(x[0].exp().cumsum(0), x[:, 0].exp().cumsum(0)), dim=(-1, 0), edge_order=2
    ),
    "gradient of integers": lambda x: torch.gradient((x * 9).to(torch.int32), spacing=2, dim=0),
    "matrix norms": lambda x: [torch.linalg.norm(x, part) for part in (1, -1, torch.inf, -torch.inf)],
    "matrix norms of a batch": lambda x: [
        torch.linalg.matrix_norm(x.expand(2, -1, -1), 1, (2, 0), keepdim=keeps) for keeps in (False, True)
    ],
    "norms of vectors": lambda x: [torch.linalg.norm(x, 3, 1), torch.linalg.norm(x), torch.linalg.norm(x[0], 1)],
    "covariance": lambda x: [torch.cov(x), torch.cov(x[0]), torch.cov(x.mT, correction=0)],
    "covariance by weights": lambda x: torch.cov(
        x, fweights=torch.ones_like(x[0], dtype=torch.int64) * 2, aweights=x[1].abs() + 0.1
    ),
    "correlation": lambda x: [torch.corrcoef(x), torch.corrcoef(x[0])],
    "isin": lambda x: torch.isin(x.round(), x[0].round()),
    "isin of others": lambda x: torch.isin(x.round(), x[:2, :3].round().to(torch.int32), invert=True),
    "quantile": lambda x: torch.quantile(x, 0.3, dim=1),
    "quantile of all": lambda x: torch.quantile(x, 0.99),
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.0, 0.25, 1.0]), dim=0, keepdim=True),
    "quantiles of all": lambda x: torch.quantile(x, torch.tensor([0.1, 0.7]), keepdim=True),
    "quantiles between": lambda x: [
        torch.quantile(x, 0.4, 1, interpolation=name) for name in ("lower", "higher", "midpoint", "nearest")
    ],
    "quantile with nan": lambda x: torch.quantile(x.masked_fill(x > 1, torch.nan), 0.3, dim=1),
    "nanquantile": lambda x: torch.nanquantile(x.masked_fill(x > 0.5, torch.nan), torch.tensor([0.2, 0.9]), dim=1),
    "nanquantile of nothing": lambda x: torch.nanquantile(x.masked_fill(x > -9, torch.nan), 0.5, dim=0, keepdim=True),
    "linspace": lambda x: x * torch.linspace(-1, 3, x.shape[1]) + torch.linspace(1, 0, steps=x.shape[0])[:, None],
    "linspace of halves": lambda x: torch.linspace(0, 1, x.shape[0] - 3, dtype=torch.float16),
    "affine_grid": lambda x: functional.affine_grid(x[:4, :6].reshape(4, 2, 3), (4, 3, *x.shape), False),
    "affine_grid to the corners": lambda x: functional.affine_grid(
        x[:2, :6].reshape(1, 3, 4), (1, 3, x.shape[0] // 2, 2, x.shape[1]), True
    ),
    "max_pool1d": lambda x: functional.max_pool1d(x.unsqueeze(0), 3, 2, 1),
    "max_pool1d without a batch": lambda x: functional.max_pool1d(x, 3, dilation=2),
    "max_pool1d to the end": lambda x: functional.max_pool1d(x.unsqueeze(0), 2, 3, 1, ceil_mode=True),
    "max_pool1d with places": lambda x: functional.max_pool1d(
        x.unsqueeze(0), 2, 3, 1, ceil_mode=True, return_indices=True
    ),
    "max_pool2d to the end": lambda x: functional.max_pool2d(x.unsqueeze(0), 2, 3, 1, ceil_mode=True),
    "max_pool2d with steps of the window": lambda x: functional.max_pool2d(x.unsqueeze(0), 2, None, 1, ceil_mode=True),
    "max_pool2d one way": lambda x: functional.max_pool2d(x.unsqueeze(0), (3, 2), (2, 3), 1, ceil_mode=True),
    "max_pool3d to the end": lambda x: functional.max_pool3d(x.expand(1, 5, -1, -1), 2, 3, 1, ceil_mode=True),
    "avg_pool1d to the end": lambda x: functional.avg_pool1d(x.unsqueeze(0), 2, 3, 1, ceil_mode=True),
    "avg_pool2d to the end": lambda x: functional.avg_pool2d(x.unsqueeze(0), 2, 3, 1, ceil_mode=True),
    "avg_pool2d of elements": lambda x: functional.avg_pool2d(x.unsqueeze(0), 2, 3, 1, True, False),
    "avg_pool2d by a divisor": lambda x: functional.avg_pool2d(x.unsqueeze(0), 2, 3, 1, True, divisor_override=3),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_size_of_a_range_has_the_values_of_eager(name: str) -> None:
    _agrees_at(SIZES[:: 1 if STRESSED else 3], Calls(OPERATORS[name]))


def _agrees_at(sizes: Sequence[tuple[int, int]], model: nn.Module) -> None:
    inputs = [Input(min_shape=(4, 6), opt_shape=(6, 8), max_shape=(9, 13))]
    compiled = trt_frontends.compile(model, arg_inputs=inputs, min_block_size=1, optimization_level=0)
    assert not compiled.meta["partition_report"].torch_nodes
    for size in sizes:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True)


@pytest.mark.parametrize("part", [2, -2])
def test_norms_of_singular_values_leave_sizes_open(part: int) -> None:
    model = Calls(
        lambda x: [
            torch.linalg.norm(x.tanh(), part),
            torch.linalg.matrix_norm(x.expand(2, -1, -1), part, (2, 0), keepdim=True),
        ]
    )
    inputs = [Input(min_shape=(4, 6), opt_shape=(6, 8), max_shape=(9, 13))]
    compiled = trt_frontends.compile(model, arg_inputs=inputs, min_block_size=1, optimization_level=0)
    refused = {node.op for node in compiled.meta["partition_report"].torch_nodes}
    assert refused <= {"torch.ops.aten._linalg_svd.default", "_operator.getitem"}
    for size in SIZES:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), model(x))


def test_gradient_of_fewer_elements_than_it_takes_is_refused() -> None:
    inputs = [Input(min_shape=(4, 1), opt_shape=(6, 8), max_shape=(9, 13))]
    model = Calls(lambda x: torch.gradient(x, dim=1, edge_order=2))
    with pytest.raises(InputError):
        compiled = trt_frontends.compile(model, arg_inputs=inputs, min_block_size=1)
        compiled(torch.randn(4, 2))


class Rewrites(Calls):
    """Writes to views of what a function returns, so that the program is traced again as a whole."""

    def forward(self, x: torch.Tensor) -> Any:
        rows = torch.zeros_like(x)
        rows[:, 1:] = 1
        rows[:, 0].add_(2)
        return super().forward(x), x * rows


def _with_a_layer(name: str) -> Rewrites:
    layer = getattr(nn, name)(1, 3, batch_first=True).eval().requires_grad_(False)
    model = Rewrites(lambda x: layer(x.unsqueeze(-1))[0])
    model.layer = layer
    return model


REWRITTEN: Final = {
    **{
        name: Rewrites(OPERATORS[name])
        for name in ("kron", "take_along_dim", "max_pool1d", "avg_pool2d to the end", "gradient")
    },
    "pixel_unshuffle": Rewrites(lambda x: functional.pixel_unshuffle(torch.stack([x, x]).tile(2, 2), 2)),
    "inverse": Rewrites(lambda x: torch.linalg.inv(x[:, :4].reshape(-1, 2, 2) + 9 * torch.eye(2))),
    "LSTM": _with_a_layer("LSTM"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_programs_that_write_to_views_keep_their_sizes_open(name: str) -> None:
    _agrees_at(SIZES[::4], REWRITTEN[name])


class Aligned(nn.Module):
    """Turns pictures by matrices that are given beside them."""

    def forward(self, x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        """Takes (N, C, H, W) and (N, 2, 3)."""
        grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
        return functional.grid_sample(x, grid, align_corners=False)


def test_pictures_and_their_matrices_are_as_many_from_one_on() -> None:
    pictures = Input(min_shape=(1, 2, 5, 6), opt_shape=(3, 2, 8, 8), max_shape=(4, 2, 9, 9))
    matrices = Input(min_shape=(1, 2, 3), opt_shape=(3, 2, 3), max_shape=(4, 2, 3))
    compiled = trt_frontends.compile(Aligned(), arg_inputs=[pictures, matrices], min_block_size=1)
    for count in (1, 2, 4):
        x, theta = torch.randn(count, 2, 7, 6), torch.randn(count, 2, 3)
        torch.testing.assert_close(compiled(x, theta), Aligned()(x, theta), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError):
        compiled(torch.randn(2, 2, 7, 6), torch.randn(3, 2, 3))


@pytest.mark.parametrize(
    "name",
    [
        *("kron", "max_pool2d to the end", "nanquantile", "gradient"),
        *("take_along_dim", "max_pool1d", "isin", "quantile", "matrix norms")[: None if STRESSED else 0],
    ],
)
def test_torch_compile_has_the_values_of_eager(name: str) -> None:
    if "quantile" in name and torch.__version__ < "2.12":
        pytest.skip("Dynamo of PyTorch 2.11 takes one size only here, with any backend")
    model = Calls(OPERATORS[name])
    options = {"min_block_size": 1, "optimization_level": 0}
    compiled = torch.compile(model, backend="torch_tensorrt", dynamic=True, fullgraph=True, options=options)
    for size in SIZES[::4]:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True)
