"""The tensors of what a model returned, and numbers as tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from trt_core.internals import pytree

NUMERIC: Final = (torch.Tensor, bool, int, float, complex)
"""Types of leaves of a result that are compared by value."""


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Returns the tensors in a result, in order; numbers count as tensors without axes."""
    return [as_tensor(leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, NUMERIC)]


def as_tensor(leaf: Any) -> torch.Tensor:
    """Returns a tensor as it is, and a Python number as a tensor without axes."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    is_long = isinstance(leaf, int) and not -(2**63) <= leaf < 2**63
    return torch.tensor(float(leaf) if is_long else leaf)
