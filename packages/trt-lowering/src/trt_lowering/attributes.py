"""Attributes of a graph module that `get_attr` nodes name: reading them and adding constants."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

_PREFIX = "_lowered_constant"


def read_attribute(gm: torch.nn.Module, path: str) -> Any:
    """Returns the attribute at a dotted path."""
    return functools.reduce(getattr, path.split("."), gm)


def has_attribute(gm: torch.nn.Module, path: str) -> bool:
    """Whether the module has an attribute at a dotted path."""
    found: Any = gm
    for part in path.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


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
