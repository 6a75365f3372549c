"""What a node does besides computing its result: writing to tensors, drawing, printing, answering other processes.

Such nodes run in PyTorch, exactly once, and in the order in which the model has them.
"""

from __future__ import annotations

import enum

from torch import fx

from trt_core.cache_updates import replaced_state, written_cache
from trt_core.control_flow import bodies_of, is_control_flow
from trt_core.internals import HigherOrderOperator, OpOverload
from trt_core.operators import draws_random_numbers
from trt_core.process_groups import is_unread


class Effect(enum.Enum):
    """What a node does besides returning a result."""

    NONE = "none"
    ORDERED = "ordered"
    """Draws random numbers or acts on the world: keeps its order among its kind."""
    UPDATE = "update"
    """Writes rows of a cache that nothing else reads, or all of a state: an engine that computes them can do so."""
    MUTATION = "mutation"
    """Writes to a tensor: nothing may move across it."""

    @property
    def is_ordered(self) -> bool:
        """Whether a node keeps its place among others that share nothing with it."""
        return self in (Effect.ORDERED, Effect.MUTATION)


def effect_of(node: fx.Node) -> Effect:
    """Returns what a `call_function` node does besides computing its result."""
    target = node.target
    if isinstance(target, HigherOrderOperator):
        if not is_control_flow(target):
            return Effect.ORDERED
        inside = (effect_of(item) for _, body in bodies_of(node) for item in body.graph.nodes)
        return Effect.NONE if all(effect is Effect.NONE for effect in inside) else Effect.ORDERED
    if not isinstance(target, OpOverload):
        return Effect.NONE
    schema = target._schema
    if schema.is_mutable:
        return Effect.UPDATE if _is_update(node) else Effect.MUTATION
    if not schema.returns or draws_random_numbers(node) or is_unread(node):
        return Effect.ORDERED
    return Effect.NONE


def _is_update(node: fx.Node) -> bool:
    if written_cache(node) is not None:
        return True
    # what a caller gives to be written as a whole may be the memory of another input, which engines refuse
    return replaced_state(node) is not None and node.args[0].op == "get_attr"  # type: ignore[union-attr]
