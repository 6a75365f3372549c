"""Cuts the views of results off a functional graph, so that PyTorch makes them from what the engines return.

An engine returns fresh dense tensors. What `backend="aot_eager"` returns may be more: two results that share memory, a
view of an input, a transposed or a channels-last tensor. All of these are views at the end of the graph, which cost
next to nothing in PyTorch.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_core.extents import Extent, evaluate_extent, extent_of, symbols_in
from trt_core.internals import OpOverload, statically_known_true
from trt_frontends.layouts import memory_order


@dataclass(frozen=True)
class CutGraph:
    """A functional graph in two parts.

    Attributes:
        body: Takes what the graph took; returns tensors of which each owns its memory, and numbers.
        tail: Makes the results of the graph out of its inputs at `inputs`, followed by all that the body returns.
            None where the body returns the results as they are.
        inputs: Positions of the graph's inputs that the tail takes.
    """

    body: fx.GraphModule
    tail: fx.GraphModule | None
    inputs: tuple[int, ...]


def cut_output_views(gm: fx.GraphModule) -> CutGraph:
    """Cuts a graph before the views that its results are.

    A view stays in the body where nobody can tell: it is alone on its memory, starts where that starts, and is dense.

    Args:
        gm: A functional graph of ATen operators with a flat output; it is not changed, and its tensors are shared.
    """
    graph = copy.deepcopy(gm.graph)
    output = graph.output_node()
    results: Sequence[Any] = output.args[0]  # type: ignore[assignment]
    owners = Counter(_base(item) for item in results if _tensor(item) is not None)
    writer = _TailWriter(graph)
    made: list[Any] = []
    for item in results:
        if _tensor(item) is None:
            made.append(writer.take(item) if isinstance(item, fx.Node) else item)
            continue
        base = _base(item)
        if owners[base] == 1 and base.op != "placeholder" and _is_plain(item.meta["val"]):
            made.append(writer.take(item))
        else:
            made.append(writer.replay(item))
    if not writer.is_needed:
        return CutGraph(fx.GraphModule(gm, graph), None, ())
    tail = writer.finish(made)
    output.args = (tuple(writer.results),)
    positions = {node: position for position, node in enumerate(graph.find_nodes(op="placeholder"))}
    return CutGraph(fx.GraphModule(gm, graph), tail, tuple(positions[node] for node in writer.inputs))


class _TailWriter:
    """Writes the graph of views that follows the body.

    Args:
        source: The graph that is cut.

    Attributes:
        inputs: Inputs of the source that the tail takes, in order.
        results: What the body must return, in order.
        is_needed: Whether any result differs from what the body returns.
    """

    def __init__(self, source: fx.Graph) -> None:
        self.inputs: list[fx.Node] = []
        self.results: list[fx.Node] = []
        self.is_needed = False
        self._source = source
        self._graph = fx.Graph()
        # placeholders go before these two marks: inputs before the first, results of the body before the second
        self._marks = [self._graph.create_node("placeholder", name) for name in ("inputs", "results")]
        self._copies: dict[fx.Node, fx.Node] = {}

    def take(self, node: fx.Node) -> fx.Node:
        """Makes a node of the source an input of the tail."""
        if node in self._copies:
            self.is_needed = True  # a result that is returned twice
            return self._copies[node]
        is_input = node.op == "placeholder"
        self.is_needed = self.is_needed or is_input
        (self.inputs if is_input else self.results).append(node)
        with self._graph.inserting_before(self._marks[0 if is_input else 1]):
            taken = self._graph.create_node("placeholder", node.name, name=node.name)
        self._copies[node] = taken
        return taken

    def replay(self, node: fx.Node) -> fx.Node:
        """Copies a result with its views, down to the tensor that owns the memory."""
        self.is_needed = True
        chain = [node]
        while (viewed := _viewed(chain[-1])) is not None:
            chain.append(viewed)
        base = chain.pop()
        if base not in self._copies:
            taken = self.take(base)
            if base.op != "placeholder" and not _is_plain(base.meta["val"]):
                self._copies[base] = self._lay_out(taken, base.meta["val"])
        for view in reversed(chain):
            if view not in self._copies:
                for operand in view.all_input_nodes:
                    self._provide(operand)
                self._copies[view] = self._graph.node_copy(view, self._copies.__getitem__)
        return self._copies[node]

    def finish(self, results: Sequence[Any]) -> fx.GraphModule:
        """Returns the tail."""
        for mark in self._marks:
            self._graph.erase_node(mark)
        self._graph.output(tuple(results))
        return fx.GraphModule(torch.nn.Module(), self._graph)

    def _provide(self, node: fx.Node) -> None:
        """Makes a number that a view is taken with available: computed again from numbers, else taken."""
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [operand for operand in current.all_input_nodes if operand not in self._copies]
            if current in self._copies:
                pending.pop()
            elif current.op != "call_function" or not all(map(_is_number, current.all_input_nodes)):
                self.take(pending.pop())
            elif missing:
                pending.extend(missing)
            else:
                self._copies[current] = self._graph.node_copy(pending.pop(), self._copies.__getitem__)

    def _lay_out(self, taken: fx.Node, value: torch.Tensor) -> fx.Node:
        strides = [extent_of(stride) for stride in value.stride()]
        symbols: dict[str, fx.Node] = {}
        for name in sorted(set().union(*(symbols_in(stride) for stride in strides))):
            found = self._read_symbol(name)
            if found is None:  # a size that follows from data
                return self._lay_out_densely(taken, value)
            symbols[name] = found
        if any(stride is None for stride in strides):
            return self._lay_out_densely(taken, value)
        return self._graph.call_function(lay_out, (taken, strides, symbols))

    def _lay_out_densely(self, taken: fx.Node, value: torch.Tensor) -> fx.Node:
        order = memory_order(value)
        return taken if order is None else self._graph.call_function(lay_out_densely, (taken, order))

    def _read_symbol(self, name: str) -> fx.Node | None:
        for node in self._source.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and str(value.node.expr) == name:
                self._provide(node)
                return self._copies[node]
            if isinstance(value, torch.Tensor):
                for axis, extent in enumerate(value.shape):
                    if isinstance(extent, torch.SymInt) and str(extent.node.expr) == name:
                        self._provide(node)
                        return self._graph.call_function(torch.ops.aten.sym_size.int, (self._copies[node], axis))
        return None


def lay_out(value: torch.Tensor, strides: Sequence[Extent], symbols: Mapping[str, int]) -> torch.Tensor:
    """Returns a tensor with the strides that eager execution gives it; a copy only where it has to be one.

    Args:
        value: A tensor that owns its memory.
        strides: The strides, symbolic where they depend on sizes.
        symbols: Values of the symbols in them.
    """
    wanted = tuple(int(evaluate_extent(stride, symbols)) for stride in strides)
    if value.stride() == wanted:
        return value
    pairs = zip(value.shape, value.stride(), wanted, strict=True)
    if value.numel() == 0 or all(extent == 1 or mine == other for extent, mine, other in pairs):
        return value.as_strided(value.shape, wanted)
    return torch.empty_strided(value.shape, wanted, dtype=value.dtype, device=value.device).copy_(value)


def lay_out_densely(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Returns a tensor whose memory is dense, its axes in some order; a copy only where it has to be one.

    Args:
        value: A tensor that owns its memory.
        order: The axes, the one whose elements lie next to each other last.
    """
    strides, stride = {}, 1
    for axis in reversed(order):
        strides[axis] = stride
        stride *= max(value.shape[axis], 1)
    return lay_out(value, [strides[axis] for axis in range(value.dim())], {})


