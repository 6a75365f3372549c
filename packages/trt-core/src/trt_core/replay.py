"""Replays recipes: makes a tensor again from other weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import RefitError
from trt_core.internals import OpOverload
from trt_core.weight_recipes import Applied, Literal, Lost, Recipe, Source, operands_of, walk

_SMALLEST_LIMIT: Final = 1 << 26
_GROWTH: Final = 16


Admit = Callable[[OpOverload], Callable[..., Any]]
"""Returns what calls an operator, or raises where it may not be called."""


def replay(recipe: Recipe, weights: Mapping[str, torch.Tensor], *, admit: Admit = lambda op: op) -> torch.Tensor:
    """Makes a tensor from weights of the model.

    Args:
        recipe: How.
        weights: The weights by name; all of them on one device. They are not changed, and may be what is returned.
        admit: Asked for each operator, before anything runs. A recipe that was read from a file may name any.

    Raises:
        RefitError: A weight is missing or has another type or shape, an operator fails, or a result would be far
            larger than everything that it is made of (a table need not come from where it says).
    """
    order = walk([recipe])
    sources = [item for item in order if isinstance(item, Source)]
    for source in sources:
        check_weight(source, weights)
    device = weights[sources[0].name].device if sources else torch.device("cpu")
    given = sum(weights[source.name].nbytes for source in sources)
    operators = {item.operator for item in order if isinstance(item, Applied)}
    calls = {operator: admit(operator) for operator in operators}
    _check_sizes(order, calls, max(_SMALLEST_LIMIT, _GROWTH * given))
    remaining: dict[Recipe, int] = {}
    for item in order:
        for operand in operands_of(item):
            remaining[operand] = remaining.get(operand, 0) + 1
    values: dict[Recipe, Any] = {}
    with torch.no_grad():
        for item in order:
            if isinstance(item, Source):
                values[item] = weights[item.name].detach()
            elif isinstance(item, Literal):
                values[item] = item.value.to(device)
            else:
                values[item] = _run(item, calls, values, device)
            for operand in operands_of(item):
                remaining[operand] -= 1
                if not remaining[operand]:
                    del values[operand]
    result: torch.Tensor = values[recipe]
    return result


def check_weight(source: Source, weights: Mapping[str, torch.Tensor]) -> None:
    """Checks that a weight is there and fits.

    Raises:
        RefitError: It is missing, has another type or shape, or is no longer the weight that it was tied to.
    """
    value = weights.get(source.name)
    if value is None:
        raise RefitError(
            f"the weight {source.name!r} is missing", hint="give all weights of the model, under their names in it"
        )
    if value.dtype != source.dtype or tuple(value.shape) != source.shape:
        raise RefitError(
            f"the weight {source.name!r} does not fit",
            why=f"it is {dtype_name(value.dtype)} {tuple(value.shape)}, the engine was built from "
            f"{dtype_name(source.dtype)} {source.shape}",
            hint="compile the model again",
        )
    for name in source.tied:
        other = weights.get(name, value)
        if other is not value and not (other.shape == value.shape and torch.equal(other.to(value.device), value)):
            raise RefitError(
                f"the weights {source.name!r} and {name!r} differ",
                why="they were one tensor when the engine was built, so it holds them once",
                hint="compile the model again",
            )


def content_digest(value: torch.Tensor) -> str:
    """Returns the SHA-256 of a tensor's numbers in hexadecimal."""
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(content.numpy().data).hexdigest()


_Calls = Mapping[OpOverload, Callable[..., Any]]


def _run(item: Recipe, calls: _Calls, values: Mapping[Recipe, Any], device: torch.device) -> Any:
    if not isinstance(item, Applied):
        assert isinstance(item, Lost)
        raise RefitError("a weight cannot be made again", why=item.why)
    kwargs = _put(dict(item.kwargs), values)
    if not operands_of(item) and any(argument.name == "device" for argument in item.operator._schema.arguments):
        kwargs["device"] = device  # it makes a tensor of nothing
    try:
        result = calls[item.operator](*_put(item.args, values), **kwargs)
    except Exception as error:
        raise RefitError(
            "a weight cannot be made again", where=str(item.operator), why=f"{type(error).__name__}: {error}"
        ) from error
    return result if item.item is None else result[item.item]


def _put(value: Any, values: Mapping[Recipe, Any]) -> Any:
    if isinstance(value, (Source, Literal, Applied, Lost)):
        return values[value]
    if isinstance(value, (list, tuple)):
        return (
            [_put(item, values) for item in value] if isinstance(value, list) else tuple(_put(i, values) for i in value)
        )
    if isinstance(value, dict):
        return {name: _put(item, values) for name, item in value.items()}
    return value


def _check_sizes(order: list[Recipe], calls: _Calls, limit: int) -> None:
    """Runs everything on the meta device first, where nothing takes memory."""
    shapes: dict[Recipe, Any] = {}
    nowhere = torch.device("meta")
    with torch.no_grad():
        for item in order:
            if isinstance(item, Source):
                shapes[item] = torch.empty(item.shape, dtype=item.dtype, device=nowhere)
            elif isinstance(item, Literal):
                shapes[item] = torch.empty(item.value.shape, dtype=item.value.dtype, device=nowhere)
            else:
                shapes[item] = _run(item, calls, shapes, nowhere)
            size = math.prod(shapes[item].shape) * shapes[item].element_size()
            if size > limit:
                raise RefitError(
                    f"making a weight again would take {size} bytes",
                    why=f"all that it is made of allows {limit}",
                    hint="check where the plan comes from",
                )
