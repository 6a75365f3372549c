"""Models with scans and maps, and what they are called with, for tests of compiled and of saved ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan


class Scanned(nn.Module):
    """Two states, two sequences, a result that is no state; from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        def combine(state: Any, item: Any) -> Any:
            one = torch.tanh(self.layer(state[0]) + item[0])
            two = state[1] + item[1].sum()
            return (one, two), (one * 2, two.clone())

        init = (x[0] * 0, x.new_zeros(()))
        return scan(combine, init, (x, x + 1), dim=0, reverse=True)


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = map_over(lambda row, bias: self.layer(row) * bias + 1, x, self.layer.bias * 2)
        return found


def rows_of(rows: int) -> list[torch.Tensor]:
    """Rows of a positive sum, and others of a negative one."""
    torch.manual_seed(rows)
    return [torch.rand(rows, 4) + 0.5, torch.rand(rows, 4) - 1.5]
