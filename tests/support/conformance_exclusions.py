"""Operators that do not conform, each with the reason. An entry that conforms after all fails its test."""

from __future__ import annotations

import torch

EXCLUSIONS: dict[tuple[str, torch.dtype], str] = {}
"""Reasons by name and type."""
