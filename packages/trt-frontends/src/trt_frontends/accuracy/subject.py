"""What is compiled and compared: a model, the inputs that it is compiled for, and what it is compiled with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trt_converters import ConverterRegistry
from trt_frontends.accuracy.eager_model import Model
from trt_frontends.pipeline import CapturedModel, LoweredModel, capture_model
from trt_lowering.contract import Observer


@dataclass(frozen=True)
class Subject:
    """A model as it was given, which every question about it compiles anew.

    Attributes:
        model: The model in eager PyTorch, or an exported program of it.
        arg_inputs, kwarg_inputs: See `compile`.
        registry: Where converters are looked up.
        settings: Compilation settings as the user gave them.
    """

    model: Model
    arg_inputs: Sequence[Any] | None
    kwarg_inputs: Mapping[str, Any] | None
    registry: ConverterRegistry
    settings: Mapping[str, Any]

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
            registry=self.registry,
            needs_weights=needs_weights,
            observe=observe,
        )

    def lower(self) -> LoweredModel:
        """Captures and lowers the model as `compile` does; see there for what is raised."""
        return self.capture(needs_weights=True).lower()
