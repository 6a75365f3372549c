"""Extents of outputs as expressions of input extents: what a plan says, so that no run has to infer them.

An expression is JSON: an integer, ``["size", input, axis]``, or ``[operator, operand, ...]`` with the operators
``add``, ``mul``, ``floordiv``, ``ceildiv``, ``mod``, ``max`` and ``min``. Null stands for what the extents of inputs
do not tell: numbers of shape tensors, or data.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

from trt_core.files import typed
from trt_core.files.records import Form
from trt_core.sizes.functions import BY_CLASS, bounded
from trt_portable.errors import Refusal

Expression: TypeAlias = Annotated[int | list[Any] | None, Form()]

SIZE: Final = "size"
_MAX_DEPTH: Final = 32
_MAX_OPERANDS: Final = 64
_LARGEST: Final = 1 << 48

OPERATORS: Final = frozenset({"add", "mul", "floordiv", "ceildiv", "mod", "max", "min"})
"""What expressions are made of, of `trt_core.sizes.functions`."""

_BINARY: Final = frozenset({"floordiv", "ceildiv", "mod"})
_COMPUTED: Final = {name: bounded(name) for name in OPERATORS}


def expression_of(extent: Any, sizes: Mapping[Any, tuple[int, int]], depth: int = 0) -> Expression:
    """An extent that shape inference found, as a plan writes it.

    Args:
        extent: An integer, or a symbolic expression.
        sizes: Input and axis of each symbol.
        depth: How many expressions it is an operand inside of.

    Returns:
        None where it depends on anything but extents of inputs, or cannot be said in as many words as are read.
    """
    if isinstance(extent, int):
        return extent
    if depth > _MAX_DEPTH:
        return None
    if extent in sizes:
        return [SIZE, *sizes[extent]]
    if getattr(extent, "is_Integer", False):
        return int(extent)
    kind = type(extent).__name__
    if kind in ("Pow", "PowByNatural") and getattr(extent.args[1], "is_Integer", False) and 1 <= extent.args[1] <= 4:
        base = expression_of(extent.args[0], sizes, depth + 1)
        return None if base is None else ["mul", *[base] * int(extent.args[1])]
    name = BY_CLASS[kind].name if kind in BY_CLASS else ""
    if name not in OPERATORS or len(extent.args) > _MAX_OPERANDS:
        return None
    operands = [expression_of(operand, sizes, depth + 1) for operand in extent.args]
    return None if None in operands else [name, *operands]


def read_expression(value: Any, what: str, ranks: Sequence[int], depth: int = 0) -> Expression:
    """Reads an expression from a plan.

    Args:
        value: Parsed JSON.
        what: What messages call it.
        ranks: Rank of each input.
        depth: How many expressions it is an operand inside of.

    Raises:
        TypeError, ValueError: It is no expression, or names an axis that no input has.
    """
    if value is None and not depth:
        return None
    if not isinstance(value, list):
        return typed.integer(value, what, -_LARGEST)
    if not 2 <= len(value) <= _MAX_OPERANDS + 1 or depth > _MAX_DEPTH:
        raise ValueError(f"{what} is no expression")
    kind, *operands = value
    if kind == SIZE:
        source, axis = typed.integers(operands, what)
        if source >= len(ranks) or axis >= ranks[source]:
            raise ValueError(f"{what} names axis {axis} of input {source}, which does not exist")
        return value
    if kind not in OPERATORS or (kind in _BINARY and len(operands) != 2):
        raise ValueError(f"{what} is no expression")
    for operand in operands:
        read_expression(operand, what, ranks, depth + 1)
    return value


def evaluate(expression: Expression, shapes: Sequence[Sequence[int]]) -> int:
    """The extent for input shapes.

    Raises:
        Refusal: There is none: a division by zero, or a number that is no extent.
    """
    try:
        extent = _evaluate(expression, shapes)
    except (ArithmeticError, TypeError) as error:
        raise Refusal(f"an output extent cannot be computed: {error}") from error
    if not 0 <= extent <= _LARGEST:
        raise Refusal(f"an output extent would be {extent}")
    return extent


def _evaluate(expression: Any, shapes: Sequence[Sequence[int]]) -> int:
    if isinstance(expression, int):
        return expression
    kind, *operands = expression
    if kind == SIZE:
        return int(shapes[operands[0]][operands[1]])
    values = (_evaluate(operand, shapes) for operand in operands)
    result: int = functools.reduce(_COMPUTED[kind], values)
    return result
