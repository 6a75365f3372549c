"""Zeros on which PyTorch's kernels are tried at capture, to learn what fake tensors do not tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.nesting import reach_of
from trt_lowering.operator_traits import tensor_value

_MOST_ELEMENTS: Final = 1 << 20
"""Operands of more elements are not tried."""


def trial_operands(node: fx.Node, *, longest: int | None = None) -> tuple[Any, Any] | None:
    """Returns arguments and keywords for a call of a node's operator, with zeros that lie as its operands do.

    None where operands are on a GPU or large, and where their sizes follow from data.

    Args:
        node: The node.
        longest: Cuts axes to this length, and lets operands lie densely, where large ones are to be tried, too.
    """
    values = [value for value in map(tensor_value, node.all_input_nodes) if value is not None]
    if any(value.is_cuda for value in values):
        return None
    try:
        if longest is None and sum(map(_span, values)) > _MOST_ELEMENTS:
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda item: _zeros(item.meta["val"], longest))
        return args, kwargs
    except Exception:  # sizes that depend on data have no number
        return None


def _zeros(value: Any, longest: int | None) -> Any:
    if not isinstance(value, torch.Tensor):
        return _number(value) if isinstance(value, torch.SymInt) else value
    shape, strides = _numbers(value.shape), _numbers(value.stride())
    if longest is not None:
        return torch.zeros([min(extent, longest) for extent in shape], dtype=value.dtype)
    return torch.zeros(_span(value), dtype=value.dtype).as_strided(shape, strides)


def _span(value: torch.Tensor) -> int:
    """How many elements of memory a tensor reaches over, one at least."""
    return max(reach_of(_numbers(value.shape), _numbers(value.stride())), 1)


def _numbers(extents: Sequence[int | torch.SymInt]) -> list[int]:
    """The numbers that sizes had when the graph was captured."""
    return [_number(extent) for extent in extents]


def _number(extent: int | torch.SymInt) -> int:
    return extent if isinstance(extent, int) else int(extent.node.hint)
