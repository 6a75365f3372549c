"""Levels: the numbers that decide which nodes share a block.

Every node gets a level that no dependence lowers: odd in engines, even in PyTorch. Nodes of one level form one block,
so blocks in order of their level are in topological order. Along a path, the level rises only where it changes sides.
With the lowest levels that are possible, there are as many engines as the most broken path has stretches that engines
can run, and fewer cannot be: the blocks are maximal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trt_partition.dependence import Dependences
from trt_partition.effects import Effect

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
        if effect is not Effect.NONE:
            in_torch = max(in_torch, highest if effect is Effect.MUTATION else chain)
        if kinds[node] == ENGINE:
            levels[node] = in_engine
            in_torch = in_engine + 1
        elif kinds[node] == TORCH:
            levels[node] = in_torch
            in_engine = in_torch + 1
        torch_reach[node], engine_reach[node] = in_torch, in_engine
        highest = max(highest, in_torch)
        if effect is not Effect.NONE:
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
        if effect is not Effect.NONE:
            bound = min(bound, lowest if effect is Effect.MUTATION else chain)
        if kinds[node] == ENGINE:
            bound = levels[node] - 1
        elif kinds[node] == TORCH:
            gathered[node] = bound
        allowed[node] = bound
        lowest = min(lowest, bound)
        if effect is not Effect.NONE:
            chain = bound
        if effect is Effect.MUTATION:
            ceiling = bound
    return gathered


def _with_owners(dependences: Dependences, levels: list[int]) -> list[int]:
    return [levels[owner] for owner in dependences.owner]
