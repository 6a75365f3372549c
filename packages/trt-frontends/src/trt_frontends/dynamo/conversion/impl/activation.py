"""Activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trt_converters import layers


def convert_activation(
    ctx: Any,
    target: Any,
    source_ir: Any,
    name: str,
    operation_type: Any,
    input_val: Any,
    alpha: float | None = None,
    beta: float | None = None,
) -> Any:
    """Adds an activation layer; `operation_type` is a `trt.ActivationType`."""
    return layers.activation(ctx, operation_type.name, input_val, alpha, beta)


def _function(kind: str) -> Callable[..., Any]:
    def convert(
        ctx: Any,
        target: Any,
        source_ir: Any,
        name: str,
        input_val: Any,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> Any:
        return layers.activation(ctx, kind, input_val, alpha, beta)

    convert.__doc__ = f"Adds an activation layer, `trt.ActivationType.{kind}`."
    return convert


relu, sigmoid, tanh = _function("RELU"), _function("SIGMOID"), _function("TANH")
clip, hard_sigmoid, thresholded_relu = _function("CLIP"), _function("HARD_SIGMOID"), _function("THRESHOLDED_RELU")
elu, leaky_relu, selu = _function("ELU"), _function("LEAKY_RELU"), _function("SELU")
softplus, softsign = _function("SOFTPLUS"), _function("SOFTSIGN")
