"""`torch.compile` with this backend, and with Dynamo set up for engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import InputError, read_settings
from trt_core.wording import kind_of
from trt_frontends.backend import refuse_settings_of_whole_models, torch_tensorrt_backend
from trt_frontends.entry_point import entry_point
from trt_frontends.torch_compile.model_report import GraphKeeper
from trt_frontends.torch_compile.whole_capture import CAPTURES, Captures


@entry_point
def optimize(
    model: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Any,
) -> Any:
    """Returns what `torch.compile(model, backend="torch_tensorrt", options=settings)` does, and captures more of it.

    A backend is asked when PyTorch has decided what becomes a graph. Here PyTorch is told before: recurrent layers are
    part of graphs, whole and with a length that may vary, and shapes of convolutions on the CPU are found without
    guards on the size of the batch. Other backends in the process see none of that.

    Args:
        model: A module or a function; nothing is captured before it is called.
        dynamic: Whether sizes vary: from the first call on (True), never (False), or once they did (None).
        fullgraph: Whether a graph break is an error.
        registry: Where converters are looked up.
        settings: Compilation settings; see `CompilationSettings`.

    Returns:
        A module or a function that is called like the model; `model_report` tells what runs where.

    Raises:
        InputError: The model cannot be called.
        SettingsError: A setting cannot be read, or says something about a whole model.

    Example:
        >>> import torch
        >>> optimized = optimize(torch.nn.GRU(4, 8).eval(), dynamic=True, min_block_size=1)
        >>> with torch.no_grad():
        ...     sequence, state = optimized(torch.ones(5, 2, 4))
        >>> sequence.shape
        torch.Size([5, 2, 8])
    """
    from trt_frontends.internals import dynamo_optimize as optimize_with  # costly to import

    if not callable(model):
        raise InputError(f"cannot optimize {kind_of(model)}", hint="give an nn.Module or a function")
    refuse_settings_of_whole_models(read_settings(settings))
    chosen = None if registry is DYNAMO_CONVERTERS else registry
    return optimize_with(EngineBackend(settings, chosen), nopython=fullgraph, dynamic=dynamic)(model)


class EngineBackend(GraphKeeper):
    """The backend of one model: keeps its settings, and sets Dynamo up in its calls.

    Args:
        settings: Compilation settings as the user gave them.
        registry: Where converters are looked up, None for the default, which models are copied and pickled without.

    Attributes:
        compiler_name: What PyTorch calls the backend in its messages.
        backend_ctx_ctor: By this name PyTorch finds what to enter around each call.
    """

    def __init__(self, settings: dict[str, Any], registry: ConverterRegistry | None) -> None:
        self.compiler_name = "torch_tensorrt"
        self.backend_ctx_ctor = _captures
        self._settings = settings
        self._registry = registry

    def __call__(self, gm: fx.GraphModule, sample_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles one graph; see `torch_tensorrt_backend`."""
        return torch_tensorrt_backend(gm, sample_inputs, options=self._settings, registry=self._registry)


def _captures() -> Captures:
    return CAPTURES
