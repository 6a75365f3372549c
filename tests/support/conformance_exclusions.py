"""Operators that do not conform, each with the reason. An entry that conforms after all fails its test."""

from __future__ import annotations

import torch

_EXACT_PLACES = (
    "eager computes the places it samples at in the reduced type; the engine computes them in float32, "
    "and is the one of the two that agrees with the float32 result"
)

EXCLUSIONS: dict[tuple[str, torch.dtype], str] = {
    (name, dtype): _EXACT_PLACES
    for name in ("grid_sampler_2d", "grid_sampler_3d")
    for dtype in (torch.float16, torch.bfloat16)
}
"""Reasons by name and type."""
