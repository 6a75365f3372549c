"""In which order the axes of a dense tensor lie in memory, where its sizes may vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_core.sizes.expressions import is_same_size


def memory_order(value: torch.Tensor, *, exact: bool = False) -> list[int] | None:
    """Returns the axes of a dense tensor from the outermost in memory to the innermost.

    Args:
        value: The tensor.
        exact: Whether axes of extent 1 have the place that their stride says, where it says one; otherwise the axes
            are in order where they can be.

    Returns:
        The axes. None for a tensor with gaps or overlaps, and for one of which that cannot be told for every value of
        its sizes.
    """
    axes = list(range(value.dim()))
    if not exact and lies_in(value, axes):
        return axes
    left = list(reversed(axes))
    order: list[int] = []
    step: int | torch.SymInt = 1
    while left:
        ones = [axis for axis in left if is_same_size(value.shape[axis], 1)]
        neighbors = [axis for axis in left if _same_step(value.stride(axis), step)]
        if exact:
            neighbors = [axis for axis in neighbors if axis in ones] + neighbors
        if not neighbors and not ones:
            return None
        order.insert(0, (neighbors or ones)[0])
        left.remove(order[0])
        step = step * value.shape[order[0]]
    return order


def lies_in(value: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the axes follow each other in memory in that order, without gaps; axes of extent 1 do not count."""
    step: int | torch.SymInt = 1
    for axis in reversed(order):
        if is_same_size(value.shape[axis], 1):
            continue
        if not _same_step(value.stride(axis), step):
            return False
        step = step * value.shape[axis]
    return True


def _same_step(left: int | torch.SymInt, right: int | torch.SymInt) -> bool:
    """Whether two strides are equal, however their products are written, in a tensor that is not empty.

    PyTorch steps over an axis that may be empty by `Max(1, extent)`.
    """
    if is_same_size(left, right):
        return True
    if isinstance(left, int) and isinstance(right, int):
        return False
    return bool((_polynomial(left) - _polynomial(right)).expand() == 0)


def _polynomial(step: int | torch.SymInt) -> Any:
    from trt_lowering.internals import Max  # costly to import, and here already where sizes are symbolic

    if isinstance(step, int):
        return step
    return step.node.expr.replace(
        lambda part: isinstance(part, Max) and len(part.args) == 2 and part.args[0] == 1, lambda part: part.args[1]
    )
