"""What `torch.export` asks of example inputs, beyond that they fit the model."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

LEAST_DYNAMIC: Final = 2
"""Smallest extent of an example in a dimension that is to vary: export takes 0 and 1 for fixed."""


def distinct_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns example inputs in which no tensor object appears twice.

    Export takes one object for one input: of a tensor that is given for two, it captures a program that reads only one
    of them. The replacements share memory with the originals.

    Args:
        args: Positional examples, nested or not.
        kwargs: Keyword examples.
    """
    seen: set[int] = set()

    def replace(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in seen:
            return value.detach().requires_grad_(value.requires_grad)
        seen.add(id(value))
        return value

    replaced: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(replace, (args, kwargs))
    return replaced
