"""Values nested in containers, the structures that describe the nesting, and what `torch.export` asks of examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

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


LEAST_DYNAMIC: Final = 2
"""Smallest extent of an example in a dimension that is to vary: export takes 0 and 1 for fixed."""


def distinct_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns example inputs of which no two are one tensor, or lie in one memory.

    Export takes one object for one input: of a tensor that is given for two, it captures a program that reads only one
    of them. Of inputs that share memory, PyTorch cannot make a program functional that writes to one.

    Args:
        args: Positional examples, nested or not.
        kwargs: Keyword examples.
    """
    seen: set[int] = set()

    def replace(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        memory = _memory_of(value)
        if id(value) in seen or memory in seen:
            return _apart(value).requires_grad_(value.requires_grad)
        seen.update((id(value), memory))
        return value

    replaced: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(replace, (args, kwargs))
    return replaced


def _memory_of(value: torch.Tensor) -> int:
    """What tells the memory of a plain tensor; others are told by themselves."""
    return value.untyped_storage()._cdata if _is_plain(value) else id(value)


def _apart(value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the values and strides of another, in memory of its own where it is a plain one."""
    if not _is_plain(value):
        return value.detach()
    if not value.numel():
        return torch.empty_like(value)
    pairs = zip(value.shape, value.stride(), strict=True)
    reach = 1 + sum((extent - 1) * stride for extent, stride in pairs)
    with torch.no_grad():  # only what the tensor reaches: it may be a small part of its memory
        memory = value.detach().as_strided((reach,), (1,)).clone()
        return memory.as_strided(value.shape, value.stride())


def _is_plain(value: torch.Tensor) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_meta
