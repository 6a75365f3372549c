"""What a node does besides computing its result: writing to tensors, drawing, printing, answering other processes.

Such nodes run in PyTorch, exactly once, and in the order in which the model has them.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import torch
from torch import fx

from trt_core.cache_updates import written_cache
from trt_core.control_flow import bodies_of, is_control_flow
from trt_core.internals import HigherOrderOperator, OpOverload
from trt_core.process_groups import is_unread

_SWITCHES: Final = ("train", "training")
_RATES: Final = ("dropout_p", "dropout", "p")
_DROPOUTS: Final = frozenset({"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})


class Effect(enum.Enum):
    """What a node does besides returning a result."""

    NONE = "none"
    ORDERED = "ordered"
    """Draws random numbers or acts on the world: keeps its order among its kind."""
    UPDATE = "update"
    """Writes rows of a cache that nothing else reads: an engine that computes them can write them, too."""
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
        return Effect.MUTATION if written_cache(node) is None else Effect.UPDATE
    if not schema.returns or draws_random_numbers(node) or is_unread(node):
        return Effect.ORDERED
    return Effect.NONE


def draws_random_numbers(node: fx.Node) -> bool:
    """Whether a call draws from a generator; dropout that is switched off does not.

    PyTorch tags an operator as seeded when it can draw. Dropout, attention and recurrent layers draw only while they
    train or with a rate above zero, which their arguments say.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = {argument.name for argument in target._schema.arguments}
    for name in _SWITCHES:
        if name in names and _argument(node, target, name) is False:
            return False
    rates = _RATES if target._schema.name.split("::")[-1] in _DROPOUTS else _RATES[:2]
    return not any(name in names and _is_zero(_argument(node, target, name)) for name in rates)


def _argument(node: fx.Node, target: OpOverload, name: str) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == name:
            if position < len(node.args):
                return node.args[position]
            return argument.default_value if argument.has_default_value() else None
    return None


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
