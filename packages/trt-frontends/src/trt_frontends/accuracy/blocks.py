"""The engines of a model one by one, each given the inputs that PyTorch would give it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_converters import build_block
from trt_core import CompilationSettings
from trt_frontends.accuracy.subject import Subject
from trt_frontends.comparison.output_error import OutputError, measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.compiler import lower
from trt_frontends.engine_module import engine_module
from trt_frontends.pipeline import Compilation
from trt_partition import split_into_blocks


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


@dataclass(frozen=True)
class LoweredModel:
    """A model on its way to engines, before any is built.

    Attributes:
        compilation: Its lowered graph and what to compile it with.
        split: The same with a child for each block, also run by PyTorch.
        engines: Names of the children that become engines.
    """

    compilation: Compilation
    split: fx.GraphModule
    engines: tuple[str, ...]

    @classmethod
    def prepare(cls, subject: Subject) -> LoweredModel:
        """Captures, lowers, partitions and splits a model; see `compile` for what is raised."""
        compilation = lower(subject.begin(needs_weights=True))
        plan = compilation.plan()
        split = split_into_blocks(compilation.graph, plan)
        return cls(compilation, split, tuple(block.name for block in plan.engines))

    @property
    def graph(self) -> fx.GraphModule:
        """The lowered graph, which PyTorch can run, called like the model."""
        return self.compilation.graph

    def run_engines(self, case: SampleInputs) -> list[EngineCase]:
        """Runs the whole model in PyTorch, and returns what each engine would get and should make of it."""
        found: dict[str, tuple[torch.Tensor, ...]] = {}

        def keep(name: str) -> Callable[..., None]:
            def hook(_: Any, inputs: tuple[Any, ...]) -> None:
                found[name] = tuple(item.detach().clone() for item in inputs)

            return hook

        handles = [self.split.get_submodule(name).register_forward_pre_hook(keep(name)) for name in self.engines]
        try:
            with torch.no_grad():
                case.call(self.split)
        finally:
            for handle in handles:
                handle.remove()
        cases = []
        for name in self.engines:
            graph = self.split.get_submodule(name)
            assert isinstance(graph, fx.GraphModule)
            cases.append(EngineCase(name, graph, found[name], _values(graph, found[name])))
        return cases

    def engine_values(self, case: EngineCase, nodes: Sequence[fx.Node]) -> dict[str, torch.Tensor]:
        """Builds the engine with these of its nodes as outputs, runs it, and returns their values by name."""
        graph = with_results(case.graph, nodes)
        engine = self.build(graph, case.name)
        with torch.no_grad():
            values = engine(*case.inputs)
        results = values if isinstance(values, (tuple, list)) else (values,)
        return dict(zip([node.name for node in nodes], results, strict=True))

    def build(self, block: fx.GraphModule, name: str) -> torch.nn.Module:
        """Builds the engine of a block, and returns the module that runs it."""
        compilation = self.compilation
        built = build_block(block, compilation.settings, compilation.ranges, name, compilation.registry)
        return engine_module(built, block, compilation.settings)

    @property
    def settings(self) -> CompilationSettings:
        """What the model is compiled with."""
        return self.compilation.settings


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

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, torch.Tensor):
                values[n.name] = result.detach().clone()
            return result

    with torch.no_grad():
        Recorder(graph).run(*inputs)
    return values
