"""Inputs and outputs of compiled modules in a form that any process can load and any batch can use."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from trt_core.internals import pytree
from trt_core.nesting import LEAST_DYNAMIC


def with_plain_outputs(compiled: nn.Module) -> nn.Module:
    """Returns the module with results of foreign classes turned into dicts and tuples.

    Args:
        compiled: A module; one that is no `fx.GraphModule` with an output structure is returned as it is.
    """
    info = getattr(getattr(compiled, "graph", None), "_codegen", None)
    info = getattr(info, "pytree_info", None)
    if not isinstance(compiled, fx.GraphModule) or info is None or info.out_spec is None:
        return compiled
    spec = info.out_spec
    sample = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    plain_spec = pytree.tree_structure(plain(sample))
    if plain_spec == spec:
        return compiled
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in compiled.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.set_codegen(type(compiled.graph._codegen)(info._replace(out_spec=plain_spec)))  # type: ignore[call-arg]
    return fx.GraphModule(compiled, graph)


def plain(value: Any) -> Any:
    """Rebuilds nested containers from dict, list and tuple; leaves stay, in the same order.

    Args:
        value: Anything; a dataclass becomes a dict, any other container that PyTorch knows a tuple of its leaves.
    """
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if pytree.tree_structure(value).is_leaf():
        return value
    return tuple(pytree.tree_leaves(value))


def raise_extents(
    compiled: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replaces examples whose dynamic dimensions are so small that export would take them as fixed.

    Args:
        compiled: The module; its signature tells which input a name belongs to.
        args: Positional examples.
        kwargs: Keyword examples.
        dynamic_shapes: Dynamic dimensions by parameter name; another form leaves the examples as they are.
    """
    if not isinstance(dynamic_shapes, Mapping):
        return args, kwargs
    names = [name for name in inspect.signature(compiled.forward).parameters if name not in kwargs]
    raised = [_raise(value, dynamic_shapes.get(name)) for name, value in zip(names, args, strict=False)]
    return (*raised, *args[len(raised) :]), {
        name: _raise(value, dynamic_shapes.get(name)) for name, value in kwargs.items()
    }


def _raise(value: Any, dims: Any) -> Any:
    if isinstance(value, torch.Tensor):
        axes = [axis for axis in dims or () if isinstance(axis, int) and value.shape[axis] < LEAST_DYNAMIC]
        if not axes:
            return value
        shape = [LEAST_DYNAMIC if axis in axes else extent for axis, extent in enumerate(value.shape)]
        return value.new_zeros(shape)
    if isinstance(value, (list, tuple)) and isinstance(dims, (list, tuple)):
        return type(value)(_raise(item, dim) for item, dim in zip(value, dims, strict=True))
    if isinstance(value, dict) and isinstance(dims, Mapping):
        return {name: _raise(item, dims.get(name)) for name, item in value.items()}
    return value
