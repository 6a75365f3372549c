"""Compiles through `torch.compile`: dynamic batch, weights that change, and a cache that is written in place.

Usage: python examples/torch_compile.py
"""

from __future__ import annotations

import torch
from torch import nn


class Counter(nn.Module):
    """A layer that keeps a running sum of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the layers' result, and adds it to the sum."""
        y = self.layers(x)
        self.seen += y.sum(0)
        return y.softmax(-1)


def main() -> None:
    """Runs eager and compiled side by side."""
    torch.manual_seed(0)
    eager, model = Counter().eval(), Counter().eval()
    model.load_state_dict(eager.state_dict())
    optimized = torch.compile(model, backend="torch_tensorrt", dynamic=True, options={"min_block_size": 1})
    with torch.no_grad():
        for batch in (2, 5, 9):
            x = torch.randn(batch, 16)
            difference = (optimized(x) - eager(x)).abs().max()
            print(f"batch {batch}: largest difference {difference:.1e}")
        print(f"the buffer was written: {torch.allclose(model.seen, eager.seen, atol=1e-5)}")

        for module in (eager, model):
            module.layers[0].weight.mul_(2)
        x = torch.randn(5, 16)
        print(f"changed weights are used: {torch.allclose(optimized(x), eager(x), atol=1e-5)}")


if __name__ == "__main__":
    main()
