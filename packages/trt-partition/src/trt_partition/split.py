"""What crosses the boundaries of blocks, and splitting a graph at them."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from trt_core import PartitionError
from trt_core.attributes import is_state, owner_of, read_attribute
from trt_core.cache_updates import note_counting
from trt_core.held_arguments import held_to_signature
from trt_core.internals import LazyGraphModule
from trt_core.operators import is_size_query
from trt_partition.effects import Effect, effect_of
from trt_partition.plan import Block, PartitionPlan
from trt_partition.sizes import (
    SIZE_OPERATOR,
    Place,
    SizeTable,
    axis_of,
    find_sizes,
    is_constant,
    is_number,
    placeholder_sizes,
)


@dataclass(frozen=True)
class Boundary:
    """What a block takes and returns.

    Attributes:
        inputs: Nodes outside the block whose values it takes, in graph order: tensors. Among them are attributes that
            the graph writes to, which are no constants. A PyTorch block may take a number, too, that comes from the
            values of a tensor, or from an input of the model that no shape tells.
        outputs: Nodes of the block whose values others take, in graph order.
        readings: Where the block reads a size, for numbers that it does not compute as the graph does.
    """

    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    readings: Mapping[fx.Node, Place]


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of all blocks.

    Attributes:
        blocks: Boundary by block name.
        root: What the root graph takes for its outputs; it has no outputs of its own.
        sizes: The nodes that compute sizes.
        homes: The block of each node that is in one, sizes apart.
    """

    blocks: Mapping[str, Boundary]
    root: Boundary
    sizes: Set[fx.Node]
    homes: Mapping[fx.Node, Block]


@held_to_signature
def find_boundaries(graph_module: fx.GraphModule, plan: PartitionPlan) -> Boundaries:
    """Finds what crosses between the blocks of a plan, in time linear in nodes plus edges.

    Raises:
        PartitionError: The plan was made for another graph.
    """
    graph = graph_module.graph
    by_name = {node.name: node for node in graph.nodes}
    position = {node: number for number, node in enumerate(graph.nodes)}
    sizes = find_sizes(graph)
    homes = _find_homes(graph, plan, by_name, sizes)
    finder = _InputFinder(sizes, placeholder_sizes(graph), position)
    found = {block.name: finder.find(_members(block, by_name, sizes)) for block in plan.blocks}
    root_inputs, root_readings = finder.find_for_root(graph.output_node())
    needed: set[fx.Node] = set(root_inputs)
    for inputs, _ in found.values():
        needed.update(inputs)
    blocks = {
        block.name: Boundary(
            found[block.name][0],
            tuple(node for node in _members(block, by_name, sizes) if node in needed),
            found[block.name][1],
        )
        for block in plan.blocks
    }
    return Boundaries(blocks, Boundary(root_inputs, (), root_readings), sizes, homes)


def _members(block: Block, by_name: Mapping[str, fx.Node], sizes: Set[fx.Node]) -> list[fx.Node]:
    return [node for node in (by_name[name] for name in block.nodes) if node not in sizes]


def _find_homes(
    graph: fx.Graph, plan: PartitionPlan, by_name: Mapping[str, fx.Node], sizes: Set[fx.Node]
) -> dict[fx.Node, Block]:
    homes: dict[fx.Node, Block] = {}
    for block in plan.blocks:
        for name in block.nodes:
            if name not in by_name:
                raise PartitionError("the plan was made for another graph", where=f"{block.name}, node {name}")
            homes[by_name[name]] = block
    for node in graph.nodes:
        if node.op == "call_function" and node not in homes and node not in sizes:
            raise PartitionError("the plan was made for another graph", where=f"node {node.name} is in no block")
    return homes


