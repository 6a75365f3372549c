"""Makes a graph of `torch.compile` ready for export: parameters become attributes, sizes become numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.state import is_state

_PREFIX: Final = "_fixed_"


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


def specialize(gm: fx.GraphModule, inputs: Sequence[Any], state: Collection[int] = ()) -> SpecializedGraph:
    """Fixes what does not change between calls.

    Args:
        gm: A graph that `torch.compile` captured; it is not changed.
        inputs: What it is called with: parameters and buffers become attributes, numbers become constants.
        state: Positions of inputs that are never fixed, see `find_state`.
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
        elif position not in state and _is_fixed(node, given):
            name = f"{_PREFIX}{position}"
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


def find_state(lowered: fx.GraphModule) -> frozenset[int]:
    """Returns the positions of inputs that were fixed although the graph writes to them.

    PyTorch puts another tensor in the place of a buffer that a model assigns to, so the graph must be given the present
    one at every call. Only lowering knows what is written to: calls in a captured graph do not say it.

    Args:
        lowered: What lowering made of a specialized graph.
    """
    attributes = lowered.graph.find_nodes(op="get_attr")
    names = [str(node.target) for node in attributes if is_state(node)]
    return frozenset(int(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX))


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _is_fixed(node: fx.Node, value: torch.Tensor) -> bool:
    """Parameters, and tensors that PyTorch marks as static (buffers of modules), are the same at every call."""
    marks = node.meta.get("tensor_dict") or {}
    return isinstance(value, torch.nn.Parameter) or "_dynamo_static_input_type" in marks
