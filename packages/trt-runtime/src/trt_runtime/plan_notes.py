"""What this process knows of plans, as long as they live and nobody writes to them."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class PlanNotes(Generic[T]):
    """One fact for each of some plans; a plan that was written to since has none any more.

    Plans are (bytes,), uint8, and known by identity: a copy has notes of its own.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[torch.Tensor], int, T]] = {}

    def put(self, plan: torch.Tensor, fact: T) -> None:
        """Notes a fact of a plan, in place of the one before."""
        key = id(plan)

        def forget(reference: weakref.ref[torch.Tensor]) -> None:
            held = self._held.get(key)
            if held is not None and held[0] is reference:
                self._held.pop(key, None)

        self._held[key] = (weakref.ref(plan, forget), content_version(plan), fact)

    def get(self, plan: torch.Tensor) -> T | None:
        """Returns what is known of a plan as it is now; None for nothing."""
        held = self._held.get(id(plan))
        return held[2] if held is not None and held[0]() is plan and held[1] == content_version(plan) else None

    def __len__(self) -> int:
        return len(self._held)


def content_version(tensor: torch.Tensor) -> int:
    """Returns a number that changes when PyTorch writes to the tensor in place.

    Tensors made in inference mode do not count; they answer 0.
    """
    return 0 if tensor.is_inference() else tensor._version
