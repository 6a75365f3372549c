"""Runs an operator inside the engine that TensorRT has no layer for: as a plugin that calls its PyTorch implementation.

Usage: python examples/python_plugin.py
"""

from __future__ import annotations

import torch
from torch import nn

import trt_frontends
from trt_converters import plugin_from_operator


@torch.library.custom_op("example::sorted_rows", mutates_args=())
def sorted_rows(x: torch.Tensor, descending: bool = False) -> torch.Tensor:
    """Sorts each row."""
    return x.sort(dim=1, descending=descending).values


@sorted_rows.register_fake
def _(x: torch.Tensor, descending: bool = False) -> torch.Tensor:
    return torch.empty_like(x)


class Model(nn.Module):
    """The operator between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies all three."""
        return self.second(torch.ops.example.sorted_rows(torch.relu(self.first(x)), True))


def main() -> None:
    """Compiles without the plugin, then with it."""
    model, x = Model().eval(), torch.randn(4, 8)
    before = trt_frontends.explain(model, arg_inputs=(x,), min_block_size=1)
    print(f"without the plugin: {len(before.engines)} engines, coverage {before.coverage:.0%}")
    for operator, count in before.unsupported.items():
        print(f"  {operator}: {count} in PyTorch")

    plugin_from_operator(torch.ops.example.sorted_rows.default)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    after = compiled.meta["partition_report"]
    print(f"with the plugin: {len(after.engines)} engine, coverage {after.coverage:.0%}")
    with torch.no_grad():
        print(f"largest difference from eager {(compiled(x) - model(x)).abs().max():.1e}")


if __name__ == "__main__":
    main()
