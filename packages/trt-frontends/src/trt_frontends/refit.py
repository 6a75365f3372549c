"""Other weights for compiled models: from a program, a model or a state dict; and models that follow their weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import InputError, RefitError, logger
from trt_core.internals import pytree
from trt_core.settings_reader import present_settings
from trt_core.wording import kind_of
from trt_frontends.compiler import compile
from trt_frontends.pipeline import CALIBRATION
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


# Models that stay compiled while their weights change ----------------------------------------------------------------


class MutableModule:
    """Compiles a model when it is called, once for each combination of input shapes, and refits when weights change.

    Everything else is the model's own: `load_state_dict`, `state_dict`, `parameters`, its attributes and submodules.
    Before a call, parameters and buffers are compared with those of the call before, by identity and version; writes
    through `tensor.data` change no version, so call `refit` after them. What refitting cannot follow, such as a weight
    of another shape, compiles again; call `recompile` after changing what the model computes.

    Args:
        module: The model, in evaluation mode; shared, not copied.
        registry: Where converters are looked up.
        settings: Compilation settings; `refit=True` is always set, whatever is given.

    Raises:
        SettingsError: A setting is unknown, or cannot be had.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> mutable = MutableModule(model, min_block_size=1)
        >>> before = mutable(torch.ones(2, 4))
        >>> other = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> _ = mutable.load_state_dict(other.state_dict())
        >>> torch.allclose(mutable(torch.ones(2, 4)), other(torch.ones(2, 4)), atol=1e-5)
        True
    """

    def __init__(self, module: nn.Module, *, registry: ConverterRegistry = DYNAMO_CONVERTERS, **settings: Any) -> None:
        inputs = {name: settings.pop(name) for name in (CALIBRATION,) if name in settings}
        self._own = _State(module, registry, {**present_settings(settings), "refit": True, **inputs})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model in engines; see `compile` for what can go wrong the first time."""
        return self._own.compiled_for(args, kwargs)(*args, **kwargs)

    def refit(self) -> None:
        """Gives the engines the model's present weights now, whether or not a change was noticed."""
        self._own.refresh(force=True)

    def recompile(self) -> None:
        """Forgets all engines; the next call compiles again."""
        self._own.forget()

    def __getattr__(self, name: str) -> Any:
        if name == "_own":  # while unpickling
            raise AttributeError(name)
        return getattr(self._own.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_own":
            object.__setattr__(self, name, value)
        else:
            setattr(self._own.module, name, value)

    def __repr__(self) -> str:
        return f"MutableModule({self._own.module!r})"


class _State:
    """What a mutable module keeps: the model, its compiled forms, and the weights that they have."""

    def __init__(self, module: nn.Module, registry: ConverterRegistry, settings: dict[str, Any]) -> None:
        self.module = module
        self._registry = registry
        self._settings = settings
        self._compiled: dict[Any, fx.GraphModule] = {}
        self._seen: Any = None
        self._lock = threading.RLock()

    def compiled_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.GraphModule:
        """Returns the compiled module for inputs, with the present weights."""
        with self._lock:
            self.refresh()
            key = self._key(args, kwargs)
            found = self._compiled.get(key)
            if found is None:
                found = compile(
                    self.module, arg_inputs=args, kwarg_inputs=kwargs, registry=self._registry, **self._settings
                )
                self._compiled[key] = found
            return found

    def refresh(self, *, force: bool = False) -> None:
        """Refits what is compiled when weights have changed; what cannot be refitted is compiled at its next call."""
        with self._lock:
            present = _versions(self.module)
            if present == self._seen and not force:
                return
            self._seen = present
            weights = weights_in(self.module) if self._compiled else {}
            for key, compiled in list(self._compiled.items()):
                try:
                    self._compiled[key] = refit_module(compiled, weights)
                except RefitError as error:
                    logger.info("the model is compiled again: %s", error)
                    del self._compiled[key]

    def forget(self) -> None:
        """Drops everything that is compiled."""
        with self._lock:
            self._compiled.clear()

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        described = tuple(
            (tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf)
            for leaf in leaves
        )
        return structure, described, self.module.training


def _versions(module: nn.Module) -> list[tuple[int, int, int]]:
    tensors = [*module.parameters(), *module.buffers()]
    return [(id(value), value.data_ptr(), 0 if value.is_inference() else value._version) for value in tensors]
