"""Runs what no engine takes through PyTorch's own compiler, as `torch_fallback="inductor"` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def compile_pytorch_blocks(split: fx.GraphModule) -> None:
    """Replaces the PyTorch blocks of a split graph by compiled ones. They are compiled at their first call.

    Args:
        split: What `Compilation.run` returned; changed in place.
    """
    for name, child in list(split.named_children()):
        if isinstance(child, fx.GraphModule):
            setattr(split, name, with_inductor(child))


def with_inductor(gm: fx.GraphModule) -> Callable[..., Any]:
    """Returns a module or graph compiled by Inductor, for sizes that vary where those of the graph do."""
    compiled: Callable[..., Any] = torch.compile(gm, backend="inductor")
    return compiled
