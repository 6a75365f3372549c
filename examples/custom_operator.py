"""Puts an operator of one's own into engines, by a converter that expresses it in TensorRT's layers.

Usage: python examples/custom_operator.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trt_frontends
from trt_converters import converter
from trt_converters.testing import check_conversion
from trt_core import trt


@torch.library.custom_op("example::squared_relu", mutates_args=())
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """The square of what is positive."""
    return torch.relu(x).square()


@squared_relu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@converter(torch.ops.example.squared_relu.default)
def example_squared_relu(ctx: Any, x: Any) -> Any:
    """squared_relu(Tensor x) -> Tensor"""
    positive = ctx.own(ctx.network.add_activation(ctx.tensor(x), trt.ActivationType.RELU), "relu").get_output(0)
    product = trt.ElementWiseOperation.PROD
    return ctx.own(ctx.network.add_elementwise(positive, positive, product), "square").get_output(0)


class Model(nn.Module):
    """A layer with the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies it."""
        return torch.ops.example.squared_relu(self.linear(x))


def main() -> None:
    """Tests the converter alone, then compiles a model with it."""
    check_conversion(torch.ops.example.squared_relu.default, (torch.randn(2, 3),), dynamic={0: {0: (1, 2, 4)}})
    print("the converter agrees with eager, with fixed and dynamic sizes")

    model, x = Model().eval(), torch.randn(4, 8)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    report = compiled.meta["partition_report"]
    print(f"coverage {report.coverage:.0%}, largest difference {(compiled(x) - model(x)).abs().max():.1e}")


if __name__ == "__main__":
    main()
