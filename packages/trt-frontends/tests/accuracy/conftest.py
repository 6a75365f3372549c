"""Models, and faults to plant in their converters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from trt_converters import DYNAMO_CONVERTERS, Converter

PlantFault = Callable[..., None]


class Deep(nn.Module):
    """Several linear layers with activations of different kinds between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.activations = nn.ModuleList([nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.GELU()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = activation(layer(x)) + 0.5 * x
        return x


@pytest.fixture
def deep() -> nn.Module:
    return Deep().eval()


@pytest.fixture
def plant_fault() -> Iterator[PlantFault]:
    """Registers a converter that scales the result of an operator's own converter."""
    before = DYNAMO_CONVERTERS.copy()

    def plant(target: Any, factor: float = 1.5, *, where: Callable[[Any], bool] = lambda node: True) -> None:
        original = DYNAMO_CONVERTERS[target]

        def scaled(ctx: Any, **arguments: Any) -> Any:
            result = original.function(ctx, **arguments)
            if not where(ctx.node):
                return result
            multiply = DYNAMO_CONVERTERS[torch.ops.aten.mul.Tensor].function
            return multiply(ctx, result, torch.tensor(factor))

        DYNAMO_CONVERTERS.register(Converter(target, scaled, original.checks, priority=original.priority + 1))

    yield plant
    DYNAMO_CONVERTERS.restore(before)
