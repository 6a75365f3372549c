"""Values nested in containers, the structures that describe the nesting, and what `torch.export` asks of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.internals import pytree


def children_of(structure: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    """Returns the structures that a structure consists of; none for a leaf."""
    # renamed after PyTorch 2.11
    children = structure.children() if hasattr(structure, "children") else structure.children_specs
    return list(children)


def unflatten(leaves: Iterable[Any], structure: pytree.TreeSpec) -> Any:
    """Nests leaves as a structure does. As PyTorch does, but that sizes are a `torch.Size` again, and no tuple.

    Args:
        leaves: As many as the structure has, from left to right.
        structure: How PyTorch takes a value apart.
    """
    return _unflatten(iter(leaves), structure)


def _unflatten(leaves: Iterator[Any], structure: pytree.TreeSpec) -> Any:
    if structure.is_leaf():
        return next(leaves)
    parts = [_unflatten(leaves, child) for child in children_of(structure)]
    if structure.type is torch.Size:
        return torch.Size(parts)
    return pytree.SUPPORTED_NODES[structure.type].unflatten_fn(parts, structure.context)


def leaves_of(value: Any) -> Iterator[Any]:
    """Yields what nested lists, tuples and mappings hold, from left to right; anything else is a leaf."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def with_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns what `leaves_of` walks through, with what a function makes of each leaf in its place.

    Lists become lists, tuples tuples and mappings dicts, of whatever classes they were: graphs have lists of their own.
    """
    if isinstance(value, list):
        return [with_leaves(item, function) for item in value]
    if isinstance(value, tuple):
        return tuple(with_leaves(item, function) for item in value)
    if isinstance(value, Mapping):
        return {name: with_leaves(item, function) for name, item in value.items()}
    return function(value)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested lists, tuples and mappings, from left to right."""
    return (leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor))


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


def reach_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns how many elements of memory a tensor that has some reaches, from its first to its last."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps.

    Args:
        shape: Its extents.
        order: Its axes as they lie in memory, the outermost first; as they are counted by default.
    """
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis], step = step, step * max(shape[axis], 1)
    return tuple(strides)


def _memory_of(value: torch.Tensor) -> int:
    """What tells the memory of a plain tensor; others are told by themselves."""
    return value.untyped_storage()._cdata if _is_plain(value) else id(value)


def _apart(value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the values and strides of another, in memory of its own where it is a plain one."""
    if not _is_plain(value):
        return value.detach()
    if not value.numel():
        return torch.empty_like(value)
    with torch.no_grad():  # only what the tensor reaches: it may be a small part of its memory
        memory = value.detach().as_strided((reach_of(value.shape, value.stride()),), (1,)).clone()
        return memory.as_strided(value.shape, value.stride())


def _is_plain(value: torch.Tensor) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_meta
