"""What is asked of symbolic sizes for each layer: their least value, and quotients, in the same form as PyTorch's.

PyTorch answers by searching through what sympy assumes of expressions, which takes milliseconds; of sizes, which are no
less than 0, terms and factors tell it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import torch


def least_of(number: Any) -> float:
    """What an integer is at least, as functions of sizes tell; minus infinity where they do not."""
    if isinstance(number, torch.SymInt):
        return _least(number.node.expr, number.node.shape_env.var_to_range)
    return number if type(number) is int else -math.inf


def is_negative(number: Any) -> bool:
    """Whether an integer is certainly below 0; of a symbolic one, whether it is unless sizes are 0."""
    if isinstance(number, torch.SymInt):
        return _least(-number.node.expr, number.node.shape_env.var_to_range) >= 0
    return bool(number < 0)


def _least(expression: Any, ranges: Mapping[Any, Any]) -> float:
    return bounds_of(expression, ranges)[0]


def bounds_of(expression: Any, ranges: Mapping[Any, Any]) -> tuple[float, float]:
    """Returns what an expression is at least and at most, as functions of sizes tell; infinities where they do not.

    Args:
        expression: Of sympy, over whole numbers.
        ranges: What PyTorch knows of symbols.
    """
    if expression.is_Integer:
        return int(expression), int(expression)
    if expression.is_Symbol:
        known = ranges.get(expression)
        if known is None:
            return -math.inf, math.inf
        return (
            int(known.lower) if known.lower.is_Integer else -math.inf,
            int(known.upper) if known.upper.is_Integer else math.inf,
        )
    kind = type(expression).__name__
    if kind not in _INCREASING:
        return -math.inf, math.inf
    if kind == "Mul" and expression.args[0].is_negative:
        low, high = bounds_of(-expression, ranges)
        return -high, -low
    lows, highs = zip(*(bounds_of(operand, ranges) for operand in expression.args), strict=True)
    if kind == "Add":
        return sum(lows), sum(highs)
    if kind in ("Max", "Min"):
        pick = max if kind == "Max" else min
        return pick(lows), pick(highs)
    if min(lows) < 0:
        return -math.inf, math.inf
    return (math.prod(lows), math.prod(highs)) if kind == "Mul" else (0, highs[0])


_INCREASING: Final = frozenset({"Add", "Mul", "Max", "Min", "FloorDiv"})
_SHORT: Final = 16


def quotient(dividend: Any, divisor: Any) -> Any:
    """Integer division that rounds down."""
    if is_unknown(dividend):
        number = dividend.node.expr
        found = None
        if is_unknown(divisor):
            found = _cancelled(number, divisor.node.expr)
        elif type(divisor) is int and divisor > 0:
            found = _divided(number, divisor)
        if found is not None:
            return dividend.node.shape_env.create_symintnode(found, hint=None)
    return dividend // divisor


def is_unknown(number: Any) -> bool:
    """Whether a number is symbolic without a hint, so that comparing it cannot be decided."""
    return isinstance(number, torch.SymInt) and not number.node.has_hint()


def _divided(expression: Any, divisor: int) -> Any:
    """An expression divided by a positive number: terms that are multiples of it are beside what is rounded."""
    import sympy  # PyTorch has imported it where sizes vary

    from trt_portable.internals import FloorDiv

    if isinstance(expression, FloorDiv) and expression.args[1].is_Integer:
        return _divided(expression.args[0], divisor * int(expression.args[1]))
    if expression.is_Integer:
        return expression // divisor
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(expression)]
    if not all(factor.is_Integer for factor, _ in terms):
        return None
    whole = [factor // divisor * rest for factor, rest in terms if factor % divisor == 0]
    broken = [(factor, rest) for factor, rest in terms if factor % divisor]
    common = math.gcd(divisor, *(int(factor) for factor, _ in broken))
    if not whole and common == 1:
        return FloorDiv(expression, sympy.Integer(divisor), evaluate=False)
    rounded = _divided(sympy.Add(*(factor // common * rest for factor, rest in broken)), divisor // common)
    return None if rounded is None else sympy.Add(*whole, rounded)


def _cancelled(expression: Any, divisor: Any) -> Any:
    """An expression divided by another one, where their terms tell what they have in common; else None."""
    import sympy  # PyTorch has imported it where sizes vary

    from trt_portable.internals import FloorDiv

    if divisor.is_number:
        return None
    terms, unders = sympy.Add.make_args(expression), sympy.Add.make_args(divisor)
    if len(unders) > 1:
        ratios = [term / unders[0] for term in terms] if len(terms) == len(unders) <= _SHORT else []
        found = next((one for one in ratios if is_whole(one) and (one * divisor).expand() == expression), None)
        if found is not None or (_is_short(expression) and _is_short(divisor)):
            return found
        return FloorDiv(expression, divisor, evaluate=False)
    ratios = [term / divisor for term in terms]
    if all(map(is_whole, ratios)):
        return sympy.Add(*ratios)
    if len(terms) > 1:
        return None if _is_short(expression) else FloorDiv(expression, divisor, evaluate=False)
    over, under = ratios[0].as_numer_denom()
    if under.is_Integer:
        return _divided(over, int(under))
    if isinstance(over, FloorDiv):
        over, under = over.args[0], over.args[1] * under
    return FloorDiv(over, under, evaluate=False)


def _is_short(expression: Any) -> bool:
    """Whether PyTorch may look for common factors of an expression, which takes minutes of one of 50 parts."""
    import sympy  # PyTorch has imported it where sizes vary

    return len(list(islice(sympy.preorder_traversal(expression), _SHORT))) < _SHORT


def is_whole(ratio: Any) -> bool:
    """Whether nothing is below the line of a product."""
    factors = ratio.args if ratio.is_Mul else (ratio,)
    return not any(
        (factor.is_Rational and not factor.is_Integer)
        or (factor.is_Pow and not (factor.exp.is_Integer and factor.exp > 0))
        for factor in factors
    )
