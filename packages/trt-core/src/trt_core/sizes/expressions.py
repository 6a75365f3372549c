"""Sizes, and numbers that follow from them, as data: a number, a symbol, or a function of them.

The expressions that PyTorch attaches to symbolic dimensions become plain JSON values here, so that a plan can say how
its output shapes follow from its input shapes, and a runtime can compute them without sympy. An *extent* is computed by
functions of integers alone; conditions on sizes may use the others of the table, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import torch

from trt_core.files.typed import BadField
from trt_core.sizes.functions import BY_CLASS, FUNCTIONS, LARGEST, MAX_OPERANDS, bounded

Extent = int | str | list[Any] | None
"""An int; the name of a symbol; `[function, operand, ...]`; or None for an extent that depends on data."""

Expression = Extent | float
"""An extent, or what is computed from sizes by functions of floats, too."""

Number = int | torch.SymInt

MAX_DEPTH: Final = 32
"""Most functions inside one another that `check_extent` accepts."""

_COMPUTED: Final = {name: bounded(name) for name in FUNCTIONS}
_OF_SO_MANY: Final = frozenset(name for name, function in FUNCTIONS.items() if function.operands != (2, 2))
"""Functions of other than two operands; those of two take any number, one after the other."""

_EXACT_FACTOR: Final = 1 << 16
"""A scale whose numerator and denominator are at most this is multiplied with any size without rounding."""


def extent_of(value: Number) -> Extent:
    """Returns a dimension as data; None when it depends on data or cannot be expressed."""
    if isinstance(value, int):
        return value
    return extent_of_expression(value.node.expr)


def evaluate_extent(extent: Expression, symbols: Mapping[str, Number]) -> Any:
    """Computes a dimension, or another expression.

    Args:
        extent: What `extent_of` or `expression_of` returned.
        symbols: Values of the symbols in it; symbolic integers give a symbolic result.

    Raises:
        KeyError: A symbol has no value.
        ValueError: The extent depends on data, names an unknown function, or exceeds 64 bits.
        ArithmeticError: It divides by zero, raises to a power that is none, or shifts what is no integer.
    """
    if isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        return symbols[extent]
    if isinstance(extent, float):
        return extent
    if extent is None:
        raise ValueError("the extent depends on data")
    name = extent[0]
    compute = _COMPUTED.get(name)
    if compute is None:
        raise ValueError(f"unknown operator {name!r} in an extent")
    values = [evaluate_extent(operand, symbols) for operand in extent[1:]]
    try:
        return compute(*values) if len(values) == 2 or name in _OF_SO_MANY else functools.reduce(compute, values)
    except OverflowError as error:
        raise ValueError("an extent exceeds 64 bits") from error
    except TypeError as error:  # a function of integers, of other numbers
        raise ArithmeticError(f"an extent cannot be computed: {error}") from error


def check_extent(extent: Any, symbols: Collection[str] | None = None, *, is_whole: bool = True) -> None:
    """Checks that a value read from a file is an extent, so that evaluating it ends soon and well or with an error.

    Args:
        extent: Any value.
        symbols: The symbols that may be named; by default any.
        is_whole: Whether it has to be an integer, as a dimension is, so that functions of floats are only where their
            result is rounded; else any of the table may be anywhere.

    Raises:
        ValueError: It is no extent; the message says why.
    """
    _check_extent(extent, symbols, is_whole, MAX_DEPTH)


def read_extent(value: Any, place: str, symbols: Collection[str] | None = None, *, is_whole: bool = True) -> Extent:
    """An extent of a file; see `check_extent`.

    Raises:
        BadField: It is none; the message names the place.
    """
    try:
        check_extent(value, symbols, is_whole=is_whole)
    except ValueError as error:
        raise BadField(place, str(error)) from error
    return value  # type: ignore[no-any-return]  # just checked


def is_extent(value: Any, *, is_whole: bool = True) -> bool:
    """Whether `check_extent` accepts a value: what PyTorch says of a size may nest too deep, or be too long."""
    try:
        check_extent(value, is_whole=is_whole)
    except ValueError:
        return False
    return True


def _check_extent(extent: Any, symbols: Collection[str] | None, is_whole: bool, depth: int) -> None:
    if extent is None or type(extent) is int:
        if extent is not None and not -LARGEST <= extent <= LARGEST:
            raise ValueError(f"the extent {extent} needs more than 64 bits")
        return
    if type(extent) is float and not is_whole and math.isfinite(extent):
        return
    if isinstance(extent, str):
        if symbols is not None and extent not in symbols:
            raise ValueError(f"the extent names the unknown symbol {extent!r:.60}")
        return
    if not isinstance(extent, list) or not 2 <= len(extent) <= MAX_OPERANDS + 1:
        raise ValueError(f"{extent!r:.60} is no extent")
    function = FUNCTIONS.get(extent[0]) if isinstance(extent[0], str) else None
    if function is None or (is_whole and not (function.is_whole or _rounds(extent))):
        raise ValueError(f"unknown operator {extent[0]!r:.60} in an extent")
    if len(extent) < 3 if extent[0] not in _OF_SO_MANY else not function.takes(len(extent) - 1):
        raise ValueError(f"{extent!r:.60} is no extent: {function.name} takes no {len(extent) - 1} operands")
    if not depth:
        raise ValueError(f"an extent nests deeper than {MAX_DEPTH}")
    for operand in extent[1:]:
        if operand is None:
            raise ValueError("an operand of an extent depends on data")
        _check_extent(operand, symbols, is_whole and function.is_whole, depth - 1)


def _rounds(extent: list[Any]) -> bool:
    """Whether an expression is a number that is rounded to an integer, and not to some digits."""
    return FUNCTIONS[extent[0]].is_rounding and len(extent) == 2


def _whole_parts(expression: Expression) -> list[Extent]:
    """Returns the largest parts of an expression that vary and are computed by functions of integers alone, each once.

    Args:
        expression: What `extent_of` or `expression_of` returned.
    """
    if isinstance(expression, str):
        return [expression]
    if not isinstance(expression, list):
        return []
    inside = [_whole_parts(operand) for operand in expression[1:]]
    is_whole = FUNCTIONS[expression[0]].is_whole and all(
        isinstance(operand, int) or found == [operand] for operand, found in zip(expression[1:], inside, strict=True)
    )
    if is_whole and any(inside):
        return [expression]
    return list({str(part): part for parts in inside for part in parts}.values())


def is_integer_arithmetic(extent: Extent) -> bool:
    """Whether an extent is a number, or is computed by functions of integers alone."""
    return isinstance(extent, int) or _whole_parts(extent) == [extent]


def argument_of(expression: Expression) -> Extent:
    """Returns the one extent that an expression is a function of; None where it is one of several sizes."""
    parts = _whole_parts(expression)
    if len(parts) == 1:
        return parts[0]
    symbols = symbols_in(expression)
    return next(iter(symbols)) if len(symbols) == 1 else None


def with_part(expression: Expression, part: Extent, replacement: Expression) -> Expression:
    """Returns an expression with something else in the place of a part of it."""
    if expression == part and type(expression) is type(part):
        return replacement
    if not isinstance(expression, list):
        return expression
    return [expression[0], *(with_part(operand, part, replacement) for operand in expression[1:])]


def format_extent(extent: Expression, names: Callable[[str], str] = str, *, is_wide: bool = False) -> str:
    """Writes an extent as people write it.

    Args:
        extent: Any expression.
        names: What to write for a symbol.
        is_wide: Whether spaces stand around every sign, and what varies first in a sum.

    Example:
        >>> from trt_core.sizes.expressions import format_extent
        >>> format_extent(["floordiv", ["add", "s0", 1], 2])
        '(s0 + 1)//2'
        >>> format_extent(None)
        '?'
    """
    if isinstance(extent, str):
        return names(extent)
    if not isinstance(extent, list):
        return "?" if extent is None else str(extent)
    name, *operands = extent
    if is_wide and name == "add":
        operands = sorted(operands, key=lambda operand: isinstance(operand, int))
    texts = [format_extent(operand, names, is_wide=is_wide) for operand in operands]
    sign = FUNCTIONS[name].sign if name in FUNCTIONS else ""
    if not sign:
        return texts[0] if name == "float" else f"{name}({', '.join(texts)})"
    bare = [
        f"({text})" if " " in text or (isinstance(operand, list) and not is_wide) else text
        for operand, text in zip(operands, texts, strict=True)
    ]
    text = (f" {sign} " if is_wide or sign in "+-%" else sign).join(bare)
    return text.replace("+ -", "- ") if is_wide else text


def symbols_in(extent: Expression) -> set[str]:
    """Returns the names of the symbols that an extent is computed from."""
    if isinstance(extent, str):
        return {extent}
    if isinstance(extent, list):
        return set().union(*(symbols_in(operand) for operand in extent[1:]))
    return set()


def functions_in(extent: Expression) -> int:
    """Returns how many functions are computed for an extent."""
    return 1 + sum(map(functions_in, extent[1:])) if isinstance(extent, list) else 0


def linear_form(extent: Extent) -> tuple[str, int, int] | None:
    """Returns `(symbol, factor, offset)` of an extent that is `factor * symbol + offset`; None for any other.

    Args:
        extent: What `extent_of` returned.
    """
    form = affine_form(extent)
    if form is None or not isinstance(form[0], str):
        return None
    return form[0], form[1], form[2]


def affine_form(extent: Extent) -> tuple[Extent, int, int] | None:
    """Returns `(inner, factor, offset)` of an extent that is `factor * inner + offset`, with the smallest `inner`.

    Args:
        extent: What `extent_of` returned; None is returned for a number and for a factor that is not positive, or needs
            more than 64 bits.
    """
    if extent is None or isinstance(extent, int):
        return None
    if isinstance(extent, str) or extent[0] not in ("add", "mul"):
        return extent, 1, 0
    numbers = [operand for operand in extent[1:] if isinstance(operand, int)]
    others = [operand for operand in extent[1:] if not isinstance(operand, int)]
    if len(others) != 1:
        return extent, 1, 0
    form = affine_form(others[0])
    if form is None:
        return None
    inner, factor, offset = form
    if extent[0] == "add":
        return inner, factor, offset + sum(numbers)
    scale = math.prod(numbers)
    fits = scale > 0 and factor * scale <= LARGEST  # Python writes no number of 4300 digits
    return (inner, factor * scale, offset * scale) if fits else None


def solve_extent(extent: Extent, size: int) -> tuple[str, int | None] | None:
    """Returns the symbol of a linear extent with its value where the extent is `size`, None where there is none.

    Args:
        extent: What `extent_of` returned; None is returned for an extent that is not linear in one symbol.
        size: The size.
    """
    form = linear_form(extent)
    if form is None:
        return None
    symbol, factor, offset = form
    value, rest = divmod(size - offset, factor)
    return symbol, value if rest == 0 else None


def format_multiple(extent: Extent) -> str:
    """Returns the sizes of a linear extent in words: `a multiple of 8`, `a multiple of 2, plus 1`."""
    form = linear_form(extent)
    assert form is not None
    _, factor, offset = form
    return multiple_in_words(factor, offset)


def multiple_in_words(factor: int, offset: int) -> str:
    """Returns `a multiple of 8`, or `a multiple of 2, plus 1`."""
    return f"a multiple of {factor}" + (f", {'plus' if offset > 0 else 'minus'} {abs(offset)}" if offset else "")


def is_same_size(left: Any, right: Any) -> bool:
    """Whether two sizes are known to be equal; symbolic ones by their expressions, since comparing adds a guard.

    Args:
        left, right: Integers, symbolic ones, or anything else, which is no size.
    """
    if not isinstance(left, (int, torch.SymInt)) or not isinstance(right, (int, torch.SymInt)):
        return False
    one, other = (size.node.expr if isinstance(size, torch.SymInt) else size for size in (left, right))
    return bool(one == other)


def depends_on_data(value: Any) -> bool:
    """Whether a dimension, or what is asked of one, follows from values of tensors, not from shapes alone."""
    is_symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return is_symbolic and any(_is_unbacked(symbol) for symbol in value.node.expr.free_symbols)


def extent_of_expression(expr: Any) -> Extent:
    """Returns an expression of sympy as data, by functions of integers and by roundings.

    None where that does not say it, and for what depends on data.

    Floats that are rounded to what integers say exactly are said in integers. Sizes are not negative, so what is
    truncated is rounded down.
    """
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return None if _is_unbacked(expr) else str(expr)
    function = BY_CLASS.get(type(expr).__name__)
    name = function.name if function is not None else ""
    if function is not None and function.is_rounding and len(expr.args) == 1:
        return _rounded(name, expr.args[0])
    if name == "abs":
        extent = extent_of_expression(expr.args[0])
        return None if extent is None else ["max", extent, ["mul", -1, extent]]
    if function is None or not function.is_whole or type(expr).__name__ == "FloatPow":
        return None
    operands = [extent_of_expression(argument) for argument in expr.args]
    if None in operands or (name == "pow" and not (isinstance(operands[1], int) and operands[1] >= 0)):
        return None
    return [name, *operands]


def expression_of(expr: Any) -> Expression:
    """Returns an expression of sympy as data, by any functions of the table; None where there are none."""
    extent = extent_of_expression(expr)
    if extent is not None or expr.is_Symbol:
        return extent
    if expr.is_number and not expr.args:
        return float(expr) if math.isfinite(float(expr)) else None
    kind = type(expr).__name__
    operands = [expression_of(argument) for argument in expr.args]
    if None in operands or not operands:
        return None
    if kind == "TruncToFloat":
        return ["float", ["trunc", *operands]]
    return [BY_CLASS[kind].name, *operands] if kind in BY_CLASS else None


def _rounded(rounding: str, number: Any) -> Extent:
    """Returns what is rounded to an integer: by functions of integers where they say the same.

    A function of several sizes is not returned: no layers compute it (`trt_core.sizes.steps`).
    """
    found: Extent = None
    if rounding in ("floor", "trunc"):
        found = _quotient("floordiv", number) or _root(number) or _scaled(number)
    elif rounding == "ceil":
        found = _quotient("ceildiv", number) or _shifted(number)
    if found is None:
        inside = expression_of(number)
        found = None if inside is None or argument_of(inside) is None else [rounding, inside]
    return found


def _quotient(rounded: str, division: Any) -> Extent:
    """Returns the division of two extents, rounded; None for anything else. No size is large enough to round before."""
    if type(division).__name__ != "IntTrueDiv":
        return None
    operands = [extent_of_expression(argument) for argument in division.args]
    return None if None in operands else [rounded, *operands]


def _root(power: Any) -> Extent:
    """Returns the square root of an extent that is a square, as of patches counted from a square picture."""
    if type(power).__name__ != "FloatPow" or type(power.args[0]).__name__ != "ToFloat":
        return None
    (square,), exponent = power.args[0].args, power.args[1]
    if not exponent.is_number or float(exponent) != 0.5:
        return None
    roots = [_root_of_factor(factor) for factor in (square.args if square.is_Mul else (square,))]
    if None in roots:
        return None
    return roots[0] if len(roots) == 1 else ["mul", *roots]


def _root_of_factor(factor: Any) -> Extent:
    if factor.is_Integer and factor >= 0:
        root = math.isqrt(int(factor))
        return root if root * root == factor else None
    if type(factor).__name__ in ("Pow", "PowByNatural") and factor.args[1] == 2:
        return extent_of_expression(factor.args[0])
    return None


def _shifted(total: Any) -> Extent:
    """Returns an extent plus a constant, rounded up, which `arange` makes that begins between two integers."""
    if type(total).__name__ == "FloatTrueDiv" and total.args[1].is_number and float(total.args[1]) == 1:
        total = total.args[0]
    if not total.is_Add or len(total.args) != 2:
        return None
    shift, size = sorted(total.args, key=lambda argument: not argument.is_Float)
    if not shift.is_Float or type(size).__name__ != "ToFloat":
        return None
    extent = extent_of_expression(size.args[0])
    return None if extent is None else ["add", extent, math.ceil(float(shift))]


def _scaled(product: Any) -> Extent:
    """Returns an extent times a scale, rounded down; None where the product of floats may round.

    Resizing by a factor makes such extents. With a factor of few bits the product is exact for every size.
    """
    if type(product).__name__ == "ToFloat":
        return extent_of_expression(product.args[0])
    if not product.is_Mul or len(product.args) != 2:
        return None
    factor, size = sorted(product.args, key=lambda argument: not argument.is_Float)
    if not factor.is_Float or type(size).__name__ != "ToFloat":
        return None
    over, under = float(factor).as_integer_ratio()
    extent = extent_of_expression(size.args[0])
    if extent is None or over < 0 or max(over, under) > _EXACT_FACTOR:
        return None
    whole: Extent = extent if over == 1 else ["mul", over, extent]
    return whole if under == 1 else ["floordiv", whole, under]


def _is_unbacked(symbol: Any) -> bool:
    return str(symbol).startswith(("u", "zuf"))
