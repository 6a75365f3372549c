"""What is compiled and compared: a model, the inputs that it is compiled for, and what it is compiled with.

And its engines one by one, each given the inputs that PyTorch would give it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from trt_converters import ConverterRegistry
from trt_core import InputError
from trt_core.exported_programs import module_of
from trt_core.wording import kind_of
from trt_frontends.comparison.output_error import OutputError, measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.pipeline import BuiltModel, CapturedModel, LoweredModel, Progress, capture_model, no_progress
from trt_frontends.precision.graph_run import GraphRun
from trt_frontends.stages import lower
from trt_lowering.contract import Observer
from trt_runtime.exchange import engines_in
from trt_runtime.module import engine_modules


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
        return module_of(self.model) if isinstance(self.model, torch.export.ExportedProgram) else self.model

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
    """Runs everything by PyTorch's own operators that `torch.compile` has compiled, in whatever part of a model.

    It is captured all the same: PyTorch itself compiles branches and loops where they are called, and without that
    `scan` and `map` do not know the structure of their results.
    """
    # takes effect when it is made, not when it is entered
    with torch.compiler.set_stance("default", force_backend="eager"):
        yield


def require_no_engines(model: Model) -> None:
    """Refuses a model that is compiled already: its engines would be compared with themselves.

    Raises:
        InputError: Engines are part of it, or it is neither a module nor a program.
    """
    if isinstance(model, torch.export.ExportedProgram):
        has_engines = bool(engines_in(model))
    elif isinstance(model, nn.Module):
        has_engines = bool(engine_modules(model))
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


@dataclass(frozen=True)
class EngineCase:
    """One engine, and what PyTorch computes in its place.

    Attributes:
        name: Name of its block.
        graph: The block as a graph module that PyTorch runs.
        inputs: Its inputs in an eager run of the whole model.
        values: What each of its nodes computes in that run, by node name; tensors only.
    """

    name: str
    graph: fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    values: Mapping[str, torch.Tensor]

    @property
    def operators(self) -> tuple[fx.Node, ...]:
        """Nodes that compute tensors, in the order of the graph."""
        return tuple(
            node
            for node in self.graph.graph.nodes
            if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)
        )


def run_engines(built: BuiltModel, case: SampleInputs) -> list[EngineCase]:
    """Runs a whole model in PyTorch, and returns what each engine would get and should make of it."""
    found: dict[str, tuple[torch.Tensor, ...]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: Any, inputs: tuple[Any, ...]) -> None:
            found[name] = tuple(item.detach().clone() for item in inputs)

        return hook

    with contextlib.ExitStack() as hooks, torch.no_grad(), built.running(built.blocks):
        for name, block in built.blocks.items():
            hooks.enter_context(block.register_forward_pre_hook(keep(name)))
        case.call(built.module)
    return [EngineCase(name, block, found[name], _values(block, found[name])) for name, block in built.blocks.items()]


def engine_values(built: BuiltModel, case: EngineCase, nodes: Sequence[fx.Node]) -> dict[str, torch.Tensor]:
    """Builds an engine with these of its nodes as outputs, runs it, and returns their values by name."""
    engine = built.lowered.engine(with_results(case.graph, nodes), case.name)
    with torch.no_grad():
        values = engine(*case.inputs)
    results = values if isinstance(values, (tuple, list)) else (values,)
    return dict(zip([node.name for node in nodes], results, strict=True))


def with_results(block: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """Returns a copy of a block that returns the values of other nodes, as a tuple; the given one stays as it is."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(block.graph, copies)
    for original, copied in copies.items():
        copied.meta = copy.copy(original.meta)
        copied.name = original.name
    graph.output(tuple(copies[node] for node in nodes))
    return fx.GraphModule(block, graph, class_name=block._get_name())


def errors_by_node(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> dict[str, OutputError]:
    """Returns the error of each value, by name."""
    return {name: measure_error(value, expected[name]) for name, value in found.items()}


def _values(graph: fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    values: dict[str, torch.Tensor] = {}

    def see(node: fx.Node, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            values[node.name] = value.detach().clone()

    GraphRun(graph, see).results(inputs)
    return values
