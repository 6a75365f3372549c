"""A function of a tensor as a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Calls(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        """Returns what the function does."""
        return self.function(x)
