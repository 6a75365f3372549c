"""Runs what no engine takes through PyTorch's own compiler, as `torch_fallback="inductor"` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def compile_pytorch_blocks(split: fx.GraphModule) -> None:
    """Gives the PyTorch blocks of a split graph a compiled `forward`. They are compiled at their first call.

    Args:
        split: The module of a `BuiltModel`; changed in place.
    """
    for child in split.children():
        if isinstance(child, fx.GraphModule):
            child.forward = with_inductor(child)


def with_inductor(gm: fx.GraphModule) -> Callable[..., Any]:
    """Returns what a module computes, compiled by Inductor, for sizes that vary where those of its graph do."""
    compiled: Callable[..., Any] = torch.compile(gm.forward, backend="inductor")
    return compiled
