"""Scales and zero points that a model chooses by its data, in types that engines have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.operator_traits import argument

Form = Callable[[Mapping[str, Any]], Any]
"""Computes a call in another form, from the operator's arguments by name."""


def choose(gm: fx.GraphModule, node: fx.Node) -> Form | None:
    """Chooses scale and zero point in float32, where PyTorch widens the scale to a type that engines do not have."""
    symmetric = "symmetric" in _name(node)
    if not _serves(node, _WHOLE) or (symmetric and argument(node, "dtype") is not torch.int8):
        return None
    low, high = float(argument(node, "quant_min")), float(argument(node, "quant_max"))
    least = argument(node, "eps")

    def form(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        wide = given["input"].to(torch.float32)
        smallest, largest = wide.amin().clamp(max=0.0), wide.amax().clamp(min=0.0)
        if symmetric:
            scale = (torch.maximum(-smallest, largest) / ((high - low) / 2)).clamp(min=least)
            return scale, torch.zeros_like(scale, dtype=torch.int64)
        scale = ((largest - smallest) / (high - low)).clamp(min=least)
        zero = (low - (smallest / scale).round()).clamp(low, high)
        return scale, zero.to(torch.int64)

    return form


def choose_per_token(gm: fx.GraphModule, node: fx.Node) -> Form | None:
    """Chooses a scale and zero point for each row in float32; see `choose`."""
    if not _serves(node, _ROWS) or argument(node, "dtype") is not torch.int8:
        return None

    def form(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        wide = given["input"].to(torch.float32)
        smallest = wide.amin(-1, keepdim=True).clamp(max=0.0)
        largest = wide.amax(-1, keepdim=True).clamp(min=0.0)
        scale = ((largest - smallest) / 255.0).clamp(min=torch.finfo(torch.float32).eps)
        below, above = smallest / scale, largest / scale
        # the end of the range that is off by less decides
        zero = torch.where(below + above - 1.0 > 0.0, -128.0 - below, 127.0 - above)
        return scale, zero.clamp(-128.0, 127.0).round().to(torch.int64)

    return form


def _serves(node: fx.Node, readers: frozenset[str]) -> bool:
    """Whether what a call chooses is read by operators alone that take scales of any float type."""
    return all(_name(reader) in readers for item in node.users for reader in item.users)


_WHOLE: Final = frozenset(
    f"quantized_decomposed::{name}.tensor" for name in ("quantize_per_tensor", "dequantize_per_tensor")
)
_ROWS: Final = frozenset(f"quantized_decomposed::{name}" for name in ("quantize_per_token", "dequantize_per_token"))


def _name(node: fx.Node) -> str:
    return node.target.name() if isinstance(node.target, OpOverload) else ""
