"""How new nodes inherit where they come from, and how equal two fake values are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import FakeTensor, FakeTensorMode, pytree
from trt_core.nesting import tensors_in
from trt_core.precision import EXCLUDED
from trt_core.sizes.expressions import is_same_size

CASTS: Final = frozenset({torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype})
"""Operators by which a graph changes the element type of a tensor."""

STATE: Final = "is_state"
"""Key in `node.meta` of an input or attribute whose next value may be among the results."""

_NUMBERS: Final = frozenset({int})
_PROVENANCE = ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn", "custom", EXCLUDED)


def provenance_of(node: fx.Node) -> dict[str, Any]:
    """Returns the metadata that says where a node comes from, and so what holds for the nodes that take its place."""
    meta = node.meta
    return {key: meta[key] for key in _PROVENANCE if key in meta}


def insert_call(
    graph: fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    value: Any,
    origin: fx.Node | None,
) -> fx.Node:
    """Adds a call at the graph's insertion point.

    Args:
        graph: The graph.
        target: What is called.
        args: Positional arguments.
        kwargs: Keyword arguments.
        value: What the call returns, for `meta["val"]`.
        origin: The node whose place in the model's code the call inherits.
    """
    node = graph.call_function(target, args, kwargs or {})
    if origin is not None:
        node.meta.update(provenance_of(origin))
    node.meta["val"] = value
    return node


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """Returns the mode that the graph's fake tensors belong to, None when the graph has no fake tensor."""
    tensors = (item for node in graph.nodes for item in tensors_in(node.meta.get("val")))
    return next((item.fake_mode for item in tensors if isinstance(item, FakeTensor)), None)


def same_shape(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have equal shapes, symbols included."""
    return left.dim() == right.dim() and all(map(is_same_size, left.shape, right.shape))


def same_layout(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors agree in shape, strides, element type and device."""
    return (
        left.dtype == right.dtype
        and left.device == right.device
        and same_shape(left, right)
        and all(map(is_same_size, left.stride(), right.stride()))
    )


def graph_results(graph: fx.Graph) -> tuple[Any, ...]:
    """Returns what a graph with a flat output, or with a single one, returns: nodes and constants."""
    result: Any = graph.output_node().args[0]
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def cast_value(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a fake tensor like `value`, of another element type."""
    assert isinstance(value, FakeTensor)
    with value.fake_mode, torch.no_grad():
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)


def settle_extents(graph: fx.Graph, known: Mapping[Any, int] | None = None) -> None:
    """Puts numbers in the place of symbolic integers that are numbers, in the values of all nodes.

    Args:
        graph: The graph.
        known: Symbols whose value is fixed; it is the value that they had when the graph was captured.
    """
    settling = _Settling(known or {})
    for node in graph.nodes:
        value = node.meta.get("val")
        if value is not None and any(map(settling.changes, pytree.tree_leaves(value))):
            node.meta["val"] = pytree.tree_map(settling.value, value)


class _Settling:
    """Settles values, given what symbols are known."""

    def __init__(self, known: Mapping[Any, int]) -> None:
        self._known = dict(known)

    def changes(self, value: Any) -> bool:
        """Whether something in a leaf of a value is no longer what it looks like."""
        if isinstance(value, FakeTensor):
            if value.layout is not torch.strided:
                return False
            extents = (*value.shape, *value.stride())
            return not {*map(type, extents)} <= _NUMBERS and any(
                self._number(extent) is not extent for extent in extents
            )
        return self._number(value) is not value

    def value(self, value: Any) -> Any:
        """Returns a leaf of a value as it is now."""
        if not self.changes(value):
            return value
        if not isinstance(value, FakeTensor):
            return self._number(value)
        shape, strides = list(map(self._number, value.shape)), list(map(self._number, value.stride()))
        with value.fake_mode, torch.no_grad():
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

    def _number(self, extent: Any) -> Any:
        if not isinstance(extent, torch.SymInt):
            return extent
        expr = extent.node.expr
        if self._known and expr.free_symbols & self._known.keys():
            expr = expr.subs(self._known)
            if not expr.is_Integer:
                return extent.node.shape_env.create_symintnode(expr, hint=extent.node.hint)
        return int(expr) if expr.is_Integer else extent
