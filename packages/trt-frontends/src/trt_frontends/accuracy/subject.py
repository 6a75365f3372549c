"""What is compiled and compared: a model, the inputs that it is compiled for, and what it is compiled with."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trt_converters import ConverterRegistry
from trt_core import InputError
from trt_core.wording import kind_of
from trt_frontends.compiler import lower
from trt_frontends.pipeline import CapturedModel, LoweredModel, Progress, capture_model, no_progress
from trt_lowering.contract import Observer
from trt_runtime import TRTModule
from trt_runtime.exchange import engines_in


@dataclass(frozen=True)
class Subject:
    """A model as it was given, which every question about it compiles anew.

    Attributes:
        model: The model in eager PyTorch, or an exported program of it.
        arg_inputs, kwarg_inputs: See `compile`.
        registry: Where converters are looked up.
        settings: Compilation settings as the user gave them.
        progress: Told what is being done.
    """

    model: Model
    arg_inputs: Sequence[Any] | None
    kwarg_inputs: Mapping[str, Any] | None
    registry: ConverterRegistry
    settings: Mapping[str, Any]
    progress: Progress = no_progress

    @property
    def eager(self) -> Callable[..., Any]:
        """The model as PyTorch runs it."""
        return self.model.module() if isinstance(self.model, torch.export.ExportedProgram) else self.model

    @property
    def name(self) -> str:
        """How reports call the model."""
        return type(self.eager).__name__

    def with_settings(self, settings: Mapping[str, Any]) -> Subject:
        """Returns the same model with other settings."""
        return dataclasses.replace(self, settings=settings)

    def capture(self, *, needs_weights: bool = False, observe: Observer | None = None) -> CapturedModel:
        """Captures the model, and lowers as far as values do not matter; see `pipeline.capture_model`."""
        return capture_model(
            self.model,
            None,
            self.arg_inputs,
            self.kwarg_inputs,
            self.settings,
            self.progress,
            registry=self.registry,
            needs_weights=needs_weights,
            observe=observe,
        )

    def lower(self) -> LoweredModel:
        """Captures and lowers the model as `compile` does; see there for what is raised."""
        return lower(self.capture(needs_weights=True))


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
