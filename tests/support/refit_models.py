"""Models to refit, and short ways to compile and compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import trt_frontends

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Module):
    """Computes a function of itself and an input, with whatever parameters and buffers it is given."""

    def __init__(self, function: Callable[..., Any], **tensors: torch.Tensor | nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, value in tensors.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            elif value.is_floating_point():
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def compile_to_refit(model: nn.Module, *inputs: Any, **settings: Any) -> nn.Module:
    return trt_frontends.compile(model.eval(), arg_inputs=inputs, **{"min_block_size": 1, "refit": True, **settings})


def assert_same(compiled: Callable[..., Any], model: nn.Module, *inputs: torch.Tensor, **tolerance: float) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), model(*inputs), **tolerance)
