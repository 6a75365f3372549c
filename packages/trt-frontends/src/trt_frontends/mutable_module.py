"""A model that stays compiled while its weights change."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import RefitError, logger
from trt_core.internals import pytree
from trt_frontends.compiler import compile
from trt_frontends.refit import weights_in
from trt_runtime.refit import refit_module


class MutableModule:
    """Compiles a model when it is called, once for each combination of input shapes, and refits when weights change.

    Everything else is the model's own: `load_state_dict`, `state_dict`, `parameters`, its attributes and submodules.
    Before a call, parameters and buffers are compared with those of the call before, by identity and version; writes
    through `tensor.data` change no version, so call `refit` after them. What refitting cannot follow, such as a weight
    of another shape, compiles again; call `recompile` after changing what the model computes.

    Args:
        module: The model, in evaluation mode; shared, not copied.
        registry: Where converters are looked up.
        settings: Compilation settings; `refit=True` is always set.

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
        self._own = _State(module, registry, {**settings, "refit": True})

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
