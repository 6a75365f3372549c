"""Shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trt_converters import layers


def reshape(ctx: Any, target: Any, source_ir: Any, name: str, input: Any, shape: Sequence[Any]) -> Any:
    """Returns the elements in another shape, in which one size may be -1."""
    return layers.reshape(ctx, input, list(shape))
