"""`torch.compile` with our backend, and with PyTorch told what engines can take before it captures.

Dynamo captures for compilers that differ from this one, and decides before a backend is asked. It breaks off where
`nn.LSTM`, `nn.GRU` and `nn.RNN` are called, which Inductor would unroll. Shapes of recurrent layers are found by
unrolling, and those of convolutions by asking which CPU library would compute them; both guard on sizes: engines would
be built for each length, and twice for a batch that may be smaller or larger than 16.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import InputError, read_settings
from trt_core.wording import kind_of
from trt_frontends.backend import refuse_settings_of_whole_models, torch_tensorrt_backend
from trt_frontends.entry_point import entry_point
from trt_frontends.internals import use_mkldnn, use_nnpack, uses_mkldnn, uses_nnpack
from trt_frontends.torch_compile.model_report import GraphKeeper
from trt_lowering import keep_recurrent_layers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords


M = TypeVar("M", bound=Callable[..., Any])


@entry_point
def optimize(
    model: M,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> M:
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

    if not callable(model) or isinstance(model, type):
        raise InputError(f"cannot optimize {kind_of(model)}", hint="give an nn.Module or a function")
    refuse_settings_of_whole_models(read_settings(settings))
    chosen = None if registry is DYNAMO_CONVERTERS else registry
    make = optimize_with(EngineBackend({**settings}, chosen), nopython=fullgraph, dynamic=dynamic)
    return cast("M", make(model))


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


# How PyTorch captures for us -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_capture() -> Iterator[None]:
    """Lets Dynamo and AOTAutograd capture recurrent layers whole, and convolutions without guards on their batch.

    What is set here is global. Dynamo holds its lock while it captures.
    """
    from trt_frontends.internals import dynamo_config  # costly to import

    with dynamo_config.patch(allow_rnn=True), keep_recurrent_layers(), _one_convolution():
        yield


class Captures(threading.local):
    """The calls of this thread for which PyTorch captures in this way. Enter it for the time of a call."""

    def __init__(self) -> None:
        self._calls = 0
        self._entered: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        from trt_frontends.internals import callback_handler

        if self.begin not in callback_handler.start_callbacks:  # `torch._dynamo.reset` forgets all of them
            callback_handler.register_start_callback(self.begin)
            callback_handler.register_end_callback(self.end)
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1

    def begin(self, _: Any) -> None:
        """Called by Dynamo before it captures anything, whichever backend that is for."""
        if self._calls:
            entered = contextlib.ExitStack()
            entered.enter_context(whole_capture())
            self._entered = entered

    def end(self, _: Any) -> None:
        """Called by Dynamo when it has captured, or failed to."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()


CAPTURES: Final = Captures()


@contextlib.contextmanager
def _one_convolution() -> Iterator[None]:
    """Takes the CPU libraries between which PyTorch chooses by the size of the batch out of the choice.

    The layout of the result, which is what the choice is asked for, is the same with and without them.
    """
    mkldnn, nnpack = uses_mkldnn(), uses_nnpack()
    use_mkldnn(False)
    use_nnpack(False)
    try:
        yield
    finally:
        use_mkldnn(mkldnn)
        use_nnpack(nnpack)
