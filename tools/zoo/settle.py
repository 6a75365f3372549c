"""Gives fresh modules weights in which every mistake shows."""

from __future__ import annotations

import torch
from torch import nn

_SPREAD = 0.1


def settle(module: nn.Module) -> nn.Module:
    """Puts a module into evaluation mode, and noise on what its initialization left constant.

    Norms start as the identity, gates and residual scales at zero: a converter that drops them would go unnoticed.

    Returns:
        The module.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and _is_constant(parameter):
                parameter.add_(torch.empty_like(parameter).uniform_(-_SPREAD, _SPREAD))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(torch.empty_like(buffer).uniform_(-_SPREAD, _SPREAD))
            elif name.endswith("running_var"):
                buffer.mul_(torch.empty_like(buffer).uniform_(1 - _SPREAD, 1 + _SPREAD))
    return module.eval()


def _is_constant(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and bool((tensor == tensor.flatten()[0]).all())
