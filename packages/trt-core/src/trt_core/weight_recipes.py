"""Recipes: how a tensor that a compilation made follows from weights of the model.

Folding, transposing, casting and merging all leave tensors that are no weights of the model any more. A recipe keeps
the operators that made one, so that it can be made again from other weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from trt_core.internals import OpOverload

RECIPE: Final = "weight_recipe"
"""Key of `fx.Node.meta`: the recipe of the tensor that a `get_attr` node reads; absent where nothing is known."""


@dataclass(frozen=True, eq=False)
class Source:
    """A weight of the model as it is.

    Attributes:
        name: Its name in the model's state dict.
        dtype, shape: What it must be.
        tied: Other names that the same tensor has there; a compilation knows one of them.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    tied: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Literal:
    """A tensor that follows from no weight: a constant of the model, or one that the compilation made.

    Attributes:
        value: The tensor; never changed.
        name: Its name in the model, such as that of a buffer that state dicts leave out; empty where it has none.
    """

    value: torch.Tensor = field(repr=False)
    name: str = ""


@dataclass(frozen=True, eq=False)
class Applied:
    """A result of an operator.

    Attributes:
        operator: A functional operator.
        args, kwargs: Its arguments; a recipe stands for its tensor.
        item: Which of several results; None for an operator with one.
    """

    operator: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    item: int | None = None


@dataclass(frozen=True, eq=False)
class Lost:
    """A tensor that follows from weights in a way that cannot be repeated.

    Attributes:
        why: What made it so.
        operands: Recipes that it follows from.
    """

    why: str
    operands: tuple[Recipe, ...]


Recipe = Source | Literal | Applied | Lost


def recipes_in(value: Any) -> Iterator[Recipe]:
    """Yields the recipes in an argument, those in lists, tuples and mappings included."""
    if isinstance(value, (Source, Literal, Applied, Lost)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from recipes_in(item)
    elif isinstance(value, Mapping):
        yield from recipes_in(list(value.values()))


def operands_of(recipe: Recipe) -> tuple[Recipe, ...]:
    """Returns the recipes that a recipe is made of."""
    if isinstance(recipe, Applied):
        return (*recipes_in(recipe.args), *recipes_in(recipe.kwargs))
    return recipe.operands if isinstance(recipe, Lost) else ()


def walk(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Returns recipes and everything that they are made of, each once, operands first."""
    done: dict[Recipe, None] = {}
    pending = list(reversed(recipes))
    while pending:
        current = pending[-1]
        missing = [item for item in operands_of(current) if item not in done]
        if current in done or not missing:
            done.setdefault(current)
            pending.pop()
        else:
            pending.extend(missing)
    return list(done)


def sources_of(recipe: Recipe) -> tuple[Source, ...]:
    """Returns the weights that a recipe starts from, each once."""
    return tuple(item for item in walk([recipe]) if isinstance(item, Source))


def constants_of(recipe: Recipe) -> tuple[Literal, ...]:
    """Returns the constants of the model that a recipe starts from, each once."""
    return tuple(item for item in walk([recipe]) if isinstance(item, Literal) and item.name)


def lost_in(recipe: Recipe) -> Lost | None:
    """Returns the first part of a recipe that cannot be repeated, if there is one."""
    return next((item for item in walk([recipe]) if isinstance(item, Lost)), None)


def apply_operator(operator: Any, args: Any, kwargs: Any, *, item: int | None = None) -> Recipe:
    """Returns the recipe of an operator's result.

    Args:
        operator: What was called.
        args, kwargs: Its arguments, recipes in place of tensors.
        item: Which of several results.
    """
    operands = (*recipes_in(args), *recipes_in(kwargs))
    why = why_not_repeatable(operator)
    if why:
        return Lost(why, operands)
    without_places = {name: value for name, value in kwargs.items() if name not in ("device", "layout", "pin_memory")}
    return Applied(operator, tuple(args), without_places, item)


def why_not_repeatable(operator: Any) -> str:
    """Says why an operator cannot be part of a recipe; nothing when it can."""
    if not isinstance(operator, OpOverload):
        return f"{operator} is no operator"
    if operator.namespace not in ("aten", "prims"):
        return f"{operator} is not one of PyTorch's own operators"
    if operator._schema.is_mutable:
        return f"{operator} writes in place"
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return f"{operator} draws random numbers"
    return ""
