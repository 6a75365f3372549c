"""What compilers must know of cuDNN's fused convolutions: their results' extents and layout."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_portable.internals import has_kernel, suggest_memory_format
from trt_portable.layers.windows import convolved_extents

_RELU: Final = "cudnn_convolution_relu"
_ADD_RELU: Final = "cudnn_convolution_add_relu"


@functools.cache
def teach_cudnn_operators() -> Any:
    """Makes both operators known to traces without data, and to Inductor; once per process.

    Returns:
        What holds the registration.
    """
    from trt_portable.internals import constrain_to_fx_strides, lowerings, make_fallback

    library = torch.library.Library("aten", "IMPL", "Meta")
    for name, shape in ((_RELU, _relu), (_ADD_RELU, _add_relu)):
        operator = getattr(torch.ops.aten, name).default
        if not has_kernel(operator.name(), "Meta"):
            library.impl(name, shape)
        if operator not in lowerings:
            make_fallback(operator, constrain_to_fx_strides, warn=False)
    return library


def _relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    extents = convolved_extents(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    result = torch.empty((x.shape[0], weight.shape[0], *extents), dtype=x.dtype, device=x.device)
    formats = [suggest_memory_format(tensor) for tensor in (x, weight)]
    is_last = x.dim() == 4 and torch.channels_last in formats  # as cuDNN is called
    return result.contiguous(memory_format=torch.channels_last) if is_last else result


def _add_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    other: torch.Tensor,
    alpha: float | None,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    return _relu(x, weight, bias, stride, padding, dilation, groups)