@dataclass(frozen=True)
class _InputFinder:
    """Finds what a set of nodes takes from outside.

    A size is read, in this order: where the graph reads it, if that tensor is in the block or taken by it anyway; from
    another tensor that the block takes anyway; from an input of the graph; from the tensor of the graph after all,
    which becomes one more input of the block.
    """

    sizes: Set[fx.Node]
    inputs: SizeTable
    position: Mapping[fx.Node, int]

    def find(self, members: Iterable[fx.Node]) -> tuple[tuple[fx.Node, ...], dict[fx.Node, Place]]:
        inside = dict.fromkeys(members)
        taken: dict[fx.Node, None] = {}
        numbers: list[fx.Node] = []
        for node in inside:
            for operand in node.all_input_nodes:
                if self._is_number(operand) and operand not in inside:
                    numbers.append(operand)
                elif operand not in inside and (operand.op != "get_attr" or is_state(operand)):
                    taken[operand] = None
        readings = self._place(numbers, inside.keys(), taken)
        return tuple(sorted(taken, key=self.position.__getitem__)), readings

    def find_for_root(self, output: fx.Node) -> tuple[tuple[fx.Node, ...], dict[fx.Node, Place]]:
        numbers: list[fx.Node] = []
        taken: dict[fx.Node, None] = {}
        for operand in output.all_input_nodes:
            if operand in self.sizes:
                numbers.append(operand)
            elif operand.op != "get_attr":
                taken[operand] = None
        readings = self._place(numbers, frozenset(), taken)
        return tuple(sorted(taken, key=self.position.__getitem__)), readings

    def _is_number(self, node: fx.Node) -> bool:
        if node in self.sizes:
            return True
        return node.op in ("placeholder", "call_function") and is_number(node.meta.get("val"))

    def _place(self, numbers: list[fx.Node], inside: Set[fx.Node], taken: dict[fx.Node, None]) -> dict[fx.Node, Place]:
        """Decides where each number comes from; adds to `taken` what is needed for it."""
        readings: dict[fx.Node, Place] = {}
        if not numbers:
            return readings
        at_hand = SizeTable(taken)
        seen: set[fx.Node] = set()
        pending = list(reversed(numbers))
        while pending:
            node = pending.pop()
            if node in seen or node in inside:
                continue
            seen.add(node)
            value = node.meta.get("val")
            if is_constant(value) and (node in self.sizes or node.op == "placeholder"):
                continue
            if node in self.sizes and not is_size_query(node.target):
                pending.extend(reversed(node.all_input_nodes))
                continue
            source = node.all_input_nodes[0] if node in self.sizes else None
            if source is not None and (source in inside or source in taken or source.op == "get_attr"):
                continue
            place = at_hand.find(value) or self.inputs.find(value)
            if place is not None:
                readings[node] = place
                taken.setdefault(place[0])
            else:
                taken.setdefault(node if source is None else source)
        return readings


@held_to_signature
def split_into_blocks(graph_module: fx.GraphModule, plan: PartitionPlan) -> fx.GraphModule:
    """Splits a graph as a plan says. The given graph stays as it is; parameters are shared, not copied.

    Args:
        graph_module: The graph that the plan was made for.
        plan: What `make_plan` returned.

    Returns:
        A module that is called like the given one. Its children are graph modules by block name, in topological
        order. Each takes tensors as positional arguments, in the order of the graph, and returns a tensor, or a tuple
        of them unless it is exactly one. Parameters and constants are attributes of the children that use them, under
        the names they had. Sizes are computed in every block that needs them; a PyTorch block takes a number only
        where no shape tells it. Nodes keep their names and metadata.

    Raises:
        PartitionError: The plan was made for another graph.
    """
    boundaries = find_boundaries(graph_module, plan)
    nodes = {node.name: node for node in graph_module.graph.nodes}
    owner = torch.nn.Module()
    engines = set(plan.engines)  # seldom called: an engine takes their place
    root = _GraphWriter(graph_module, boundaries.root.readings)
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            root.copy(node)
    for block in plan.blocks:
        boundary = boundaries.blocks[block.name]
        members = [nodes[name] for name in block.nodes if nodes[name] not in boundaries.sizes]
        kind = LazyGraphModule if block in engines else fx.GraphModule
        child = _write_child(kind, graph_module, block.name, members, boundary)
        owner.add_module(block.name, child)
        root.call(block.name, boundary)
    root.copy(graph_module.graph.output_node())
    codegen = getattr(graph_module.graph, "_codegen", None)
    if codegen is not None:
        root.graph.set_codegen(copy.copy(codegen))
    _share_attributes(graph_module, owner, root.graph)
    result = fx.GraphModule(owner, root.graph, class_name=type(graph_module).__name__)
    result.meta.update(graph_module.meta)
    result.train(graph_module.training)
    result.graph.lint()
    return result


