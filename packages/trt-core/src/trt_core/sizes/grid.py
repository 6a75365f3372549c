"""Computes what is asked of sizes for all sizes at once, in the arithmetic that Python computes it in.

Sizes are few: each symbol is an axis of an array, and each function one of arrays, whose integers and floats are those
of Python as long as they fit 64 bits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.sizes.expressions import Expression, expression_of
from trt_core.sizes.functions import FUNCTIONS

MOST_COMBINATIONS: Final = 1 << 20
"""More sizes are not computed."""

_MOST_TRIED: Final = 1 << 18
"""Where a condition and what belongs to it have more sizes, `FailingSizes` says nothing."""

_MOST_FAILING: Final = 16
"""Where a condition fails at more sizes, nothing is said: it is tried at each whether that matters."""

_LARGEST: Final = 2**62
"""Integers beyond it may have left 64 bits on the way."""

_DIVISIONS: Final = ("truediv", "floordiv", "ceildiv", "mod")

_ROUNDINGS: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "trunc": torch.trunc,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
}


def _one_by_one(name: str) -> Callable[..., torch.Tensor]:
    """A function that libraries of arrays round in another way than Python does."""

    def compute(*operands: torch.Tensor) -> torch.Tensor:
        function, alike = FUNCTIONS[name].compute, torch.broadcast_tensors(*operands)
        numbers = [function(*numbers) for numbers in zip(*(value.flatten().tolist() for value in alike), strict=True)]
        return torch.tensor(numbers, dtype=torch.float64, device="cpu").reshape(alike[0].shape)

    return compute


def _power(base: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    is_whole = base.dtype == torch.int64
    power: torch.Tensor = base**exponent if is_whole else _one_by_one("pow")(base, exponent)
    return power


_OF_ARRAYS: Final[Mapping[str, Callable[..., Any]]] = {
    "max": torch.maximum,
    "min": torch.minimum,
    "not": torch.logical_not,
    "float": torch.Tensor.double,
    "sqrt": lambda value: value.double().sqrt(),
    "log2": _one_by_one("log2"),
    "pow": _power,
    "truediv": lambda left, right: left.double() / right.double(),
}
"""Functions that arrays have others for than numbers have."""


class SizeGrid:
    """All sizes of some symbols.

    Args:
        spans: The sizes of each symbol.
    """

    def __init__(self, spans: Mapping[str, range]) -> None:
        self._symbols: dict[str, torch.Tensor] = {}
        for axis, (name, span) in enumerate(spans.items()):
            sizes = torch.arange(span.start, span.stop, span.step, dtype=torch.int64, device="cpu")
            self._symbols[name] = sizes.reshape(-1, *[1] * (len(spans) - axis - 1))
        self._shape = tuple(map(len, spans.values()))
        self._fails = _array(False)
        self._known: dict[Any, torch.Tensor | None] = {}

    def holds(self, condition: Any) -> torch.Tensor | None:
        """Returns for all sizes whether a condition of sympy holds; it does not where it divides by zero.

        Returns:
            (extent of each span), bool. None where that cannot be computed.
        """
        if condition not in self._known:
            self._known[condition] = self._computed(expression_of(condition))
        return self._known[condition]

    def _computed(self, expression: Expression) -> torch.Tensor | None:
        found = self._values(expression)
        return found & ~self._fails.expand(self._shape) if found is not None and found.dtype is torch.bool else None

    def integers(self, extent: Expression) -> torch.Tensor | None:
        """Returns an extent for all sizes.

        Returns:
            (extent of each span), int64. None where that cannot be computed, for some sizes or at all.
        """
        found = self._values(extent)
        return found if found is not None and found.dtype is torch.int64 and not self._fails.any() else None

    def _values(self, expression: Expression) -> torch.Tensor | None:
        self._fails = _array(False)
        try:
            return self._value(expression).expand(self._shape)
        except (ValueError, KeyError, RuntimeError, ArithmeticError):  # a number too large, a symbol of no input
            return None

    def _value(self, expression: Expression) -> torch.Tensor:
        if isinstance(expression, str):
            return self._symbols[expression]
        if not isinstance(expression, list):
            return _array(expression)
        name, operands = expression[0], [self._value(operand) for operand in expression[1:]]
        if len(operands) > 1:
            return functools.reduce(lambda left, right: self._of_two(name, *_alike(left, right)), operands)
        if name not in _ROUNDINGS:
            computed: torch.Tensor = _OF_ARRAYS.get(name, FUNCTIONS[name].compute)(*operands)
            return computed
        rounded = _ROUNDINGS[name](operands[0].double())
        is_number = rounded.abs() < _LARGEST
        self._fails = self._fails | ~is_number
        return torch.where(is_number, rounded, 0).to(torch.int64)

    def _of_two(self, name: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if name in _DIVISIONS:
            is_zero = right == 0
            self._fails = self._fails | is_zero
            right = torch.where(is_zero, 1, right)
        if left.dtype == torch.int64:
            _require_bounded(name, left, right)
        result: torch.Tensor = _OF_ARRAYS.get(name, FUNCTIONS[name].compute)(left, right)
        return result


class FailingSizes:
    """Says at which sizes a condition does not hold, where one symbol alone decides that, or these are few.

    Conditions that PyTorch notes may name symbols which cancel: `(height // (height // 4)) * width` has no height in it
    where the height is a multiple of 4.

    Args:
        demanded: Relations of sympy that sizes have to fulfil in any case; only such sizes are looked at.
        spans: The sizes of each symbol.
        usual: A size of each symbol, which those that do not matter have where the demanded relations allow it.
    """

    def __init__(self, demanded: Iterable[Any], spans: Mapping[str, range], usual: Mapping[str, int]) -> None:
        self._demanded = [(_names(condition), condition) for condition in demanded]
        self._spans = spans
        self._usual = usual
        self._grids: dict[frozenset[str], SizeGrid] = {}

    def of(self, condition: Any) -> list[dict[str, int]] | None:
        """Returns the sizes at which a condition does not hold.

        Where the demanded relations tie the others to it, they have sizes that are allowed beside it: two batches that
        must be equal are both 1, or neither.

        Args:
            condition: A relation of sympy.

        Returns:
            Sizes by symbol: of one that decides, with one size of the others; else all. None for a condition that
            cannot be computed, and for too many sizes.
        """
        names = _names(condition)
        about = [other for other in self._demanded if names & other[0]]
        everything = names.union(*(others for others, _ in about))
        if self._count(everything) <= _MOST_TRIED:
            names = everything
        if not names or not 0 < self._count(names) <= _MOST_TRIED:
            return None
        grid = self._grids.get(names)
        if grid is None:
            grid = self._grids[names] = SizeGrid({name: self._spans[name] for name in sorted(names)})
        holds = grid.holds(condition)
        if holds is None:
            return None
        allowed = torch.ones_like(holds)
        for others, other in about:
            found = grid.holds(other) if others <= names else None
            allowed = allowed if found is None else allowed & found
        failing = ~holds & allowed
        for axis, length in enumerate(holds.shape):
            fails, passes = (
                (answer & allowed).movedim(axis, 0).reshape(length, -1).any(1) for answer in (~holds, holds)
            )
            if not (fails & passes).any():
                few = fails.sum() <= _MOST_FAILING
                return self._nearest(sorted(names), axis, failing) if few else None
        if failing.sum() > _MOST_FAILING:
            return None
        spans = {name: self._spans[name] for name in sorted(names)}
        return [
            {name: span[at] for (name, span), at in zip(spans.items(), place, strict=True)}
            for place in failing.nonzero().tolist()
        ]

    def _nearest(self, names: list[str], axis: int, failing: torch.Tensor) -> list[dict[str, int]]:
        """Returns the sizes nearest to the usual ones for each place of an axis at which something fails."""
        spans = [self._spans[name] for name in names]
        usual = [self._usual.get(name, span.start) for name, span in zip(names, spans, strict=True)]
        nearest: dict[int, tuple[int, tuple[int, ...]]] = {}
        for place in failing.nonzero().tolist():
            sizes = tuple(span[at] for span, at in zip(spans, place, strict=True))
            distance = sum(abs(size - best) for size, best in zip(sizes, usual, strict=True))
            nearest[place[axis]] = min((distance, sizes), nearest.get(place[axis], (distance, sizes)))
        return [dict(zip(names, sizes, strict=True)) for _, (_, sizes) in sorted(nearest.items())]

    def _count(self, names: Iterable[str]) -> float:
        return math.prod(len(self._spans[name]) if name in self._spans else math.inf for name in names)


def runs(flags: torch.Tensor) -> list[tuple[int, int]]:
    """Returns the first and the last place of each run of true values in a list."""
    places = flags.nonzero().flatten().tolist()
    groups = itertools.groupby(enumerate(places), key=lambda item: item[1] - item[0])
    found = ([place for _, place in group] for _, group in groups)
    return [(run[0], run[-1]) for run in found]


def _array(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device="cpu")


def _alike(left: torch.Tensor, right: torch.Tensor) -> Sequence[torch.Tensor]:
    """Two arrays of one type, as Python has a float where one of two numbers is."""
    return (left, right) if left.dtype == right.dtype else (left.double(), right.double())


def _require_bounded(name: str, left: torch.Tensor, right: torch.Tensor) -> None:
    """Refuses integers of which a result may leave 64 bits."""
    most = [int(value.abs().max()) if value.numel() else 0 for value in (left, right)]
    if name == "pow":
        is_small = right.ndim == 0 and right >= 0 and most[0] ** min(int(right), 64) <= _LARGEST
    else:
        is_small = (math.prod(most) if name == "mul" else sum(most)) <= _LARGEST or name not in ("add", "mul")
    if not is_small:
        raise ValueError("the numbers are too large")


def _names(condition: Any) -> frozenset[str]:
    return frozenset(str(symbol) for symbol in condition.free_symbols)
