"""Frees the device memory of a model whose weights are in engines."""

from __future__ import annotations

import torch
from torch import nn


def offload(module: nn.Module | torch.export.ExportedProgram, compiled: nn.Module) -> None:
    """Moves the weights of a model to the CPU; what PyTorch blocks of the compiled model need stays where it is.

    Args:
        module: The model that was compiled. It runs on the CPU afterwards.
        compiled: What compiling it returned.
    """
    _own_weights(compiled)
    if isinstance(module, nn.Module):
        module.to("cpu")
        return
    for tensors in (module.state_dict, module.constants):
        for name, value in tensors.items():
            if isinstance(value, nn.Parameter):
                value.data = value.detach().cpu()  # for every holder of the parameter, as a module is moved
            elif isinstance(value, torch.Tensor):
                tensors[name] = value.cpu()


def _own_weights(compiled: nn.Module) -> None:
    """Gives a compiled model parameters of its own, in the same memory: moving a parameter moves it for all holders."""
    own: dict[nn.Parameter, nn.Parameter] = {}
    for child in compiled.modules():
        for name, value in child._parameters.items():
            if value is not None:
                child._parameters[name] = own.setdefault(value, nn.Parameter(value.detach(), value.requires_grad))
