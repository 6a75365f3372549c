"""Dependences between the `call_function` nodes of a graph, as integer lists that passes run over quickly."""

from __future__ import annotations

import operator
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import fx

from trt_core.process_groups import is_collective, is_wait
from trt_partition.effects import Effect, effect_of
from trt_partition.sizes import SizeTable, find_sizes, placeholder_sizes, reads_shape


@dataclass(frozen=True)
class Dependences:
    """The graph as lists over the index of a `call_function` node in graph order.

    Attributes:
        nodes: The nodes.
        before: Indices of the nodes that each node takes results of, and of a collective the collective before it.
        after: Indices of the nodes that take its result.
        owner: Index of the node that a node cannot be parted from: the producer of the tuple for an unpacking
            `getitem`, since tuples do not cross between blocks; the collective for what waits for it; its own index for
            any other node.
        is_size: Whether the node computes a size, which every block does for itself.
        effects: What the node does besides computing.
        is_live: Whether an output or an effect depends on the node.
    """

    nodes: tuple[fx.Node, ...]
    before: list[list[int]]
    after: list[list[int]]
    owner: list[int]
    is_size: list[bool]
    effects: list[Effect]
    is_live: list[bool]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def edges(self) -> int:
        """Number of dependences."""
        return sum(map(len, self.before))

    @staticmethod
    def of_graph(graph: fx.Graph, sizes: Set[fx.Node], inputs: SizeTable) -> Dependences:
        """Reads the dependences of a graph.

        A size that an input of the graph tells depends on nothing, whichever tensor the graph reads it from.

        Args:
            graph: A flat graph.
            sizes: What `find_sizes` returned for it.
            inputs: What `placeholder_sizes` returned for it.
        """
        nodes = tuple(node for node in graph.nodes if node.op == "call_function")
        index = {node: position for position, node in enumerate(nodes)}
        before: list[list[int]] = []
        after: list[list[int]] = [[] for _ in nodes]
        owner = list(range(len(nodes)))
        last_collective: list[int] = []
        for position, node in enumerate(nodes):
            operands = [] if _told_by_input(node, inputs) else node.all_input_nodes
            taken = [index[operand] for operand in operands if operand in index]
            if is_collective(node):  # every rank runs them in one order, whatever its blocks are
                taken += [other for other in last_collective if other not in taken]
                last_collective = [position]
            before.append(taken)
            for operand in taken:
                after[operand].append(position)
            if node not in sizes and (_unpacks(node) or is_wait(node)) and taken:
                owner[position] = owner[taken[0]]
        effects = [effect_of(node) for node in nodes]
        return Dependences(
            nodes=nodes,
            before=before,
            after=after,
            owner=owner,
            is_size=[node in sizes for node in nodes],
            effects=effects,
            is_live=_find_live(graph, nodes, index, effects),
        )


def read_dependences(graph: fx.Graph) -> Dependences:
    """Reads the dependences of a graph whose sizes have not been looked for yet."""
    return Dependences.of_graph(graph, find_sizes(graph), placeholder_sizes(graph))


def _told_by_input(node: fx.Node, inputs: SizeTable) -> bool:
    return reads_shape(node) and inputs.find(node.meta.get("val")) is not None


def _unpacks(node: fx.Node) -> bool:
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return not isinstance(node.args[0].meta.get("val"), torch.Tensor)


def _find_live(
    graph: fx.Graph, nodes: tuple[fx.Node, ...], index: dict[fx.Node, int], effects: list[Effect]
) -> list[bool]:
    live = [effect is not Effect.NONE for effect in effects]
    for operand in graph.output_node().all_input_nodes:
        if operand in index:
            live[index[operand]] = True
    for position in reversed(range(len(nodes))):
        if live[position]:
            for operand in nodes[position].all_input_nodes:
                if operand in index:
                    live[index[operand]] = True
    return live
