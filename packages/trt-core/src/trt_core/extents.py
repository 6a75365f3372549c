"""Dimensions as data: an int, a symbol, or an operation on them.

The expressions that PyTorch attaches to symbolic dimensions become plain JSON values here, so that a plan can say how
its output shapes follow from its input shapes, and a runtime can compute them without sympy.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

Extent = int | str | list[Any] | None
"""An int; the name of a symbol; `[operator, operand, ...]`; or None for an extent that depends on data."""

Number = int | torch.SymInt


def _maximum(left: Number, right: Number) -> Number:
    largest: Number = torch.sym_max(left, right)
    return largest


def _minimum(left: Number, right: Number) -> Number:
    smallest: Number = torch.sym_min(left, right)
    return smallest


_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "ceildiv": lambda left, right: -(-left // right),
    "mod": operator.mod,
    "max": _maximum,
    "min": _minimum,
    "pow": operator.pow,
}

_SYMPY_NAMES: Final = {
    "Add": "add",
    "Mul": "mul",
    "Pow": "pow",
    "PowByNatural": "pow",
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "CeilDiv": "ceildiv",
    "Mod": "mod",
    "PythonMod": "mod",
    "Max": "max",
    "Min": "min",
}


def extent_of(value: Number) -> Extent:
    """Returns a dimension as data; None when it depends on data or cannot be expressed."""
    if isinstance(value, int):
        return value
    return _from_sympy(value.node.expr)


def evaluate_extent(extent: Extent, symbols: Mapping[str, Number]) -> Number:
    """Computes a dimension.

    Args:
        extent: What `extent_of` returned.
        symbols: Values of the symbols in it; symbolic integers give a symbolic result.

    Raises:
        KeyError: A symbol has no value.
        ValueError: The extent depends on data, or names an unknown operator.
    """
    if isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        return symbols[extent]
    if extent is None:
        raise ValueError("the extent depends on data")
    name, *operands = extent
    if name not in _OPERATORS:
        raise ValueError(f"unknown operator {name!r} in an extent")
    return functools.reduce(_OPERATORS[name], [evaluate_extent(operand, symbols) for operand in operands])


def symbols_in(extent: Extent) -> set[str]:
    """Returns the names of the symbols that an extent is computed from."""
    if isinstance(extent, str):
        return {extent}
    if isinstance(extent, list):
        return set().union(*(symbols_in(operand) for operand in extent[1:]))
    return set()


def depends_on_data(value: torch.SymInt) -> bool:
    """Whether a dimension follows from values of tensors, not from shapes alone."""
    return any(_is_unbacked(symbol) for symbol in value.node.expr.free_symbols)


def _from_sympy(expr: Any) -> Extent:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return None if _is_unbacked(expr) else str(expr)
    name = _SYMPY_NAMES.get(type(expr).__name__)
    if name is None:
        return None
    operands = [_from_sympy(argument) for argument in expr.args]
    if any(operand is None for operand in operands):
        return None
    if name == "pow" and not (isinstance(operands[1], int) and operands[1] >= 0):
        return None
    return [name, *operands]


def _is_unbacked(symbol: Any) -> bool:
    return str(symbol).startswith(("u", "zuf"))
