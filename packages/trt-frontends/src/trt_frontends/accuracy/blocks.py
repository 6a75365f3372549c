"""The engines of a model one by one, each given the inputs that PyTorch would give it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_frontends.comparison.output_error import OutputError, measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.pipeline import BuiltModel


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

    handles = [block.register_forward_pre_hook(keep(name)) for name, block in built.blocks.items()]
    try:
        with torch.no_grad(), built.running(built.blocks):
            case.call(built.module)
    finally:
        for handle in handles:
            handle.remove()
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

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, torch.Tensor):
                values[n.name] = result.detach().clone()
            return result

    with torch.no_grad():
        Recorder(graph).run(*inputs)
    return values
