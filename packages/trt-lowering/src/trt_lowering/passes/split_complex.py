"""Splits complex tensors into real and imaginary parts, and turns short Fourier transforms into products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.verdicts import LEFT_COMPLEX
from trt_lowering.complex_rules import Emitter, NotExpressible, Parts, first_call, rule_of
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import fake_mode_of
from trt_lowering.operator_traits import is_kept_in_torch
from trt_lowering.results import base_of, views_of_results

aten = torch.ops.aten


class SplitComplex(GraphPass):
    """Rewrites computations in complex64 as ones on pairs of float32 tensors, which engines can run.

    A region is what hangs together by complex tensors, from the operators that make them of real ones to those that
    make real ones of them. It is rewritten as a whole, or stays as it is, with a note on its nodes that says why: half
    of it would only move numbers to and fro. Complex inputs and results of the graph are taken apart and put together
    in PyTorch, at the ends of a region.

    Requires: values on nodes.
    Ensures: values on nodes; a region that is left has notes.

    Args:
        settings: Operators in `torch_executed_ops` stay, and their regions with them.
    """

    name = "split_complex"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings

    def call(self, gm: fx.GraphModule) -> int:
        """Finds regions, and rewrites each."""
        if not any(_is_complex(node) for node in gm.graph.nodes):
            return 0
        mode = fake_mode_of(gm.graph)
        if mode is None:
            return 0
        changes = 0
        emit = Emitter(gm, mode)
        for region in _find_regions(gm.graph):
            emit.begin()
            try:
                self._require_rewritable(gm.graph, region)
                parts = self._write(gm.graph, region, emit)
            except NotExpressible as error:
                emit.take_back()
                for node in region:
                    node.meta[LEFT_COMPLEX] = str(error)
                continue
            self._replace(gm.graph, region, parts, emit)
            changes += len(region)
        return changes

    def _require_rewritable(self, graph: fx.Graph, region: list[fx.Node]) -> None:
        members = set(region)
        for node in region:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_complex() and value.dtype is not torch.complex64:
                raise NotExpressible(f"{node.name} of {value.dtype}")
            if node.op == "call_function" and rule_of(node.target) is None:
                raise NotExpressible(f"{node.target} of complex tensors, which has no form in real ones")
            if node.op == "call_function" and is_kept_in_torch(node.target, self._settings):
                raise NotExpressible(f"{node.target}, which torch_executed_ops keeps in PyTorch")
        bases: set[fx.Node] = set()
        for result, chain in views_of_results(graph).items():
            base = base_of(result)
            if not members.intersection((result, base, *chain)):
                continue
            if base not in members or base.op != "call_function" or base in bases:
                raise NotExpressible(f"{result.name}, a result in the memory of another tensor")
            bases.add(base)

    def _write(self, graph: fx.Graph, region: list[fx.Node], emit: Emitter) -> dict[fx.Node, Any]:
        """Writes a region in real numbers, and returns what stands for each of its nodes."""
        parts: dict[fx.Node, Any] = {}
        for node in region:
            if node.op != "call_function":
                emit.stand_at(node, before=first_call(graph) if node.op == "placeholder" else node.next)
                pair = emit(aten.view_as_real.default, node)
                last = pair.meta["val"].dim() - 1
                parts[node] = Parts(*(emit(aten.select.int, pair, last, index) for index in (0, 1)))
                continue
            emit.stand_at(node)
            seen = _half_of_view(node)
            if seen is not None and isinstance(parts.get(seen[0]), Parts):
                found = parts[seen[0]]
                parts[node] = emit.imaginary(found) if seen[1] else found.real
                continue
            rule = rule_of(node.target)
            assert rule is not None
            args: Any = fx.map_arg(node.args, lambda operand: parts.get(operand, operand))
            kwargs: Any = fx.map_arg(node.kwargs, lambda operand: parts.get(operand, operand))
            parts[node] = rule(emit, node, tuple(args), dict(kwargs))
        return parts

    def _replace(self, graph: fx.Graph, region: list[fx.Node], parts: dict[fx.Node, Any], emit: Emitter) -> None:
        output = graph.output_node()
        returned = set(output.all_input_nodes)
        for node in reversed(region):
            if node.op != "call_function":
                continue
            found = parts[node]
            if isinstance(found, fx.Node):
                node.replace_all_uses_with(found)
            elif node in returned:
                emit.stand_at(node, before=output)
                whole = emit(aten.complex.default, found.real, emit.imaginary(found))
                output.replace_input_with(node, whole)
            graph.erase_node(node)


def _find_regions(graph: fx.Graph) -> list[list[fx.Node]]:
    """Returns what hangs together by complex tensors, each in the order of the graph.

    At least one node is a call that has both real and complex tensors around it.
    """
    leader: dict[fx.Node, fx.Node] = {}

    def find(node: fx.Node) -> fx.Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in graph.nodes:
        operands = [operand for operand in node.all_input_nodes if _is_complex(operand)]
        if node.op == "output" or not (operands or _is_complex(node)):
            continue
        leader[node] = node
        for operand in operands:
            leader[find(operand)] = find(node)
        seen = _half_of_view(node)
        if seen is not None and seen[0] in leader:
            leader[find(seen[0])] = find(node)
    regions: dict[fx.Node, list[fx.Node]] = {}
    for node in leader:
        regions.setdefault(find(node), []).append(node)
    return [region for region in regions.values() if any(map(_crosses, region))]


def _crosses(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    tensors = [operand for operand in node.all_input_nodes if isinstance(operand.meta.get("val"), torch.Tensor)]
    return not _is_complex(node) or not any(map(_is_complex, tensors))


def _half_of_view(node: fx.Node) -> tuple[fx.Node, int] | None:
    """Returns the complex tensor, and 0 or 1, where a node takes the real or imaginary part of `view_as_real`."""
    if node.target is not aten.select.int or not isinstance(node.args[0], fx.Node):
        return None
    view, dim, index = node.args
    assert isinstance(view, fx.Node)
    if view.target is not aten.view_as_real.default or not isinstance(view.args[0], fx.Node):
        return None
    last = view.meta["val"].dim() - 1
    return (view.args[0], int(index) % 2) if dim in (last, -1) else None  # type: ignore[arg-type]


def _is_complex(node: fx.Node) -> bool:
    return any(value.is_complex() for value in _tensors(node.meta.get("val")))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, torch.Tensor):
            yield item
