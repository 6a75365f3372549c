"""Computes what is asked of sizes for all sizes at once, in the arithmetic that Python computes it in.

Expressions of PyTorch may divide, take roots and round, which extents do not. Sizes are few: each symbol is an axis of
an array, and each operator one of NumPy, whose integers and floats are those of Python as long as they fit 64 bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_core.extents import RELATIONS

Numbers = npt.NDArray[Any]

MOST_COMBINATIONS: Final = 1 << 20
"""More sizes are not computed."""

_LARGEST: Final = 2**62
"""Integers beyond it may have left 64 bits on the way."""

_REDUCTIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "Max": np.maximum,
    "Min": np.minimum,
    "And": np.logical_and,
    "Or": np.logical_or,
    "BitwiseFn_bitwise_and": np.bitwise_and,
    "BitwiseFn_bitwise_or": np.bitwise_or,
    "BitwiseFn_bitwise_xor": np.bitwise_xor,
    **RELATIONS,
}

_DIVISIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "FloorDiv": np.floor_divide,
    "CleanDiv": np.floor_divide,
    "CeilDiv": lambda left, right: -np.floor_divide(-left, right),
    "Mod": np.mod,
    "PythonMod": np.mod,
    "IntTrueDiv": np.true_divide,
    "FloatTrueDiv": np.true_divide,
}

_ROUNDINGS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "TruncToInt": np.trunc,
    "FloorToInt": np.floor,
    "CeilToInt": np.ceil,
    "RoundToInt": np.rint,
}

_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "Not": np.logical_not,
    "Abs": np.abs,
    "ToFloat": lambda value: np.asarray(value, np.float64),
    "TruncToFloat": np.trunc,
    "OpaqueUnaryFn_sqrt": np.sqrt,
    "OpaqueUnaryFn_log2": np.log2,
}


class SizeGrid:
    """All sizes of some symbols.

    Args:
        spans: The sizes of each symbol.
    """

    def __init__(self, spans: Mapping[str, range]) -> None:
        axes = np.ix_(*(np.arange(span.start, span.stop, dtype=np.int64) for span in spans.values()))
        self._symbols: dict[str, Numbers] = dict(zip(spans, axes, strict=True))
        self._shape = tuple(map(len, spans.values()))
        self._fails: Numbers = np.zeros((), np.bool_)
        self._known: dict[Any, Numbers | None] = {}

    def holds(self, condition: Any) -> Numbers | None:
        """Returns for all sizes whether a condition of sympy holds; it does not where it divides by zero.

        Returns:
            (extent of each span), bool. None where that cannot be computed.
        """
        if condition not in self._known:
            self._known[condition] = self._computed(condition)
        return self._known[condition]

    def _computed(self, condition: Any) -> Numbers | None:
        self._fails = np.zeros((), np.bool_)
        try:
            with np.errstate(all="ignore"):
                found = self._value(condition)
        except (ValueError, OverflowError):
            return None
        return np.broadcast_to(found & ~self._fails, self._shape) if found.dtype == np.bool_ else None

    def _value(self, expr: Any) -> Numbers:
        if expr.is_Symbol:
            if str(expr) not in self._symbols:
                raise ValueError("it has a symbol of no input")
            return self._symbols[str(expr)]
        if expr.is_Integer:
            return np.asarray(int(expr), np.int64)
        if expr.is_number and not expr.args:
            return np.asarray(float(expr), np.float64)
        return self._operation(type(expr).__name__, [self._value(argument) for argument in expr.args])

    def _operation(self, kind: str, operands: list[Numbers]) -> Numbers:
        if kind in ("Add", "Mul"):
            return functools.reduce(_sum if kind == "Add" else _product, operands)
        if kind in _REDUCTIONS:
            return np.asarray(functools.reduce(_REDUCTIONS[kind], operands))
        if kind in _FUNCTIONS:
            return np.asarray(_FUNCTIONS[kind](operands[0]))
        if kind in _ROUNDINGS:
            return self._rounded(_ROUNDINGS[kind](operands[0]))
        if kind in _DIVISIONS:
            left, right = operands
            is_zero = right == 0
            self._fails = self._fails | is_zero
            return np.asarray(_DIVISIONS[kind](left, np.where(is_zero, 1, right)))
        if kind in ("Pow", "PowByNatural", "FloatPow"):
            return _power(*operands)
        raise ValueError(f"{kind} is not computed")

    def _rounded(self, value: Numbers) -> Numbers:
        is_number = np.isfinite(value) & (np.abs(value) < _LARGEST)
        self._fails = self._fails | ~is_number
        return np.where(is_number, value, 0).astype(np.int64)


def _sum(left: Numbers, right: Numbers) -> Numbers:
    if left.dtype == right.dtype == np.int64 and _most(left) + _most(right) > _LARGEST:
        raise ValueError("the numbers are too large")
    return np.asarray(left + right)


def _product(left: Numbers, right: Numbers) -> Numbers:
    if left.dtype == right.dtype == np.int64 and _most(left) * _most(right) > _LARGEST:
        raise ValueError("the numbers are too large")
    return np.asarray(left * right)


def _power(base: Numbers, exponent: Numbers) -> Numbers:
    are_integers = base.dtype == exponent.dtype == np.int64
    if are_integers and (exponent.ndim or exponent < 0 or _most(base) ** min(int(exponent), 64) > _LARGEST):
        raise ValueError("the numbers are too large, or no integers")
    return np.asarray(np.power(base, exponent))


def _most(value: Numbers) -> int:
    return int(np.abs(value).max(initial=0))


def count_combinations(spans: Mapping[str, range]) -> int:
    """Returns how many sizes a grid has."""
    return math.prod(map(len, spans.values()))
