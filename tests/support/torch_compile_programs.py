"""A model that runs any function of itself, for tests of what surrounds a call of a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Program = Callable[..., Any]


class Model(nn.Module):
    """Runs a function `(model, *inputs)` with layers, buffers and plain tensors to use."""

    def __init__(self, function: Program) -> None:
        super().__init__()
        self.function = function
        self.linear, self.conv, self.norm = nn.Linear(4, 4), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(3)
        self.row_norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(3, 4))
        self.plain, self.several = torch.ones(4), [torch.ones(4), torch.zeros(4)]
        self.hidden, self.call_count = torch.zeros(4), 0
        self.kept = {"last": torch.zeros(()), "all": [torch.ones(4)]}
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.linear.weight
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Tanh(), self.linear), nn.Module()])
        self.layers[2].register_buffer("cache", self.cache)  # one buffer of two modules

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def matrix(_: int) -> Sequence[Any]:
    """(3, 4)."""
    return (torch.randn(3, 4),)


def growing_rows(call: int) -> Sequence[Any]:
    """(3 + call, 4)."""
    return (torch.randn(3 + call, 4),)


def overlapping(_: int) -> Sequence[Any]:
    """(4, 4), and the last three of its rows."""
    base = torch.randn(4, 4)
    return base, base[1:]


def strided(call: int) -> Sequence[Any]:
    """(3, 4), every other element of its memory, then columns next to each other, then all rows one."""
    return ((torch.randn(3, 8)[:, ::2], torch.randn(4, 3).t(), torch.randn(1, 4).expand(3, 4))[call % 3],)
