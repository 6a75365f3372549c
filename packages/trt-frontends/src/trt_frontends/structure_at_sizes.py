"""Finds operators of a captured graph that make other results at sizes which capturing did not think of.

`squeeze` keeps a dimension that varies, `chunk` makes the pieces that two rows have, the last two rows are two: PyTorch
takes for granted that a size is at least 2, and the graph goes on with such results. Here each operator is asked again,
with fake tensors of the sizes in question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_core.internals import FakeTensorMode, OpOverload, pytree
from trt_core.log import unlogged


class _UnknownSizeError(Exception):
    """A size follows from data."""


@dataclass(frozen=True)
class _Form:
    """What a fake tensor is made of."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def first_other_result(graph: fx.Graph, sizes: Mapping[Any, int]) -> fx.Node | None:
    """Returns the first node whose results have other shapes than the graph says, or which fails; None for no such.

    Args:
        graph: A graph of operators with `meta["val"]`.
        sizes: The size in question of each symbol, as sympy knows them.
    """
    known: dict[Any, bool] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), unlogged("torch._subclasses.fake_tensor"):
        for node in graph.nodes:
            if _may_differ(node) and not _is_as_said(node, sizes, known):
                found: fx.Node = node
                return found
    return None


def _may_differ(node: fx.Node) -> bool:
    """Whether sizes that vary reach a node, and more may follow from them than that they stay."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or torch.Tag.pointwise in node.target.tags:
        return False
    return any(_varies(item.meta.get("val")) for item in node.all_input_nodes)


def _varies(value: Any) -> bool:
    leaves = pytree.tree_leaves(value)
    sizes = (size for leaf in leaves for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,)))
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _is_as_said(node: fx.Node, sizes: Mapping[Any, int], known: dict[Any, bool]) -> bool:
    target: Any = node.target
    try:
        said = _shapes(_at(node.meta.get("val"), sizes))
        given = fx.node.map_arg((node.args, dict(node.kwargs)), lambda item: _at(item.meta.get("val"), sizes))
    except _UnknownSizeError:
        return True
    leaves, spec = pytree.tree_flatten(given)
    key = (target, repr(leaves), spec, said)  # layers of one kind ask the same again
    if key not in known:
        args, kwargs = pytree.tree_unflatten([_fake(leaf) for leaf in leaves], spec)
        try:
            known[key] = _shapes(target(*args, **kwargs)) == said
        except Exception:  # what an operator raises is its own
            known[key] = False
    return known[key]


def _at(value: Any, sizes: Mapping[Any, int]) -> Any:
    """A value of the graph with sizes in the place of symbols, and forms in the place of tensors."""

    def settle(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            shape, strides = (tuple(_number(size, sizes) for size in item) for item in (leaf.shape, leaf.stride()))
            return _Form(shape, strides, leaf.dtype, leaf.device)
        return _number(leaf, sizes) if isinstance(leaf, torch.SymInt) else leaf

    return pytree.tree_map(settle, value)


def _number(size: int | torch.SymInt, sizes: Mapping[Any, int]) -> int:
    if isinstance(size, int):
        return size
    found = size.node.expr.xreplace(dict(sizes))
    if not found.is_Integer:
        raise _UnknownSizeError
    return int(found)


def _shapes(value: Any) -> tuple[Any, ...]:
    leaves = pytree.tree_leaves(value)
    return tuple(tuple(leaf.shape) if isinstance(leaf, (torch.Tensor, _Form)) else leaf for leaf in leaves)


def _fake(leaf: Any) -> Any:
    if not isinstance(leaf, _Form):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.strides, dtype=leaf.dtype, device=leaf.device)
