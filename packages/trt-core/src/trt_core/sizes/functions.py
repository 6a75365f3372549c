"""The functions that sizes, and numbers that follow from them, are computed by: one table for all who name them.

Files name a function by `Function.name`, PyTorch's expressions by the classes of sympy's kind, graphs by Python's
functions, the text of guards by calls and operators, messages by signs. Nothing else in the project says what such a
name means.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

LARGEST: Final = 2**63 - 1
"""No integer of a size, or of what is computed from sizes, is larger."""

MAX_OPERANDS: Final = 256
"""Most operands of a function."""

_SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Function:
    """A function of numbers.

    Attributes:
        name: What files call it.
        compute: Computes it, of Python's numbers and of PyTorch's symbolic ones.
        classes: Classes of PyTorch's and sympy's expressions that mean it; the first is the one to make.
        targets: Functions in graphs that mean it; the first is the one to write.
        sign: What is written between two operands; nothing where it is written as a call.
        calls: Functions in the text of guards that mean it.
        operands: Fewest and most operands.
        is_whole: Whether it makes integers of integers, so that extents may be computed by it.
        is_rounding: Whether it makes an integer of any single number, so that an extent may be what it makes.
    """

    name: str
    compute: Callable[..., Any]
    classes: tuple[str, ...] = ()
    targets: tuple[Callable[..., Any], ...] = ()
    sign: str = ""
    calls: tuple[str, ...] = ()
    operands: tuple[int, int] = (2, 2)
    is_whole: bool = False
    is_rounding: bool = False

    def takes(self, operands: int) -> bool:
        """Whether it takes so many operands."""
        fewest, most = self.operands
        return fewest <= operands <= most


def _maximum(left: Any, right: Any) -> Any:
    is_symbolic = isinstance(left, _SYMBOLIC) or isinstance(right, _SYMBOLIC)
    return torch.sym_max(left, right) if is_symbolic else max(left, right)


def _minimum(left: Any, right: Any) -> Any:
    is_symbolic = isinstance(left, _SYMBOLIC) or isinstance(right, _SYMBOLIC)
    return torch.sym_min(left, right) if is_symbolic else min(left, right)


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, (int, torch.SymInt)) and isinstance(exponent, int) and not 0 <= exponent <= 64:
        raise ValueError(f"the exponent {exponent} of an extent is not between 0 and 64")
    power = base**exponent
    if isinstance(power, complex):
        raise ArithmeticError(f"the power {exponent} of {base} is no real number")
    return power


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


_ONE: Final = (1, 1)

_TABLE: Final = (
    Function("add", operator.add, ("Add",), (operator.add,), "+", is_whole=True),
    Function("sub", operator.sub, (), (operator.sub,), "-"),
    Function("mul", operator.mul, ("Mul",), (operator.mul,), "*", is_whole=True),
    Function("truediv", operator.truediv, ("FloatTrueDiv", "IntTrueDiv"), (operator.truediv,), "/"),
    Function("floordiv", operator.floordiv, ("FloorDiv", "CleanDiv"), (operator.floordiv,), "//", is_whole=True),
    Function("ceildiv", lambda left, right: -(-left // right), ("CeilDiv",), is_whole=True),
    Function("mod", operator.mod, ("Mod", "PythonMod"), (operator.mod,), "%", is_whole=True),
    Function("pow", _power, ("Pow", "PowByNatural", "FloatPow"), (operator.pow, builtins.pow), "**", is_whole=True),
    Function("max", _maximum, ("Max",), (torch.sym_max, builtins.max), calls=("max",), is_whole=True),
    Function("min", _minimum, ("Min",), (torch.sym_min, builtins.min), calls=("min",), is_whole=True),
    Function("eq", operator.eq, ("Equality",), (operator.eq,), "=="),
    Function("ne", operator.ne, ("Unequality",), (operator.ne,), "!="),
    Function("lt", operator.lt, ("StrictLessThan",), (operator.lt,), "<"),
    Function("le", operator.le, ("LessThan",), (operator.le,), "<="),
    Function("gt", operator.gt, ("StrictGreaterThan",), (operator.gt,), ">"),
    Function("ge", operator.ge, ("GreaterThan",), (operator.ge,), ">="),
    Function("and", operator.and_, ("And", "BitwiseFn_bitwise_and"), (operator.and_,), "&"),
    Function("or", operator.or_, ("Or", "BitwiseFn_bitwise_or"), (operator.or_,), "|"),
    Function("bitxor", operator.xor, ("BitwiseFn_bitwise_xor",), (operator.xor,), "^"),
    Function("not", operator.not_, ("Not",), (torch.sym_not, operator.not_), operands=_ONE),
    Function("lshift", _shifted_left, (), (operator.lshift,), "<<"),
    Function("rshift", operator.rshift, (), (operator.rshift,), ">>"),
    Function("neg", operator.neg, (), (operator.neg,), operands=_ONE),
    Function("pos", operator.pos, (), (operator.pos,), operands=_ONE),
    Function("abs", operator.abs, ("Abs",), (operator.abs,), calls=("abs",), operands=_ONE),
    Function("int", builtins.int, (), (torch.sym_int, builtins.int), operands=_ONE),
    Function("float", torch.sym_float, ("ToFloat",), (torch.sym_float, builtins.float), "", ("torch.sym_float",), _ONE),
    Function("trunc", math.trunc, ("TruncToInt",), (math.trunc,), "", ("math.trunc",), _ONE, is_rounding=True),
    Function("floor", math.floor, ("FloorToInt",), (math.floor,), "", ("math.floor",), _ONE, is_rounding=True),
    Function("ceil", math.ceil, ("CeilToInt",), (math.ceil,), "", ("math.ceil",), _ONE, is_rounding=True),
    Function(
        "round",
        _rounded,
        ("RoundToInt", "RoundDecimal"),
        (builtins.round,),
        calls=("round",),
        operands=(1, 2),
        is_rounding=True,
    ),
    Function(
        "sqrt",
        torch.sym_sqrt,
        ("OpaqueUnaryFn_sqrt",),
        (torch.sym_sqrt, math.sqrt),
        "",
        ("math.sqrt", "torch.sym_sqrt", "torch._sym_sqrt"),
        _ONE,
    ),
    Function("log2", math.log2, ("OpaqueUnaryFn_log2",), (math.log2,), "", ("math.log2",), _ONE),
    Function("sum", _sum, (), (torch.sym_sum,), operands=(1, MAX_OPERANDS)),
    Function("choose", _choose, (), (torch.sym_ite,), operands=(3, 3)),
)

FUNCTIONS: Final[Mapping[str, Function]] = {function.name: function for function in _TABLE}
"""Functions by name."""

BY_CLASS: Final[Mapping[str, Function]] = {name: function for function in _TABLE for name in function.classes}
"""Functions by the class of PyTorch's or sympy's expression."""

BY_TARGET: Final[Mapping[Any, Function]] = {target: function for function in _TABLE for target in function.targets}
"""Functions by what graphs call."""

BY_CALL: Final[Mapping[str, Function]] = {call: function for function in _TABLE for call in function.calls}
"""Functions by what the text of guards calls."""

RELATIONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
"""Names of the functions that compare."""


def relation_name(expr: Any) -> str | None:
    """What compares the two sides of one of sympy's relations; None for any other expression."""
    function = BY_CLASS.get(type(expr).__name__)
    return function.name if function is not None and function.name in RELATIONS else None


def bounded(name: str) -> Callable[..., Any]:
    """A function whose result is refused when it leaves 64 bits, so that no chain of them grows without end.

    It raises `OverflowError` then, and what Python's function raises for its operands.
    """
    function = FUNCTIONS[name].compute

    def compute(*operands: Any) -> Any:
        result = function(*operands)
        if isinstance(result, int) and not -LARGEST <= result <= LARGEST:
            raise OverflowError(f"{name} of {operands} exceeds 64 bits")
        return result

    return compute
