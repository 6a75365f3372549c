"""Arithmetic on sizes: numbers that follow from the shapes of tensors.

Such numbers are never handed from block to block. Each block computes the ones it needs from the shapes of tensors
that it takes anyway, so that engines take and return tensors only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

import torch
from torch import fx

from trt_core.operators import is_size_query

Place = tuple[fx.Node, int]
"""A tensor and the axis along which a size can be read."""

SIZE_OPERATOR: Final = torch.ops.aten.sym_size.int


def is_number(value: Any) -> bool:
    """Whether metadata describes a number, or a non-empty list of numbers."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(is_number(item) for item in value)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))


def is_constant(value: Any) -> bool:
    """Whether metadata is a plain Python number, which export has proved to be the same on every call."""
    return isinstance(value, (int, float))


def find_sizes(graph: fx.Graph) -> set[fx.Node]:
    """Returns the `call_function` nodes that compute numbers from shapes and other numbers alone."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or not is_number(node.meta.get("val")):
            continue
        operands = node.all_input_nodes
        if is_size_query(node.target) or (operands and all(_is_plain(operand, found) for operand in operands)):
            found.add(node)
    return found


def extent_key(value: Any) -> Hashable | None:
    """Returns the expression behind a symbolic integer; None for anything else.

    Two sizes with the same expression are equal on every call.
    """
    if not isinstance(value, torch.SymInt):
        return None
    expr = getattr(value.node, "expr", None)
    return expr if isinstance(expr, Hashable) else None


def axis_of(node: fx.Node) -> int | None:
    """Returns the axis that a `sym_size.int` call reads, None for other calls."""
    if node.target is not SIZE_OPERATOR:
        return None
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return axis if isinstance(axis, int) else None


class SizeTable:
    """Where sizes can be read: the first tensor and axis that has each symbolic extent.

    Args:
        tensors: Nodes to read sizes from; those that are not tensors are passed over.
    """

    def __init__(self, tensors: Iterable[fx.Node] = ()) -> None:
        self._places: dict[Hashable, Place] = {}
        for node in tensors:
            self.add(node)

    def add(self, node: fx.Node) -> None:
        """Makes the extents of a tensor available, behind those that are there already."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return
        for axis, extent in enumerate(value.shape):
            key = extent_key(extent)
            if key is not None:
                self._places.setdefault(key, (node, axis))

    def find(self, value: Any) -> Place | None:
        """Returns where a number can be read, or None."""
        key = extent_key(value)
        return None if key is None else self._places.get(key)


def placeholder_sizes(graph: fx.Graph) -> SizeTable:
    """Returns the sizes that can be read from the inputs of a graph."""
    return SizeTable(node for node in graph.nodes if node.op == "placeholder")


def _is_plain(node: fx.Node, sizes: set[fx.Node]) -> bool:
    return node in sizes or (node.op == "placeholder" and is_number(node.meta.get("val")))
