"""Dimensions that capturing left open at first and fixed later, as the plain numbers that they are.

Where a dimension may vary and an operator further on allows one size only, PyTorch fixes the symbol. What was recorded
before still holds a symbolic integer, whose expression is a number by now: it looks like a size that varies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree


def settle_extents(graph: fx.Graph) -> None:
    """Puts numbers in the place of symbolic integers that are numbers, in the values of all nodes."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if value is not None and any(map(_is_unsettled, pytree.tree_leaves(value))):
            node.meta["val"] = pytree.tree_map(_settled, value)


def _is_unsettled(value: Any) -> bool:
    if isinstance(value, FakeTensor):
        return value.layout is torch.strided and any(map(_is_number, (*value.shape, *value.stride())))
    return _is_number(value)


def _is_number(extent: Any) -> bool:
    return _number(extent) is not extent


def _settled(value: Any) -> Any:
    if not _is_unsettled(value):
        return value
    if not isinstance(value, FakeTensor):
        return _number(value)
    shape, strides = [_number(extent) for extent in value.shape], [_number(step) for step in value.stride()]
    with value.fake_mode, torch.no_grad():
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _number(extent: Any) -> Any:
    if isinstance(extent, torch.SymInt) and extent.node.expr.is_Integer:
        return int(extent.node.expr)
    return extent
