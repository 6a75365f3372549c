"""Quantizes weights."""

from __future__ import annotations

from typing import Final

import torch

from trt_core import InputError
from trt_core.quantization import quantize
from trt_frontends.quantization.config import Observer, QuantizationConfig
from trt_frontends.quantization.layers import Weight

_SHRUNK: Final = tuple(1.0 - 0.02 * step for step in range(26))
"""Shares of the largest magnitude that are tried as range."""


def weight_scale(value: torch.Tensor, weight: Weight, config: QuantizationConfig) -> tuple[torch.Tensor, int]:
    """Returns the scale of a weight, and its axis, as `torch.ops.trt.quantize` takes them.

    A slice of nothing but zeros gets the scale 1. With the observers `mse` and `entropy`, the range of each slice is
    the one with the least squared error.

    Args:
        value: The weight.
        weight: Which of its axes are channels and inputs.
        config: `per_channel`, and `group_size` for integers of 4 bits.

    Raises:
        InputError: The weight holds NaN or infinities.
    """
    wide = value.detach().to(torch.float32)
    if not bool(wide.isfinite().all()):
        raise InputError("a weight holds NaN or infinities", where=weight.node.name, hint="check the model's weights")
    scheme = config.scheme
    if scheme.bits == 4:
        count = value.shape[weight.input_axis] // config.group_size
        blocks = wide.unflatten(weight.input_axis, (count, config.group_size))
        return _scale(blocks, (weight.input_axis + 1,), config).squeeze(weight.input_axis + 1), -1
    if not config.per_channel or weight.channel_axis < 0:
        return _scale(wide, tuple(range(wide.dim())), config).reshape(()), -1
    others = tuple(axis for axis in range(wide.dim()) if axis != weight.channel_axis)
    return _scale(wide, others, config).reshape(-1), weight.channel_axis


def _scale(value: torch.Tensor, axes: tuple[int, ...], config: QuantizationConfig) -> torch.Tensor:
    """Returns one scale for each slice, dimensions kept."""
    scheme = config.scheme
    largest = value.abs().amax(axes, keepdim=True)
    whole = largest / scheme.largest
    whole = torch.where(whole >= torch.finfo(torch.float32).tiny, whole, torch.ones_like(whole))
    if config.observer not in (Observer.MSE, Observer.ENTROPY):
        return whole
    best, least = whole, torch.full_like(whole, torch.inf)
    for share in _SHRUNK:
        tried = whole * share
        kept = quantize(value, tried.expand_as(value), scheme.dtype, scheme.bits).to(torch.float32) * tried
        error = (kept - value).square().sum(axes, keepdim=True)
        best, least = torch.where(error < least, tried, best), torch.minimum(error, least)
    return best
