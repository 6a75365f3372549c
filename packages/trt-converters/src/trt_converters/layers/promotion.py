"""Operands of broadcasting layers: one type and one rank for all."""

from __future__ import annotations

from typing import Any

import torch

from trt_converters.context import ConversionContext, Operand, rank_of
from trt_converters.layers.casts import cast, result_type
from trt_converters.layers.movement import with_rank


def promote(ctx: ConversionContext, *values: Operand, dtype: torch.dtype | None = None) -> list[Any]:
    """Casts operands to one type and raises them to one rank, as broadcasting layers want them.

    Args:
        ctx: The context.
        values: Tensors and numbers, which may vary with the sizes of tensors.
        dtype: The common type; by default the one that PyTorch promotes to.

    Returns:
        One value for each operand; all have the same type and rank, and extents that broadcast.
    """
    common = dtype or result_type(*values)
    rank = max(rank_of(value) for value in values)
    return [with_rank(ctx, cast(ctx, value, common), rank) for value in values]
