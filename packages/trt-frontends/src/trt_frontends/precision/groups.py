"""Groups of operators whose precision is decided together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torch import fx

from trt_core import operator_name
from trt_core.provenance import module_path, node_location
from trt_partition.computation import counts_as_computation

MOST_GROUPS: Final = 48
"""Groups at most: the number of measurements is linear in them."""

Key = Callable[[fx.Node], str]


@dataclass(frozen=True)
class OperatorGroup:
    """Operators whose precision is decided together.

    Attributes:
        name: What they have in common: a node's place, `linear in encoder.0`, a module, or first and last node.
        nodes: Their names, in the order of the graph.
        flops: Floating-point operations of all of them.
    """

    name: str
    nodes: tuple[str, ...]
    flops: int


def group_operators(
    nodes: Sequence[fx.Node], flops: Callable[[fx.Node], int], most: int = MOST_GROUPS
) -> tuple[OperatorGroup, ...]:
    """Groups nodes as finely as a number of groups allows.

    Each operator that computes is a group of its own; where these are too many, operators of one kind in one module
    are, then modules, then modules around modules, then stretches of the graph. Views, casts and copies, which round
    nothing of their own, belong to the group of what they read.

    Args:
        nodes: The nodes, in the order of the graph.
        flops: Work of a node.
        most: How many groups there may be, at least 1.
    """
    for key in (*_keys(nodes), _stretch_of(nodes, most)):
        found = _grouped(nodes, key)
        if len(found) <= most:
            break
    return tuple(
        OperatorGroup(name, tuple(node.name for node in members), sum(map(flops, members)))
        for name, members in found.items()
    )


def _keys(nodes: Sequence[fx.Node]) -> Iterator[Key]:
    """Yields what nodes of a group have in common, from the finest."""
    yield node_location
    yield lambda node: f"{operator_name(node.target).rpartition('aten.')[2]} in {module_path(node) or 'the model'}"
    deepest = max((module_path(node).count(".") + 1 for node in nodes), default=1)
    for depth in range(deepest, 0, -1):
        yield lambda node, depth=depth: ".".join(module_path(node).split(".")[:depth]) or "the model"  # type: ignore[misc]


def _stretch_of(nodes: Sequence[fx.Node], most: int) -> Key:
    length = max(math.ceil(len(nodes) / most), 1)
    names: dict[fx.Node, str] = {}
    for start in range(0, len(nodes), length):
        members = nodes[start : start + length]
        names.update(dict.fromkeys(members, f"{members[0].name} to {members[-1].name}"))
    return names.__getitem__


def _grouped(nodes: Sequence[fx.Node], key: Key) -> dict[str, list[fx.Node]]:
    homes: dict[fx.Node, str] = {}
    found: dict[str, list[fx.Node]] = {}
    for node in nodes:
        read = next((homes[operand] for operand in node.all_input_nodes if operand in homes), None)
        homes[node] = key(node) if read is None or counts_as_computation(node) else read
        found.setdefault(homes[node], []).append(node)
    return found
