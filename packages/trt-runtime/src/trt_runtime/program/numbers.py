"""Arithmetic on sizes and other numbers between the steps of a program: a closed set of functions."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Final

import torch

from trt_core.errors import ExecutionError

_LARGEST: Final = 2**63 - 1
_MOST_OPERANDS: Final = 256
_SOME_OPERANDS: Final = frozenset({"sum", "round"})
"""Functions that take fewer operands than their most, too."""


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and not 0 <= exponent <= 64:
        raise ArithmeticError(f"the exponent {exponent} is not between 0 and 64")
    return base**exponent


def _shifted_left(number: Any, bits: Any) -> Any:
    if bits > 64:
        raise ArithmeticError(f"{bits} bits are more than 64")
    return number << bits


def _rounded(number: Any, digits: int | None = None) -> Any:
    if digits is not None and not -64 <= digits <= 64:
        raise ArithmeticError(f"{digits} digits are not between -64 and 64")
    return round(number, digits)


def _choose(condition: Any, then: Any, otherwise: Any) -> Any:
    return then if condition else otherwise


def _sum(*numbers: Any) -> Any:
    return functools.reduce(operator.add, numbers)


FUNCTIONS: Final[dict[str, tuple[Callable[..., Any], int]]] = {
    "add": (operator.add, 2),
    "sub": (operator.sub, 2),
    "mul": (operator.mul, 2),
    "truediv": (operator.truediv, 2),
    "floordiv": (operator.floordiv, 2),
    "mod": (operator.mod, 2),
    "pow": (_power, 2),
    "lshift": (_shifted_left, 2),
    "rshift": (operator.rshift, 2),
    "neg": (operator.neg, 1),
    "pos": (operator.pos, 1),
    "abs": (operator.abs, 1),
    "max": (builtins.max, 2),
    "min": (builtins.min, 2),
    "sum": (_sum, _MOST_OPERANDS),
    "eq": (operator.eq, 2),
    "ne": (operator.ne, 2),
    "lt": (operator.lt, 2),
    "le": (operator.le, 2),
    "gt": (operator.gt, 2),
    "ge": (operator.ge, 2),
    "not": (operator.not_, 1),
    "and": (operator.and_, 2),
    "or": (operator.or_, 2),
    "choose": (_choose, 3),
    "int": (int, 1),
    "float": (float, 1),
    "trunc": (math.trunc, 1),
    "floor": (math.floor, 1),
    "ceil": (math.ceil, 1),
    "round": (_rounded, 2),
    "sqrt": (math.sqrt, 1),
}
"""Function and number of operands by name; `sum` and `round` take from one to so many."""

NAMES: Final[dict[Any, str]] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "truediv",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
    operator.pow: "pow",
    builtins.pow: "pow",
    operator.lshift: "lshift",
    operator.rshift: "rshift",
    operator.neg: "neg",
    operator.pos: "pos",
    operator.abs: "abs",
    builtins.max: "max",
    torch.sym_max: "max",
    builtins.min: "min",
    torch.sym_min: "min",
    torch.sym_sum: "sum",
    operator.eq: "eq",
    operator.ne: "ne",
    operator.lt: "lt",
    operator.le: "le",
    operator.gt: "gt",
    operator.ge: "ge",
    operator.not_: "not",
    torch.sym_not: "not",
    operator.and_: "and",
    operator.or_: "or",
    torch.sym_ite: "choose",
    builtins.int: "int",
    torch.sym_int: "int",
    builtins.float: "float",
    torch.sym_float: "float",
    math.trunc: "trunc",
    math.floor: "floor",
    math.ceil: "ceil",
    builtins.round: "round",
    math.sqrt: "sqrt",
    torch.sym_sqrt: "sqrt",
}
"""Names of the Python functions that stand in graphs."""


def number_function(name: str) -> Callable[..., Any]:
    """Returns a function by its name; what it returns stays within 64 bits."""
    function, _ = FUNCTIONS[name]

    def compute(*operands: Any) -> Any:
        result = function(*operands)
        if isinstance(result, int) and not -_LARGEST <= result <= _LARGEST:
            raise ExecutionError(f"{name} of {operands} exceeds 64 bits")
        return result

    return compute


def fits(name: str, operands: int) -> bool:
    """Whether a function takes so many operands."""
    _, count = FUNCTIONS[name]
    return 1 <= operands <= count if name in _SOME_OPERANDS else operands == count
