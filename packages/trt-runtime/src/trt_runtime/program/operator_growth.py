"""How much operators make that can make far more than they are given: by broadcasting, or by numbers among arguments.

Others make at most as many elements as their operands have together, or a few times as many. `operator_counts` has what
each makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.internals import OpOverload
from trt_runtime.program.fields import UNTOLD
from trt_runtime.program.operator_counts import COUNTS
from trt_runtime.program.product_counts import Count, MaskShape, Operands, broadcast, shapes_in

_COMMON: Final = 1 << 16
"""Elements that any operator may make."""


def can_grow(operator: OpOverload) -> bool:
    """Whether `elements_made` knows an operator."""
    return _count_of(operator) is not None


def elements_made(operator: OpOverload, operands: Operands) -> float | None:
    """Returns how many elements a call makes, at least.

    Returns:
        None for operators that do not grow, and where arguments make no sense: the operator will say so.
    """
    count = _count_of(operator)
    try:
        return None if count is None else count(operands)
    except OverflowError:
        return math.inf
    except (ArithmeticError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


def most_elements(told: int | None, operands: Operands, untold: int = UNTOLD) -> int:
    """Returns how many elements a call may make.

    Args:
        told: How many the program says that it makes; None where that depends on data.
        operands: Its arguments.
        untold: How many it may make where that depends on data, or 64 times as many as its operands have.
    """
    given = elements_in(operands)
    return max(untold, 64 * given) if told is None else max(_COMMON, 2 * told, 2 * given)


def how_to_allow(elements: float) -> str:
    """Returns the hint for a call that would make so many elements, where that depends on data; none if endless."""
    if not math.isfinite(elements):
        return ""
    return (
        f"if you trust the program, load it with data_dependent_elements={elements:.0f}, "
        "or on the command line with --data-dependent-elements"
    )


def _count_of(operator: OpOverload) -> Count | None:
    found = COUNTS.get(operator._schema.name)
    return broadcast if found is None and torch.Tag.pointwise in operator.tags else found


MASKS: Final = (torch.bool, torch.uint8)
"""Types of tensors that choose elements rather than name them."""


def operands_of(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call as counts take them, without those that are not given."""
    names = (argument.name for argument in operator._schema.arguments)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: _shaped(value) for name, value in given.items() if value is not None}


def elements_in(operands: Operands) -> int:
    """Elements of all tensors among arguments."""
    return sum(math.prod(shape) for shape in shapes_in(operands))


def _shaped(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return MaskShape(value.shape) if value.dtype in MASKS else tuple(value.shape)
    return [_shaped(item) for item in value] if isinstance(value, (list, tuple)) else value
