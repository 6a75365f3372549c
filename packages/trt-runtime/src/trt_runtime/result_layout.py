"""Lets a result lie in memory as eager lays it, where that depends on which sizes of a call are 1.

    torch.ops.trt.lay_out(Tensor(a) input, int[] orders, SymInt[] sizes) -> Tensor(a)

An axis of one element may have any stride, and kernels choose the order of their results by strides: a convolution of
one picture may write rows of pixels where that of two writes channels last. Captures and exports, which know no number
of a size, go on with the tensor as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from trt_core.errors import ExecutionError
from trt_core.nesting import dense_strides


def lay_out(input: torch.Tensor, orders: Sequence[int], sizes: Sequence[int | torch.SymInt] = ()) -> torch.Tensor:
    """Returns a tensor whose memory is dense, its axes in an order; a copy only where it has to be one.

    Args:
        input: A tensor that owns its memory.
        orders: The axes, the one whose elements lie next to each other last: once for each way in which sizes may be
            1 or not, one order after the other. That for which the first size alone is 1 is the second, that for the
            second size alone the third, that for both the fourth.
        sizes: What the order depends on.

    Raises:
        ExecutionError: There are not as many orders of all axes.
    """
    rank = input.dim()
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return input
    at = rank * sum((size == 1) << index for index, size in enumerate(sizes))
    order = orders[at : at + rank]
    if sorted(order) != list(range(rank)) or len(orders) != rank << len(sizes):
        raise ExecutionError(
            f"{list(orders)[:64]} are no orders of {rank} axes, one for each way in which {len(sizes)} sizes may be 1"
        )
    strides = dense_strides(input.shape, order)
    if input.stride() == strides:
        return input
    pairs = zip(input.shape, input.stride(), strides, strict=True)
    if input.numel() == 0 or all(extent == 1 or mine == other for extent, mine, other in pairs):
        return input.as_strided(input.shape, strides)
    return torch.empty_strided(input.shape, strides, dtype=input.dtype, device=input.device).copy_(input)


LAY_OUT: Final = "trt::lay_out"
_library = torch.library.Library("trt", "FRAGMENT")
_library.define("lay_out(Tensor(a) input, int[] orders, SymInt[] sizes) -> Tensor(a)")
_library.impl("lay_out", lay_out, "CompositeImplicitAutograd")
