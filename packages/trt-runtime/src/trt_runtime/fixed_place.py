"""Compiled models stay on the device and in the types that they were compiled for: moving or casting one is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from trt_core.errors import InputError

Place = tuple[torch.dtype, torch.device]


def refuse_moves(
    change: Callable[[torch.Tensor], torch.Tensor], compute: Collection[Place], held: Collection[Place], what: str
) -> None:
    """Refuses a change of a module that would move or cast what its operators and engines were compiled for.

    Args:
        change: What `nn.Module.to`, `half` and their kin do to each tensor.
        compute: Types and devices that engines take.
        held: Types and devices of the module's own tensors.
        what: What the module is, with its article.

    Raises:
        InputError: A tensor of these types would become another one.
    """
    for dtype, device in sorted({*compute, *held}, key=str):
        moved = change(torch.empty(0, dtype=dtype, device=device))
        if (moved.dtype, moved.device) != (dtype, device):
            raise InputError(
                f"{what} stays what it was compiled for: {dtype} on {device} cannot become "
                f"{moved.dtype} on {moved.device}",
                hint="compile the model for that device and type",
            )
