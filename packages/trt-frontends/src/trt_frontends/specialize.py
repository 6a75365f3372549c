"""Makes a graph of `torch.compile` ready for export: parameters become attributes, sizes become numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class SpecializedGraph:
    """A graph that takes only the tensors that change from call to call.

    Attributes:
        module: The graph; parameters and buffers are its attributes, shared with the model.
        kept: Positions of the inputs that it still takes.
    """

    module: fx.GraphModule
    kept: tuple[int, ...]

    def select(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Returns those of the captured graph's inputs that the module takes."""
        return tuple(inputs[position] for position in self.kept)


def specialize(gm: fx.GraphModule, inputs: Sequence[Any]) -> SpecializedGraph:
    """Fixes what does not change between calls.

    Args:
        gm: A graph that `torch.compile` captured; it is not changed.
        inputs: What it is called with: parameters and buffers become attributes, numbers become constants.
    """
    graph = fx.Graph()
    fixed: dict[str, torch.Tensor] = {}
    values: dict[fx.Node, Any] = {}
    kept = []
    position = 0
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            values[node] = graph.node_copy(node, values.__getitem__)
            continue
        given = inputs[position]
        if not isinstance(given, torch.Tensor):
            values[node] = int(given) if isinstance(given, torch.SymInt) else given
        elif _is_fixed(node, given):
            name = f"_fixed_{position}"
            fixed[name] = given
            values[node] = graph.get_attr(name)
            values[node].meta = dict(node.meta)
        else:
            kept.append(position)
            values[node] = graph.node_copy(node)
        position += 1
    # a dictionary as root: what the graph names, shared with the model, and nothing else
    root: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            root[str(node.target)] = gm.get_submodule(str(node.target))
        elif node.op == "get_attr":
            root[str(node.target)] = fixed.get(str(node.target), _attribute(gm, str(node.target)))
    return SpecializedGraph(fx.GraphModule(root, graph), tuple(kept))


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _is_fixed(node: fx.Node, value: torch.Tensor) -> bool:
    """Parameters, and tensors that PyTorch marks as static (buffers of modules), are the same at every call."""
    marks = node.meta.get("tensor_dict") or {}
    return isinstance(value, torch.nn.Parameter) or "_dynamo_static_input_type" in marks
