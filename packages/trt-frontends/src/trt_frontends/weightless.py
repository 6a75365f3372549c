"""Models without weights, on the `meta` device or made of fake tensors: enough to explain, not to compile."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from trt_core import InputError
from trt_core.internals import FakeTensor, FakeTensorMode, pytree


def is_weightless(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape and a type, and no data."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def with_fake_weights(module: nn.Module) -> nn.Module:
    """Returns a module that can be captured for the CPU although parts of it are on the `meta` device.

    The copy shares nothing that could be large: every parameter and buffer is a fake tensor, those that have data
    too. So tensors that the model makes on the CPU while it runs meet no tensor on another device.

    Args:
        module: Any module; one without tensors on the `meta` device is returned as it is.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if not any(tensor.is_meta for tensor in tensors):
        return module
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # what deepcopy finds in its memo it does not copy, and tied parameters stay tied
    fakes: dict[int, Any] = {id(tensor): _fake(tensor, mode) for tensor in tensors}
    return copy.deepcopy(module, fakes)


def on_cpu(inputs: Any) -> Any:
    """Returns example inputs, nested in any way, with zeros on the CPU for tensors on the `meta` device."""

    def replace(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_meta and not isinstance(value, FakeTensor):
            return torch.zeros(value.shape, dtype=value.dtype)
        return value

    return pytree.tree_map(replace, inputs)


def require_weights(program: torch.export.ExportedProgram) -> None:
    """Checks that a program can be compiled, not only explained.

    Raises:
        InputError: Some of its tensors have no data.
    """
    tensors = {**program.state_dict, **program.constants}
    empty = [name for name, value in tensors.items() if isinstance(value, torch.Tensor) and is_weightless(value)]
    if empty:
        raise InputError(
            "the model has no weights to build engines from",
            where=", ".join(empty[:3]) + (f" and {len(empty) - 3} more" if len(empty) > 3 else ""),
            why="these tensors are on the meta device, or are fake tensors",
            hint="load the weights first; explain, and compile with dryrun=True, work without them",
        )


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake
