"""How much operators make of which the numbers in their operands say how much, by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from trt_core.internals import FakeTensor

Operands = Mapping[str, Any]
"""Arguments by their names in the schema, defaults filled in."""


def has_numbers(x: torch.Tensor) -> bool:
    """Whether the numbers of a tensor can be looked at: it is neither traced nor recorded."""
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor) or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def repetitions(operands: Operands) -> int | None:
    """Returns how long the axis becomes whose elements `aten::repeat_interleave` repeats; None where numbers lack."""
    repeats = operands["repeats"]
    if not isinstance(repeats, torch.Tensor) or repeats.is_floating_point() or not has_numbers(repeats):
        return None
    is_shared = repeats.numel() == 1 and "self" in operands
    return int(repeats.sum()) * (_repeated_extent(operands) if is_shared else 1)


def _repeated_extent(operands: Operands) -> int:
    x, axis = operands.get("self", operands["repeats"]), operands.get("dim")
    return int(x.numel() if axis is None or not x.dim() else x.shape[axis])


def _repeated(operands: Operands) -> int:
    count = repetitions(operands)
    elements: int = operands.get("self", operands["repeats"]).numel()
    return 0 if count is None else count * elements // max(_repeated_extent(operands), 1)


def _bins(operands: Operands) -> int:
    """Counting makes a bin for every number up to the largest."""
    x, least = operands["self"], operands.get("minlength", 0)
    can_look = x.numel() and not x.is_floating_point() and has_numbers(x)
    return max(int(x.max()) + 1 if can_look else 1, int(least))


def _classes(operands: Operands) -> int:
    """Numbers that name a class each, of as many as the largest says where nobody does."""
    x: torch.Tensor = operands["self"]
    if operands.get("num_classes", -1) >= 0 or not x.numel() or x.is_floating_point() or not has_numbers(x):
        return 0
    return (int(x.max()) + 1) * x.numel()


DATA_COUNTS: Final[dict[str, Callable[[Operands], int]]] = {
    "aten::bincount": _bins,
    "aten::repeat_interleave": _repeated,
    "aten::one_hot": _classes,
}
"""Elements that a call makes, by the operator's name; 0 where that cannot be told."""
