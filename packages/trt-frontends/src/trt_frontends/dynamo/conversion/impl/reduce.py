"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trt_converters import layers
from trt_converters.context import rank_of


def _function(operation: str) -> Callable[..., Any]:
    def convert(
        ctx: Any,
        target: Any,
        source_ir: Any,
        name: str,
        input_val: Any,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Any:
        axes = range(rank_of(input_val)) if dim is None else [dim] if isinstance(dim, int) else dim
        return layers.reduce(ctx, operation, input_val, list(axes), keepdim)

    convert.__doc__ = f"Adds a reduce layer, `trt.ReduceOperation.{operation}`; over all axes where `dim` is None."
    return convert


amax, amin, mean = _function("MAX"), _function("MIN"), _function("AVG")
prod, sum = _function("PROD"), _function("SUM")  # noqa: A001 - what scripts call it
