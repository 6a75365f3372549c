"""Makes a compiled model a snapshot: all of its weights are those at the time of compiling.

Engines hold copies of weights anyway. What PyTorch blocks read would be the model's own tensors, and a change of these
would reach one half of the compiled model only. So blocks get copies, too. What the model writes to (running
statistics, caches, counters) and what it returns of its own tensors is the model's memory, as for eager calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn

from trt_core.state import is_state
from trt_lowering.results import result_bases


def take_snapshot(compiled: fx.GraphModule, lowered: fx.GraphModule) -> None:
    """Replaces the tensors that a compiled model reads in PyTorch by copies of them.

    Args:
        compiled: Calls engines and PyTorch blocks; its attributes are replaced, the model's tensors are left alone.
        lowered: The graph that it was split from.
    """
    kept = {_memory(tensor) for tensor in _shared_with_eager(lowered)}
    copies: dict[int, torch.Tensor] = {}
    held: list[torch.Tensor] = []  # what is replaced, so that no other tensor takes its identity
    for owner, name in sorted(_tensors_read(compiled), key=lambda place: place[1]):
        value = getattr(owner, name)
        if not isinstance(value, torch.Tensor) or _memory(value) in kept:
            continue
        key = id(value)  # tied weights stay one tensor
        if key not in copies:
            copied = value.detach().clone()
            copies[key] = nn.Parameter(copied, value.requires_grad) if isinstance(value, nn.Parameter) else copied
            held.append(value)
        setattr(owner, name, copies[key])


def _tensors_read(compiled: fx.GraphModule) -> set[tuple[nn.Module, str]]:
    """Returns where the tensors are that graphs of a module read: the module that holds each, and its name there."""
    return {place_of(graph, node) for graph, node in reads_of(compiled)}


def _shared_with_eager(lowered: fx.GraphModule) -> Iterator[torch.Tensor]:
    """Yields the model's tensors that it writes to, or returns."""
    returned = result_bases(lowered.graph)
    for node in lowered.graph.find_nodes(op="get_attr"):
        if node in returned or is_state(node):
            owner, name = place_of(lowered, node)
            value = getattr(owner, name)
            if isinstance(value, torch.Tensor):
                yield value


def reads_of(compiled: fx.GraphModule) -> Iterator[tuple[fx.GraphModule, fx.Node]]:
    """Yields where graphs of a module read attributes: the graph, and its node."""
    for module in compiled.modules():
        if isinstance(module, fx.GraphModule):
            yield from ((module, node) for node in module.graph.find_nodes(op="get_attr"))


def place_of(graph: fx.GraphModule, node: fx.Node) -> tuple[nn.Module, str]:
    """The module that holds what a node reads, and its name there."""
    path, _, name = str(node.target).rpartition(".")
    return graph.get_submodule(path), name


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What tensors in the same memory have in common."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return (id(tensor),)
    return (str(tensor.device), tensor.untyped_storage().data_ptr())
