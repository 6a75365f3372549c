"""Inputs and outputs of compiled modules in a form that any process can load and any batch can use."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from trt_core.internals import pytree
from trt_core.nesting import LEAST_DYNAMIC, children_of


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
    plain_spec = pytree.tree_structure(plain_tree(spec, itertools.count()))
    if plain_spec == spec:
        return compiled
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in compiled.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.set_codegen(type(compiled.graph._codegen)(info._replace(out_spec=plain_spec)))  # type: ignore[call-arg]
    return fx.GraphModule(compiled, graph)


def plain_tree(spec: Any, leaves: Iterator[Any]) -> Any:
    """Nests leaves as a structure does, in dicts, lists and tuples alone.

    Args:
        spec: How PyTorch takes a value apart. A class whose parts have names (a mapping, a dataclass, a cache of
            transformers) becomes a dict, any other container a tuple.
        leaves: What to put in the places of leaves, in order.
    """
    if spec.is_leaf():
        return next(leaves)
    children = [plain_tree(child, leaves) for child in children_of(spec)]
    if spec.type is list:
        return children
    names = names_of_parts(spec)
    if names is None:
        return tuple(children)
    named = dict(zip(names, children, strict=True))
    kind: Any = spec.type
    is_mapping = isinstance(kind, type) and issubclass(kind, Mapping)
    if dataclasses.is_dataclass(kind) and not is_mapping:
        known = [field.name for field in dataclasses.fields(kind)]
        return {name: named.get(name) for name in [*known, *(name for name in named if name not in known)]}
    return named


def names_of_parts(spec: Any) -> list[Any] | None:
    """Names of the parts of a container, in the order of its parts; None where they have none.

    PyTorch keeps the keys of a mapping beside its values, and the fields of a dataclass and of what is registered like
    one as a pair: those that are there, and those that are None.
    """
    count, context = len(children_of(spec)), spec.context
    if isinstance(spec.type, type) and issubclass(spec.type, defaultdict):
        context = context[1]
    is_mapping = isinstance(spec.type, type) and issubclass(spec.type, Mapping)
    candidates = [context, context[0] if isinstance(context, (list, tuple)) and context else None]
    for names in candidates:
        fits = isinstance(names, (list, tuple)) and len(names) == count
        if fits and (is_mapping or (count and all(isinstance(name, str) for name in names))):
            return list(names)
    return [] if is_mapping or dataclasses.is_dataclass(spec.type) else None


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
