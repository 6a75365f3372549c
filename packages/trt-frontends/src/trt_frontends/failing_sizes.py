"""Finds the sizes at which a condition does not hold, where one symbol alone decides that.

Conditions that PyTorch notes may name symbols which cancel: `(height // (height // 4)) * width` has no height in it
where the height is a multiple of 4. All sizes of all symbols are computed at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from trt_core.extents import RELATIONS, Extent, extent_of_expression

MOST_COMBINATIONS: Final = 1 << 18
"""Where there are more sizes, nothing is said."""

_LARGEST: Final = 2**31 - 1
"""Numbers of this magnitude are multiplied without leaving 64 bits."""

_OPERATORS: Final[Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "add": torch.add,
    "mul": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
_DIVISIONS: Final[Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "floordiv": torch.floor_divide,
    "ceildiv": lambda left, right: -torch.floor_divide(-left, right),
    "mod": torch.remainder,
}


class FailingSizes:
    """Says at which sizes a condition does not hold.

    Args:
        demanded: Relations of sympy that sizes have to fulfil in any case; only such sizes are looked at.
        spans: The sizes of each symbol.
    """

    def __init__(self, demanded: Iterable[Any], spans: Mapping[str, range]) -> None:
        self._demanded = [(_names(condition), condition) for condition in demanded]
        self._spans = spans
        self._grids: dict[frozenset[str], _Grid] = {}

    def of(self, condition: Any) -> tuple[str, list[int]] | None:
        """Returns a symbol and its sizes at which a condition does not hold, where those of others do not matter.

        Args:
            condition: A relation of sympy.

        Returns:
            None where more than one symbol decides, for a condition that cannot be computed, and for too many sizes.
        """
        names = _names(condition)
        about = [other for other in self._demanded if names & other[0]]
        everything = names.union(*(others for others, _ in about))
        if self._count(everything) <= MOST_COMBINATIONS:
            names = everything
        if not names or not 0 < self._count(names) <= MOST_COMBINATIONS:
            return None
        grid = self._grids.get(names)
        if grid is None:
            grid = self._grids[names] = _Grid({name: self._spans[name] for name in sorted(names)})
        holds = grid.holds(condition)
        if holds is None:
            return None
        allowed = torch.ones_like(holds)
        for others, other in about:
            found = grid.holds(other) if others <= names else None
            allowed = allowed if found is None else allowed & found
        for axis, name in enumerate(sorted(names)):
            fails, passes = ((answer & allowed).movedim(axis, 0).flatten(1).any(1) for answer in (~holds, holds))
            if not bool((fails & passes).any()):
                return name, [self._spans[name][at] for at in fails.nonzero().flatten().tolist()]
        return None

    def _count(self, names: Iterable[str]) -> float:
        return math.prod(len(self._spans[name]) if name in self._spans else math.inf for name in names)


def _names(condition: Any) -> frozenset[str]:
    return frozenset(str(symbol) for symbol in condition.free_symbols)


class _Grid:
    """All sizes of some symbols, an axis for each.

    Args:
        spans: The sizes of each symbol.
    """

    def __init__(self, spans: Mapping[str, range]) -> None:
        axes = torch.meshgrid(*(torch.arange(span.start, span.stop) for span in spans.values()), indexing="ij")
        self._symbols = dict(zip(spans, axes, strict=True))
        self._shape = (*map(len, spans.values()), 1)
        self._by_zero = torch.zeros((), dtype=torch.bool)
        self._known: dict[Any, torch.Tensor | None] = {}

    def holds(self, condition: Any) -> torch.Tensor | None:
        """Returns for all sizes whether a relation holds, which it does not by division by zero; None if not known."""
        if condition not in self._known:
            self._known[condition] = self._computed(condition)
        return self._known[condition]

    def _computed(self, condition: Any) -> torch.Tensor | None:
        relation = RELATIONS.get(type(condition).__name__)
        if relation is None:
            return None
        self._by_zero = torch.zeros((), dtype=torch.bool)
        try:
            left, right = (self._value(extent_of_expression(side)) for side in condition.args)
        except ValueError:
            return None
        found: torch.Tensor = relation(left, right) & ~self._by_zero
        return found.unsqueeze(-1).expand(self._shape)

    def _value(self, extent: Extent) -> torch.Tensor:
        if isinstance(extent, int):
            return torch.tensor(extent)
        if isinstance(extent, str):
            return self._symbols[extent]
        if extent is None or extent[0] not in _OPERATORS.keys() | _DIVISIONS.keys():
            raise ValueError("no arithmetic of whole numbers")
        name, *operands = extent
        return functools.reduce(functools.partial(self._combined, name), map(self._value, operands))

    def _combined(self, name: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if name in _DIVISIONS:
            is_zero = right == 0
            self._by_zero = self._by_zero | is_zero
            found = _DIVISIONS[name](left, torch.where(is_zero, 1, right))
        else:
            found = _OPERATORS[name](left, right)
        if int(found.abs().max()) > _LARGEST:
            raise ValueError("the numbers are too large")
        return found
