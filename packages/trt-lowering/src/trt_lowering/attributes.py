"""Attributes of a graph module that `get_attr` nodes name: reading them and adding constants."""

from __future__ import annotations

import torch
from torch import fx

from trt_core.attributes import read_attribute

__all__ = ["add_constant", "read_attribute", "written_targets"]

_PREFIX = "_lowered_constant"


def add_constant(gm: fx.GraphModule, tensor: torch.Tensor) -> str:
    """Registers a tensor as a buffer under a fresh name, and returns the name."""
    index = len(gm._buffers)
    while hasattr(gm, f"{_PREFIX}{index}"):
        index += 1
    name = f"{_PREFIX}{index}"
    gm.register_buffer(name, tensor.detach(), persistent=True)
    return name


def written_targets(graph: fx.Graph) -> frozenset[str]:
    """Returns the attributes that the graph writes to: they are state, not constants."""
    return frozenset(
        str(node.args[0].target)
        for node in graph.nodes
        if node.target is torch.ops.aten.copy_.default
        and isinstance(node.args[0], fx.Node)
        and node.args[0].op == "get_attr"
    )