def borrowed_results(gm: fx.GraphModule) -> frozenset[int]:
    """Returns the positions of results that may lie in memory of an input, of a constant or of an earlier result.

    Lowering folds what is constant and removes copies that change nothing, so a tensor that the body was cut to own
    may have become a constant, or an input.

    Args:
        gm: The lowered body.
    """
    found = set()
    seen: set[fx.Node] = set()
    results: Sequence[Any] = gm.graph.output_node().args[0]  # type: ignore[assignment]
    for position, item in enumerate(results):
        if _tensor(item) is None:
            continue
        base = _base(item)
        if base in seen or base.op in ("placeholder", "get_attr"):
            found.add(position)
        seen.add(base)
    return frozenset(found)


def _viewed(node: fx.Node) -> fx.Node | None:
    """Returns the node that a node is a view of, None for one that owns its memory."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if node.target is operator.getitem:
        return source if _viewed(source) is not None else None
    if not isinstance(node.target, OpOverload):
        return None
    returns = node.target._schema.returns
    is_view = any(item.alias_info is not None and not item.alias_info.is_write for item in returns)
    return source if is_view else None


def _base(node: fx.Node) -> fx.Node:
    while (viewed := _viewed(node)) is not None:
        node = viewed
    return node


def _tensor(item: Any) -> torch.Tensor | None:
    value = item.meta.get("val") if isinstance(item, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (int, torch.SymInt))


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is dense and starts where its memory starts."""
    if value.layout is not torch.strided:
        return True
    if not statically_known_true(value.storage_offset() == 0):
        return False
    expected: Any = 1
    for extent, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * extent
    return True