def _write_child(
    kind: type[fx.GraphModule], graph_module: fx.GraphModule, name: str, members: list[fx.Node], boundary: Boundary
) -> fx.GraphModule:
    writer = _GraphWriter(graph_module, boundary.readings)
    for node in boundary.inputs:
        writer.take(node)
    for node in members:
        writer.copy(node)
    outputs = tuple(writer.copies[node] for node in boundary.outputs)
    writer.graph.output(outputs[0] if len(outputs) == 1 else outputs)
    child = kind(graph_module, writer.graph, class_name=name)
    if any(effect_of(node) is not Effect.NONE for node in members):
        child.__dict__["_is_impure"] = True  # keeps dead code elimination from dropping a call whose result nobody uses
    child.train(graph_module.training)
    child.graph.lint()
    return child


@dataclass
class _GraphWriter:
    """Writes nodes of one graph into a new one, with the sizes and attributes that they need.

    Attributes:
        source: Owner of the graph that is read.
        readings: Where sizes are read instead of where the source reads them.
        graph: What is written.
        copies: New nodes by source node.
    """

    source: fx.GraphModule
    readings: Mapping[fx.Node, Place]
    graph: fx.Graph = field(default_factory=fx.Graph)
    copies: dict[fx.Node, Any] = field(default_factory=dict)

    def take(self, node: fx.Node) -> None:
        """Makes a node of the source an input."""
        placeholder = self.graph.create_node("placeholder", node.name, name=node.name)
        placeholder.meta = copy.copy(node.meta)
        note_counting(placeholder, node)
        self.copies[node] = placeholder

    def copy(self, node: fx.Node) -> None:
        """Copies a node, behind whatever it needs that belongs to no block."""
        for operand in node.all_input_nodes:
            self._provide(operand)
        self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)

    def call(self, name: str, boundary: Boundary) -> None:
        """Calls a child and unpacks its results. Attributes that the graph writes to stay here, with one owner."""
        for node in boundary.inputs:
            self._provide(node)
        arguments = tuple(self.copies[node] for node in boundary.inputs)
        call = self.graph.create_node("call_module", name, arguments, name=name)
        values = tuple(node.meta.get("val") for node in boundary.outputs)
        if len(values) == 1:
            call.meta["val"] = values[0]
            self.copies[boundary.outputs[0]] = call
            return
        call.meta["val"] = values
        for position, node in enumerate(boundary.outputs):
            result = self.graph.create_node("call_function", operator.getitem, (call, position), name=node.name)
            result.meta = copy.copy(node.meta)
            self.copies[node] = result

    def _provide(self, node: fx.Node) -> None:
        """Makes sure that a size, a constant or an attribute has been written; everything else is there already."""
        pending = [node]
        while pending:
            current = pending[-1]
            if current in self.copies:
                pending.pop()
            elif current in self.readings:
                self._read_size(current)
            elif current.op == "get_attr":
                self.copies[current] = self.graph.node_copy(current)
            elif is_constant(current.meta.get("val")):
                self.copies[current] = current.meta["val"]
            else:
                missing = [operand for operand in current.all_input_nodes if operand not in self.copies]
                if missing:
                    pending.extend(missing)
                else:
                    self.copies[current] = self.graph.node_copy(current, self.copies.__getitem__)

    def _read_size(self, node: fx.Node) -> None:
        tensor, axis = self.readings[node]
        if axis_of(node) == axis and node.args[0] is tensor:
            self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
            return
        reading = self.graph.create_node("call_function", SIZE_OPERATOR, (self.copies[tensor], axis), name=node.name)
        reading.meta = copy.copy(node.meta)
        self.copies[node] = reading


def _share_attributes(source: fx.GraphModule, target: torch.nn.Module, graph: fx.Graph) -> None:
    """Gives the root module what its own graph names: parameters and constants that the model returns as they are."""
    for node in graph.nodes:
        if node.op != "get_attr":
            continue
        holder, name = owner_of(target, str(node.target))
        value = read_attribute(source, str(node.target))
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            holder.register_buffer(name, value)
        else:
            setattr(holder, name, value)
