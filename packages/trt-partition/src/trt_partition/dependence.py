"""Dependences between the `call_function` nodes of a graph, and the levels that follow, as integer lists.

Every node gets a level that no dependence lowers: odd in engines, even in PyTorch. Nodes of one level form one block,
so blocks in order of their level are in topological order. Along a path, the level rises only where it changes sides.
With the lowest levels that are possible, there are as many engines as the most broken path has stretches that engines
can run, and fewer cannot be: the blocks are maximal.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

from trt_core.operators import is_size_query
from trt_core.process_groups import is_collective, is_wait
from trt_partition.effects import Effect, effect_of
from trt_partition.sizes import SizeTable, find_sizes, placeholder_sizes


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
    return is_size_query(node.target) and inputs.find(node.meta.get("val")) is not None


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


ENGINE: Final = 1
TORCH: Final = 0
PASSIVE: Final = -1
"""Nodes without a level of their own: sizes, and what unpacks a tuple."""

_LOWEST: Final = (0, 1)


@dataclass(frozen=True)
class Ordering:
    """Dependences as one direction sees them: forward as they are, backward with everything reversed.

    Attributes:
        before: Indices of the nodes that must not have a higher level.
        after: Indices of the nodes that must not have a lower one.
        order: Indices so that what is in `before` comes first.
        effects: Effects by index.
    """

    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]
    order: Sequence[int]
    effects: Sequence[Effect]

    @staticmethod
    def forward(dependences: Dependences) -> Ordering:
        """Levels count from the inputs: everything runs as early as it can."""
        order = range(len(dependences))
        return Ordering(dependences.before, dependences.after, order, dependences.effects)

    @staticmethod
    def backward(dependences: Dependences) -> Ordering:
        """Levels count from the outputs: everything runs as late as it can."""
        order = range(len(dependences) - 1, -1, -1)
        return Ordering(dependences.after, dependences.before, order, dependences.effects)


def earliest_levels(dependences: Dependences, kinds: Sequence[int]) -> list[int]:
    """Returns levels that put everything in engines as early as possible.

    Args:
        dependences: The graph.
        kinds: `ENGINE`, `TORCH` or `PASSIVE` by index.

    Returns:
        Levels by index; -1 for sizes, the level of its producer for what unpacks a tuple. What runs in PyTorch is
        moved as late as engines allow, so that it gathers in few blocks.
    """
    ordering = Ordering.forward(dependences)
    return _with_owners(dependences, _gather(ordering, kinds, _lowest(ordering, kinds)))


def latest_levels(dependences: Dependences, kinds: Sequence[int]) -> list[int]:
    """Returns levels that put everything in engines as late as possible; see `earliest_levels`."""
    ordering = Ordering.backward(dependences)
    reversed_levels = _gather(ordering, kinds, _lowest(ordering, kinds))
    top = max(reversed_levels, default=0)
    top += top % 2
    levels = [top - level if level >= 0 else -1 for level in reversed_levels]
    return _with_owners(dependences, levels)


def _lowest(ordering: Ordering, kinds: Sequence[int]) -> list[int]:
    """The lowest levels, in one pass.

    For each node, two numbers say what level its dependents must reach: one for those in PyTorch, one for those in
    engines. Passive nodes hand on what they depend on.
    """
    count = len(kinds)
    levels = [-1] * count
    torch_reach = [_LOWEST[TORCH]] * count
    engine_reach = [_LOWEST[ENGINE]] * count
    torch_floor, engine_floor = _LOWEST
    chain = highest = 0
    for node in ordering.order:
        in_torch, in_engine = torch_floor, engine_floor
        for operand in ordering.before[node]:
            in_torch = max(in_torch, torch_reach[operand])
            in_engine = max(in_engine, engine_reach[operand])
        effect = ordering.effects[node]
        if effect.is_ordered:
            in_torch = max(in_torch, highest if effect is Effect.MUTATION else chain)
        if kinds[node] == ENGINE:
            levels[node] = in_engine
            in_torch = in_engine + 1
        elif kinds[node] == TORCH:
            levels[node] = in_torch
            in_engine = in_torch + 1
        torch_reach[node], engine_reach[node] = in_torch, in_engine
        highest = max(highest, in_torch)
        if effect.is_ordered:
            chain = in_torch
        if effect is Effect.MUTATION:
            torch_floor, engine_floor = in_torch, in_engine
    return levels


def _gather(ordering: Ordering, kinds: Sequence[int], levels: list[int]) -> list[int]:
    """Raises what runs in PyTorch to the highest level that leaves engines where they are."""
    gathered = list(levels)
    top = max((level for level, kind in zip(levels, kinds, strict=True) if kind == TORCH), default=0)
    allowed = [top] * len(levels)  # the highest level of an operand in PyTorch
    ceiling = chain = lowest = top
    for node in reversed(ordering.order):
        bound = ceiling
        for dependent in ordering.after[node]:
            bound = min(bound, allowed[dependent])
        effect = ordering.effects[node]
        if effect.is_ordered:
            bound = min(bound, lowest if effect is Effect.MUTATION else chain)
        if kinds[node] == ENGINE:
            bound = levels[node] - 1
        elif kinds[node] == TORCH:
            gathered[node] = bound
        allowed[node] = bound
        lowest = min(lowest, bound)
        if effect.is_ordered:
            chain = bound
        if effect is Effect.MUTATION:
            ceiling = bound
    return gathered


def _with_owners(dependences: Dependences, levels: list[int]) -> list[int]:
    return [levels[owner] for owner in dependences.owner]
