"""The `torch.compile` backend, under the names `torch_tensorrt` and `tensorrt`.

PyTorch finds it through the entry point group `torch_dynamo_backends`, so nothing has to be imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from trt_converters import preserve_predicate
from trt_core import CompilationSettings, Device, ExportError, InputError, LoweringError, logger, read_settings
from trt_core.ranges import ShapeRanges
from trt_frontends.capture import with_device
from trt_frontends.compiler import visible_log
from trt_frontends.pipeline import Compilation, announce
from trt_frontends.specialize import SpecializedGraph, find_state, specialize
from trt_lowering import export_module, lower

Runner = Callable[..., Any]


def torch_tensorrt_backend(
    gm: fx.GraphModule,
    sample_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **unused: Any,
) -> Runner:
    """Compiles one graph that `torch.compile` captured.

    Args:
        gm: The captured graph. Parameters may be attributes of it or inputs.
        sample_inputs: Its inputs; symbolic integers among them stand for sizes that vary.
        options: Compilation settings, `torch.compile(..., options={...})`.
        unused: What else PyTorch passes to backends.

    Returns:
        A callable that takes what the graph takes. Where the graph cannot be compiled, a warning says why, and the
        callable runs it in PyTorch.

    Raises:
        SettingsError: An option cannot be read.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
        >>> optimized = torch.compile(model, backend=torch_tensorrt_backend, dynamic=False)
        >>> with torch.no_grad():
        ...     optimized(torch.ones(2, 4)).shape
        torch.Size([2, 8])
    """
    given = dict(options or {})
    settings = with_device(read_settings(given), given, _device_of(sample_inputs))
    # a full compilation cannot be required here: PyTorch has cut the model into graphs already
    settings = settings.replace(require_full_compilation=False)
    if torch.is_grad_enabled() and _needs_gradients(sample_inputs):
        warnings.warn(
            "engines compute no gradients, and an input requires them: this graph runs in PyTorch", stacklevel=2
        )
        return gm.forward
    if any(isinstance(value, torch.SymInt) for value in sample_inputs):
        return _CompiledPerShape(gm, settings)
    return _compile_graph(gm, sample_inputs, settings)


class _CompiledPerShape:
    """Runs a graph whose sizes vary: compiles it for each combination of sizes that it meets, and keeps all of them."""

    def __init__(self, gm: fx.GraphModule, settings: CompilationSettings) -> None:
        self._gm = gm
        self._settings = settings
        self._compiled: dict[tuple[Any, ...], Runner] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = tuple(_shape_key(value) for value in inputs)
        runner = self._compiled.get(key)
        if runner is None:
            runner = self._compiled[key] = _compile_graph(self._gm, inputs, self._settings)
        return runner(*inputs)


def _compile_graph(gm: fx.GraphModule, inputs: Sequence[Any], settings: CompilationSettings) -> Runner:
    with visible_log(settings), torch.no_grad():
        try:
            specialized, graph = _lower_specialized(gm, inputs, settings)
            state = find_state(graph)
            if state:
                specialized, graph = _lower_specialized(gm, inputs, settings, state)
        except (ExportError, LoweringError, InputError) as error:
            logger.warning("a graph of %d nodes runs in PyTorch: %s", len(gm.graph.nodes), error)
            return gm.forward
        compilation = Compilation(graph, settings, ShapeRanges.from_placeholders(graph))
        if settings.dryrun:
            announce(compilation.report(), settings)
            return gm.forward
        return _Call(compilation.run(), specialized)


def _lower_specialized(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: CompilationSettings, state: Collection[int] = ()
) -> tuple[SpecializedGraph, fx.GraphModule]:
    specialized = specialize(gm, inputs, state)
    program = export_module(specialized.module, specialized.select(inputs), {}, dynamic_shapes=None, strict=False)
    return specialized, lower(program, settings, preserve=preserve_predicate(settings))


class _Call:
    """Calls the compiled graph with the inputs that it still has."""

    def __init__(self, compiled: fx.GraphModule, specialized: SpecializedGraph) -> None:
        self.compiled = compiled
        self._select = specialized.select

    def __call__(self, *inputs: Any) -> Any:
        return self.compiled(*self._select(inputs))


def _shape_key(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _device_of(inputs: Sequence[Any]) -> Device:
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "cuda"):
            return Device(value.device)
    return Device.current()


def _needs_gradients(inputs: Sequence[Any]) -> bool:
    """Whether an input that is no parameter requires gradients."""
    return any(
        isinstance(value, torch.Tensor) and value.requires_grad and not isinstance(value, torch.nn.Parameter)
        for value in inputs
    )
