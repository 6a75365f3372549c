"""How far results lie from eager's, beside how far eager's own float32 lies from float64."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

TOLERANCE = 1e-4
"""Relative to the largest magnitude of a result: what sums in another order may cost a deep network in float32."""

OWN_ERROR_FACTOR = 10.0
"""Results may also lie this many times as far from eager's as eager's own rounding error."""


class Mismatch(Exception):
    """Results that no tolerance can reconcile: their number, type or shape differs."""


def error(found: Any, expected: Any) -> float:
    """Returns the largest distance between results, each relative to its largest magnitude (at least 1).

    Integers and bools count as differing (infinity) when any of them does.

    Raises:
        Mismatch: Number, type or shape of the results differs.
    """
    left, right = _tensors(found), _tensors(expected)
    if len(left) != len(right):
        raise Mismatch(f"{len(left)} results, eager has {len(right)}")
    return max((_distance(a, b, index) for index, (a, b) in enumerate(zip(left, right, strict=True))), default=0.0)


def agrees(found: float, own: float | None) -> bool:
    """Whether an error is one that rounding explains.

    Args:
        found: Distance from eager's result.
        own: Distance of eager's result from its own in float64, None where that is not known.
    """
    return found <= max(TOLERANCE, OWN_ERROR_FACTOR * (own or 0.0))


def _distance(found: torch.Tensor, expected: torch.Tensor, index: int) -> float:
    if found.shape != expected.shape:
        raise Mismatch(f"result {index} has shape {tuple(found.shape)}, eager's {tuple(expected.shape)}")
    if found.is_floating_point() != expected.is_floating_point() or found.is_complex() != expected.is_complex():
        raise Mismatch(f"result {index} is {found.dtype}, eager's {expected.dtype}")
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if torch.equal(found, expected) else float("inf")
    wide = torch.complex128 if expected.is_complex() else torch.float64
    found, expected = found.to(wide), expected.to(wide)
    same = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(same, 0.0, (found - expected).abs())
    finite = expected.abs()[expected.isfinite()]
    scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    distance = difference.max().item() / scale
    return float("inf") if distance != distance else distance


def _tensors(results: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
