"""Choosing between two values, element by element."""

from __future__ import annotations

from typing import Any

from trt_converters import layers


def select(ctx: Any, target: Any, source_ir: Any, name: str, input: Any, other: Any, condition: Any) -> Any:
    """Returns `input` where the condition holds, else `other`; they are brought to one type."""
    return layers.select(ctx, condition, input, other)


where = select
