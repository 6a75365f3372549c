"""Other weights for compiled models: from a program, a model or a state dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from trt_core import InputError, RefitError
from trt_core.internals import pytree
from trt_core.wording import kind_of
from trt_runtime.refit import refit_module

_Module = TypeVar("_Module", bound=nn.Module)


def refit_module_weights(
    compiled_module: _Module,
    new_weight_module: torch.export.ExportedProgram | nn.Module | Mapping[str, torch.Tensor],
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    *,
    verify_output: bool = False,
    in_place: bool = False,
) -> _Module:
    """Gives a compiled module other weights, in a fraction of the time that compiling it again takes.

    What compiling did to the weights (folding, casting, transposing, merging) is done again to the new ones.

    Args:
        compiled_module: A module that was compiled with `refit=True`, here or loaded.
        new_weight_module: Where the weights come from: the exported program or the model, of the same architecture, or
            its state dict.
        arg_inputs, kwarg_inputs: Inputs to verify with.
        verify_output: Also run the new model and the refitted module on the inputs, and compare.
        in_place: Change the given module in place of a copy. Either way modules that share its engines keep theirs.

    Returns:
        The module with the new weights.

    Raises:
        RefitError: The module was built without `refit=True`, a weight is missing or has another type or shape, or one
            has changed that the engine cannot be given; the message names it, and the module is as it was.
        InputError: Outputs are to be verified, and no inputs or no model are given.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> compiled = compile(model, arg_inputs=(torch.ones(2, 4),), min_block_size=1, refit=True)
        >>> other = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> refitted = refit_module_weights(compiled, other.state_dict())
        >>> torch.allclose(refitted(torch.ones(2, 4)), other(torch.ones(2, 4)), atol=1e-5)
        True
    """
    refitted = refit_module(compiled_module, weights_in(new_weight_module), in_place=in_place and not verify_output)
    if not verify_output:
        return refitted
    _verify(refitted, new_weight_module, arg_inputs, kwarg_inputs)
    return refit_module(compiled_module, weights_in(new_weight_module), in_place=True) if in_place else refitted


def weights_in(
    source: torch.export.ExportedProgram | nn.Module | Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a model by name: parameters, buffers, and constants as far as the source holds them.

    Raises:
        InputError: The source is something else.
    """
    if isinstance(source, torch.export.ExportedProgram):
        named: dict[str, Any] = {**source.constants, **source.state_dict}
    elif isinstance(source, nn.Module):
        named = {
            **dict(source.named_parameters(remove_duplicate=False)),
            **dict(source.named_buffers(remove_duplicate=False)),
        }
    elif isinstance(source, Mapping):
        named = dict(source)
    else:
        raise InputError(
            f"weights cannot be taken from {kind_of(source)}",
            hint="give an exported program, a model, or its state dict",
        )
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def _verify(refitted: nn.Module, source: Any, arg_inputs: Any, kwarg_inputs: Any) -> None:
    if isinstance(source, Mapping) or (arg_inputs is None and kwarg_inputs is None):
        raise InputError(
            "outputs cannot be verified",
            hint="give the model or its exported program, and arg_inputs or kwarg_inputs to run it on",
        )
    model = source.module() if isinstance(source, torch.export.ExportedProgram) else source
    args, kwargs = tuple(arg_inputs or ()), dict(kwarg_inputs or {})
    with torch.no_grad():
        expected, found = pytree.tree_leaves(model(*args, **kwargs)), pytree.tree_leaves(refitted(*args, **kwargs))
    for index, (wanted, value) in enumerate(zip(expected, found, strict=True)):
        if isinstance(wanted, torch.Tensor) and not _close(value, wanted):
            error = (value.double() - wanted.double()).abs().max().item()
            raise RefitError(
                f"output {index} of the refitted module differs from the model's",
                why=f"the largest difference is {error:.3g}, the outputs' own scale {wanted.abs().max().item():.3g}",
                hint="compile the model again, and report both models",
            )


def _close(value: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Compares with a tolerance of the outputs' scale: engines compute in other orders, or in fewer bits."""
    if not wanted.is_floating_point():
        return torch.equal(value, wanted)
    tolerance = 1e-2 if wanted.dtype in (torch.float16, torch.bfloat16) else 1e-3
    scale = max(wanted.abs().max().item(), 1.0) if wanted.numel() else 1.0
    return torch.allclose(value.double(), wanted.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)
