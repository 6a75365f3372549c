"""What crosses the boundary of each block of a plan, and where each block reads the sizes that it computes with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from torch import fx

from trt_core import PartitionError
from trt_core.attributes import is_state
from trt_core.held_arguments import held_to_signature
from trt_partition.plan import Block, PartitionPlan
from trt_partition.sizes import (
    Place,
    SizeTable,
    find_sizes,
    is_constant,
    is_number,
    placeholder_sizes,
    reads_shape,
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
            if node in self.sizes and not reads_shape(node):
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
