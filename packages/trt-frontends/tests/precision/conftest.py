"""Models that lose in reduced precision, and a look at the types that engines compute in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trt_core import trt
from trt_core.log import provider_logger
from trt_runtime import TRTModule


class Overflowing(nn.Module):
    """Between two layers a square, which leaves float16 for inputs beyond 256, and comes back by its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 8), float32; returns (N, 4)."""
        y = torch.relu(self.first(x)) * 1000 + 1
        z = torch.log(y * y)
        return self.last(torch.tanh(self.second(z)))


@pytest.fixture(scope="session")
def overflowing() -> nn.Module:
    """A model whose `log` takes more than float16 can hold."""
    torch.manual_seed(0)
    return Overflowing().eval()


def _types_of_layers(compiled: nn.Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module in compiled.modules():
        if isinstance(module, TRTModule):
            runtime = trt.Runtime(provider_logger())
            engine = runtime.deserialize_cuda_engine(module.plan.numpy().tobytes())
            inspector = engine.create_engine_inspector()
            described = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
            for layer in described["Layers"]:
                for name in layer["Name"].split(" + "):  # a layer of an engine may stand for several
                    found[name] = [output["DataType"] for output in layer["Outputs"]]
    return found


@pytest.fixture(scope="session")
def types_of_layers() -> Callable[[nn.Module], dict[str, list[str]]]:
    """Types of the results of every layer, by layer, as the provider's inspector tells them."""
    return _types_of_layers


@pytest.fixture
def inputs() -> tuple[Any, ...]:
    """(6, 8), float32, in the normal range."""
    return (torch.linspace(-2, 2, 48).reshape(6, 8),)
