"""The model in eager PyTorch, whatever `torch.compile` made of it; what has engines already is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from trt_core import InputError
from trt_core.wording import kind_of
from trt_runtime import TRTModule
from trt_runtime.exchange import engines_in

Model = nn.Module | torch.export.ExportedProgram


def is_wrapped(model: Model) -> bool:
    """Whether calling a module runs what `torch.compile`, or its method `compile`, made of it."""
    return isinstance(model, nn.Module) and (
        hasattr(model, "_torchdynamo_orig_callable") or getattr(model, "_compiled_call_impl", None) is not None
    )


def without_wrapper(model: Model) -> Model:
    """Returns the module that `torch.compile` was given, in place of what it returned; others as they are.

    `eager_only` keeps what is compiled inside a module, or was compiled in place, from running compiled.
    """
    inner = getattr(model, "_orig_mod", None) if is_wrapped(model) else None
    return inner if isinstance(inner, nn.Module) else model


@contextlib.contextmanager
def eager_only() -> Iterator[None]:
    """Runs everything in eager PyTorch that `torch.compile` has compiled, in whatever part of a model."""
    with torch.compiler.set_stance("force_eager"):  # which takes effect when it is made, not when it is entered
        yield


def require_no_engines(model: Model) -> None:
    """Refuses a model that is compiled already: its engines would be compared with themselves.

    Raises:
        InputError: Engines are part of it, or it is neither a module nor a program.
    """
    if isinstance(model, torch.export.ExportedProgram):
        has_engines = bool(engines_in(model))
    elif isinstance(model, nn.Module):
        has_engines = any(isinstance(module, TRTModule) for module in model.modules())
    else:
        raise InputError(
            f"model is {kind_of(model)}", hint="give a module in eager PyTorch, or an exported program of it"
        )
    if has_engines:
        raise InputError(
            "the model has engines, and would be compared with itself",
            where=type(model).__name__,
            hint="give the model that it was compiled from; verify takes what is compiled as compiled=",
        )
