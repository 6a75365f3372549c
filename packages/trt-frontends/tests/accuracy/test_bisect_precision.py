"""Errors that come from a reduced type, not from a fault: named, and avoided by keeping nodes in float32."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from trt_core import Input
from trt_frontends.accuracy import Stage, bisect


class Overflowing(nn.Module):
    """Squares numbers beyond 256, which leave float16, and takes the logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 8), float32; returns (N, 4)."""
        y = torch.relu(self.first(x)) * 1000 + 1
        return self.last(torch.log(y * y))


class Cancelling(nn.Module):
    """Adds a large number and takes it away again, which leaves no digits of the small one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N,), float32, around 1."""
        return torch.tanh((torch.relu(x) + 3000.0 - 3000.0) * 0.5)


@pytest.fixture(scope="module")
def overflow() -> Any:
    """What is found in a model that overflows."""
    torch.manual_seed(0)
    return bisect(Overflowing().eval(), arg_inputs=(torch.linspace(-2, 2, 48).reshape(6, 8),), precision=torch.float16)


def test_the_operators_that_overflow_are_named(overflow: Any) -> None:
    assert (overflow.stage, overflow.reduced_to) == (Stage.PRECISION, "float16")
    assert [culprit.node for culprit in overflow.culprits] == ["mul_1", "log"]
    assert all(culprit.engine == "_run_on_acc_0" for culprit in overflow.culprits)
    assert all("test_bisect_precision" in culprit.source for culprit in overflow.culprits)
    assert overflow.culprits[1].inputs[0].highest > 65504
    assert overflow.complete


def test_keeping_them_in_float32_is_proved_by_running(overflow: Any) -> None:
    assert overflow.is_proved
    assert overflow.setting == "autocast_excluded_nodes={'^mul_1$', '^log$'}"
    assert not overflow.error_before <= overflow.tolerance
    assert overflow.error_after <= overflow.tolerance
    text = overflow.to_text()
    assert "the error is what float16 loses; no engine is to blame" in text
    assert "autocast_excluded_nodes={'^mul_1$', '^log$'} makes it right" in text
    data = json.loads(overflow.to_json())
    assert (data["stage"], data["is_proved"]) == ("reduced precision", True)
    assert data["remedy"] == {"autocast_excluded_nodes": ["^mul_1$", "^log$"]}


def test_operators_that_occur_once_are_named_as_operators() -> None:
    report = bisect(Cancelling(), arg_inputs=(torch.linspace(0.5, 2, 8),), precision=torch.float16, tolerance=1e-2)
    assert report.stage is Stage.PRECISION
    operators = {culprit.operator for culprit in report.culprits}
    assert report.setting == f"autocast_excluded_ops={{{', '.join(map(repr, sorted(operators)))}}}"
    assert report.is_proved


def test_products_are_searched_under_autocast() -> None:
    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x @ torch.full((4, 4), 0.5))
            return torch.log((y * 1000) @ torch.full((4, 4), 100.0))

    batch = Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(3, 4), tensor_domain=(1, 2))
    report = bisect(Large(), arg_inputs=(batch,), enable_autocast=True, min_block_size=1)
    assert [culprit.node for culprit in report.culprits] == ["matmul_1"]
    assert report.setting == "autocast_excluded_nodes={'^matmul_1$'}"
    assert report.is_proved


def test_a_fault_is_no_loss_of_precision(deep: nn.Module, plant_fault: Any) -> None:
    plant_fault(torch.ops.aten.tanh.default)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),), precision=torch.float16)
    assert report.stage is Stage.ENGINES
    assert report.setting == "torch_executed_ops={'torch.ops.aten.tanh.default'}"
    assert report.is_proved
