"""Numbers that follow from sizes are operands in engines: one program, right at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn import functional

import trt_frontends
import trt_portable
from trt_core import Input

Operator = Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]

SHAPES: Final = ((1, 6), (2, 7), (3, 8), (5, 12))

OPERATORS: Final[dict[str, Operator]] = {
    # x: (m, n), float32; i: (m, n), int64; n: the size
    "clamp": lambda x, i, n: x.clamp(-1, n - 5),
    "clamp of integers": lambda x, i, n: i.clamp(0, n - 5),
    "clamp between fractions": lambda x, i, n: x.clamp(-n / 3, n / 4),
    "clamp of halves": lambda x, i, n: x.half().clamp(max=n - 6),
    "clamp where the bounds cross": lambda x, i, n: x.clamp(n - 5, 2),
    "clamp_min": lambda x, i, n: x.clamp_min(n - 5),
    "hardtanh": lambda x, i, n: functional.hardtanh(x, -n, n - 5),
    "relative positions": lambda x, i, n: (
        (torch.arange(n)[:, None] - torch.arange(n)).clamp(-(n // 2), n // 2) + n // 2
    ),
    "compare": lambda x, i, n: x > n - 5,
    "compare with a root": lambda x, i, n: x < n**0.5,
    "compare integers with a fraction": lambda x, i, n: i <= n / 3,
    "where": lambda x, i, n: torch.where(x > n - 6, x, n / 3),
    "where of two numbers": lambda x, i, n: torch.where(i > n - 6, n, 0),
    "multiply": lambda x, i, n: x * n,
    "multiply integers": lambda x, i, n: i * n,
    "multiply integers of 32 bits": lambda x, i, n: i.int() * n,
    "multiply integers by a fraction": lambda x, i, n: i * (n / 2),
    "divide": lambda x, i, n: x / n,
    "divide integers": lambda x, i, n: i / n,
    "divide by a root": lambda x, i, n: x / n**0.5,
    "divide halves by a root": lambda x, i, n: x.half() / n**0.5,
    "multiply by an inverse root": lambda x, i, n: x * n**-0.5,
    "multiply by a power": lambda x, i, n: x * n**1.5,
    "divide a size": lambda x, i, n: n / (x * x + 1),
    "quotient of sizes": lambda x, i, n: x * (n / x.shape[0]),
    "spread": lambda x, i, n: x * (2 / (n - 1)) - (n - 1) / 2,
    "window": lambda x, i, n: torch.exp(-0.5 * ((torch.arange(n) - (n - 1) / 2) / (n / 6)) ** 2) * x,
    "subtract from a size": lambda x, i, n: n - 1 - i,
    "add to bools": lambda x, i, n: (x > 0) + n,
    "add scaled": lambda x, i, n: torch.add(x, x, alpha=n),
    "add scaled by a fraction": lambda x, i, n: torch.add(x, x, alpha=1 / n),
    "add scaled halves": lambda x, i, n: torch.add(x.half(), x.half(), alpha=n),
    "subtract scaled integers": lambda x, i, n: torch.sub(i, i + 1, alpha=n),
    "rsub": lambda x, i, n: torch.rsub(x, x + 1, alpha=n),
    "addcmul": lambda x, i, n: torch.addcmul(x, x, x, value=n),
    "addcmul of integers": lambda x, i, n: torch.addcmul(i, i, i, value=n),
    "addcdiv": lambda x, i, n: torch.addcdiv(x, x, x * x + 1, value=1 / n),
    "lerp": lambda x, i, n: torch.lerp(x, x + 1, 1 / n),
    "lerp beyond the end": lambda x, i, n: torch.lerp(x, x + 1, n),
    "remainder": lambda x, i, n: x % n,
    "remainder of integers": lambda x, i, n: (i * 5) % n,
    "remainder of a size": lambda x, i, n: torch.remainder(n, i.abs() + 1),
    "remainder of a fraction": lambda x, i, n: x % (n / 3),
    "fmod": lambda x, i, n: torch.fmod(x, n - 3),
    "floor_divide": lambda x, i, n: (x * 5) // n,
    "floor_divide integers": lambda x, i, n: (i * 5) // n,
    "truncated quotient": lambda x, i, n: torch.div(i * 5, n, rounding_mode="trunc"),
    "power": lambda x, i, n: (x / 8) ** n,
    "power of integers": lambda x, i, n: i**n,
    "power by a fraction": lambda x, i, n: x.abs() ** (1 / n),
    "negative power": lambda x, i, n: (x.abs() + 0.5) ** (-n),
    "power of a size": lambda x, i, n: torch.pow(n, x / 4),
    "power of a fraction": lambda x, i, n: (n / 2) ** (x / 4),
    "full": lambda x, i, n: torch.full((n, 2), n),
    "full of a fraction": lambda x, i, n: torch.full((2, n), n * 0.5),
    "full_like": lambda x, i, n: torch.full_like(x, n),
    "arange": lambda x, i, n: torch.arange(-n, n) - n,
    "arange by a size": lambda x, i, n: torch.arange(0, 10 * n, n),
    "linspace": lambda x, i, n: torch.linspace(-n, n - 1, 5),
    "masked_fill": lambda x, i, n: x.masked_fill(x > 0, n),
    "masked_fill of integers": lambda x, i, n: i.masked_fill(x > 0, n),
    "masked_fill with a fraction": lambda x, i, n: x.masked_fill(x > 0, 1 / n),
    "index_fill": lambda x, i, n: x.index_fill(1, torch.tensor([0, 2]), n),
    "index_add": lambda x, i, n: x.index_add(1, torch.tensor([0, 2]), x[:, :2], alpha=n),
    "scatter": lambda x, i, n: x.scatter(1, i.abs() % 4, n),
    "addmm": lambda x, i, n: torch.addmm(x @ x.T, x, x.T, beta=n, alpha=1 / n),
    "baddbmm": lambda x, i, n: torch.baddbmm((x @ x.T)[None], x[None], x.T[None], beta=n, alpha=n),
    "addmv": lambda x, i, n: torch.addmv(x[:, 0], x, x[0], alpha=n),
    "addr": lambda x, i, n: torch.addr(x, x[:, 0], x[0], beta=n),
    "threshold": lambda x, i, n: functional.threshold(x, n - 5, n),
    "leaky_relu": lambda x, i, n: functional.leaky_relu(x, 1 / n),
    "elu": lambda x, i, n: functional.elu(x, n),
    "celu": lambda x, i, n: functional.celu(x, n),
    "softplus": lambda x, i, n: functional.softplus(x, n),
    "hardshrink": lambda x, i, n: functional.hardshrink(x, n - 4),
    "softshrink": lambda x, i, n: functional.softshrink(x, n - 3),
    "bitwise_and": lambda x, i, n: i & n,
    "shift": lambda x, i, n: (i * 1000) >> (n - 4),
    "isin": lambda x, i, n: torch.isin(i, n - 6),
    "xlogy": lambda x, i, n: torch.xlogy(n, x.abs() + 1),
}


class Operators(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: operator(x, x.long(), x.shape[1]) for name, operator in OPERATORS.items()}


Results = list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]


@pytest.fixture(scope="module")
def results() -> Results:
    """What the engine found, and what PyTorch finds, at each size; built by TensorRT's documented rules alone."""
    low, best, high = SHAPES[0], SHAPES[2], SHAPES[3]
    spec = Input(min_shape=low, opt_shape=best, max_shape=high)
    trt_portable.set_strict(True)
    try:
        compiled = trt_frontends.compile(Operators(), arg_inputs=(spec,), require_full_compilation=True)
    finally:
        trt_portable.set_strict(False)
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 8 for shape in SHAPES]
    return [(compiled(x), Operators()(x)) for x in inputs]


@pytest.mark.parametrize("name", OPERATORS)
def test_sizes_are_operands(results: Results, name: str) -> None:
    for found, wanted in results:
        # fractions are computed in float32, and may differ from PyTorch's in the last digit
        rough = wanted[name].dtype is torch.float16
        tolerance = {"rtol": 2e-3, "atol": 2e-3} if rough else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(found[name], wanted[name], **tolerance, equal_nan=True)


def test_integers_of_fractions_are_made_in_pytorch() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((2, 3), x.shape[1] * 0.29, dtype=torch.int64) + x.sum()

    compiled = trt_frontends.compile(
        Model(), arg_inputs=(Input(min_shape=(2, 50), opt_shape=(2, 100), max_shape=(2, 200)),), min_block_size=1
    )
    assert {node.verdict.code for node in compiled.meta["partition_report"].torch_nodes} >= {"TRT-F050"}
    for size in (50, 100, 200):  # 0.29 * 100 is 28.999999999999996, of which 28 is left; in float32 it is 29
        x = torch.zeros(2, size)
        torch.testing.assert_close(compiled(x), Model()(x))
