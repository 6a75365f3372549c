"""Values nested in containers, and the structures that describe the nesting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trt_core.internals import pytree


def children_of(structure: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    """Returns the structures that a structure consists of; none for a leaf."""
    # renamed after PyTorch 2.11
    children = structure.children() if hasattr(structure, "children") else structure.children_specs
    return list(children)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested lists, tuples and mappings, from left to right."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
