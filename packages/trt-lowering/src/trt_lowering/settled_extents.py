"""Dimensions that capturing left open at first and fixed later, as the plain numbers that they are.

Where a dimension may vary and an operator further on allows one size only, PyTorch fixes the symbol. What was recorded
before still holds a symbolic integer, whose expression is a number by now: it looks like a size that varies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from trt_core.internals import FakeTensor, pytree


def settle_extents(graph: fx.Graph, known: Mapping[Any, int] | None = None) -> None:
    """Puts numbers in the place of symbolic integers that are numbers, in the values of all nodes.

    Args:
        graph: The graph.
        known: Symbols whose value is fixed; it is the value that they had when the graph was captured.
    """
    settling = _Settling(known or {})
    for node in graph.nodes:
        value = node.meta.get("val")
        if value is not None and any(map(settling.changes, pytree.tree_leaves(value))):
            node.meta["val"] = pytree.tree_map(settling.value, value)


class _Settling:
    """Settles values, given what symbols are known."""

    def __init__(self, known: Mapping[Any, int]) -> None:
        self._known = dict(known)

    def changes(self, value: Any) -> bool:
        """Whether something in a leaf of a value is no longer what it looks like."""
        if isinstance(value, FakeTensor):
            if value.layout is not torch.strided:
                return False
            return any(self._number(extent) is not extent for extent in (*value.shape, *value.stride()))
        return self._number(value) is not value

    def value(self, value: Any) -> Any:
        """Returns a leaf of a value as it is now."""
        if not self.changes(value):
            return value
        if not isinstance(value, FakeTensor):
            return self._number(value)
        shape, strides = list(map(self._number, value.shape)), list(map(self._number, value.stride()))
        with value.fake_mode, torch.no_grad():
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

    def _number(self, extent: Any) -> Any:
        if not isinstance(extent, torch.SymInt):
            return extent
        expr = extent.node.expr
        if self._known and expr.free_symbols & self._known.keys():
            expr = expr.subs(self._known)
            if not expr.is_Integer:
                return extent.node.shape_env.create_symintnode(expr, hint=extent.node.hint)
        return int(expr) if expr.is_Integer else extent
