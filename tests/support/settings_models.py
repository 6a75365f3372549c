"""Models that show what a setting changes, explained and compiled block by block."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trt_frontends
from trt_core import CompilationSettings
from trt_core.settings import provider_option
from trt_runtime import TRTModule

OPTIONS = {field.name: provider_option(field) for field in CompilationSettings.__dataclass_fields__.values()}
"""By setting: what it becomes on each provider; None for one that building does not read."""
X = torch.linspace(-3, 3, 8).reshape(2, 4)


class Mlp(nn.Module):
    """A linear layer and an activation in a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activation = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        return self.activation(self.linear(x))


class Chain(nn.Module):
    """Two engines around an operator that has no converter, and two operators that may join either."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        free = torch.neg(torch.neg(x))
        return torch.special.bessel_j0(x.abs().sin().cos()) * free


def explain(model: nn.Module, x: torch.Tensor = X, **settings: Any) -> Any:
    """Returns the report of a model for inputs like `x`."""
    return trt_frontends.explain(model, arg_inputs=(x,), **{"min_block_size": 1, **settings})


def compile_model(model: nn.Module, **settings: Any) -> Any:
    """Compiles a model for inputs like `X`."""
    return trt_frontends.compile(model, arg_inputs=(X,), **{"min_block_size": 1, **settings})


def engines_of(compiled: nn.Module) -> list[TRTModule]:
    """Returns the engines of a compiled model."""
    return [child for child in compiled.modules() if isinstance(child, TRTModule)]
