"""Symbolic extents: those that only running can tell, and the environment that computes with them.

Extents that are known only at run time become unbacked symbolic integers; the expressions over them outlive the
environment that made them, so that an assumption made for one layer (two extents that must be equal, say) never reaches
another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trt_portable.errors import Refusal

if TYPE_CHECKING:
    from trt_core.internals import FakeTensorMode, ShapeEnv


class Symbols:
    """The symbolic extents of one network, and the environment that computes with them."""

    def __init__(self) -> None:
        self._count = 0
        self._environment: ShapeEnv | None = None
        self._mode: FakeTensorMode | None = None
        self._integers: dict[Any, torch.SymInt] = {}
        self._ranges: dict[Any, Any] = {}
        self._assertions = 0
        self._terms = 0

    def create(self) -> Any:
        """A new symbol for an extent that is not negative."""
        from trt_portable.internals import SymT, make_symbol

        self._count_made()
        symbol = make_symbol(SymT.UNBACKED_INT, self._count, integer=True)
        self._count += 1
        if self._environment is not None:
            self._environment.unbacked_symint_counter = self._count
        return symbol

    @property
    def count(self) -> int:
        """The number of symbols made so far."""
        return self._count

    def mode(self) -> FakeTensorMode:
        """The fake tensor mode in which symbolic extents compute."""
        return self._open()[1]

    def integer(self, extent: Any) -> int | torch.SymInt:
        """An extent as something that PyTorch takes for a size."""
        if type(extent) is int:
            return extent
        found = self._integers.get(extent)
        if found is None:
            environment, _ = self._open()
            self._enter(environment, extent)
            made = environment.create_symintnode(extent, hint=None)
            if not isinstance(made, torch.SymInt):
                return int(made)
            found = self._integers[extent] = made
        return found

    def noted(self, number: Any) -> Any:
        """What `expression_of` says of a number, of which `integer` makes the same number again.

        Raises:
            Refusal: All numbers of the network together take too many terms, each of which took time.
        """
        found = expression_of(number)
        if isinstance(number, torch.SymInt) and type(found) is not int and found not in self._integers:
            self._terms += _count_terms(number.node.expr)
            if self._terms > MOST_COMPUTED:
                raise Refusal(f"the numbers that shapes are computed of take more than {MOST_COMPUTED:,} terms")
            if found is not None:
                self._integers[found] = number
        return found

    @staticmethod
    def expression(number: Any) -> Any:
        """An integer, or the expression of a symbolic one.

        Raises:
            Refusal: It takes too many terms to say.
        """
        found = expression_of(number)
        if found is None:
            raise Refusal(_TOO_MANY_TERMS)
        return found

    def total(self, extents: Iterable[Any]) -> Any:
        """A sum of extents.

        Raises:
            Refusal: It takes too many terms to say.
        """
        counts = Counter(extents)
        total: Any = sum(extent * count for extent, count in counts.items() if type(extent) is int)
        symbolic = [(extent, count) for extent, count in counts.items() if type(extent) is not int]
        if len(symbolic) > _MOST_TERMS:
            raise Refusal(_TOO_MANY_TERMS)
        return self.expression(total + sum(self.integer(extent) * count for extent, count in symbolic))

    def settle(self) -> None:
        """Drops what one layer assumed of the symbols, and counts those that it made."""
        environment = self._environment
        if environment is None:
            return
        self._count_made()
        if (
            len(environment.var_to_range) > _MOST_KNOWN
            or environment.replacements
            or environment.num_deferred_runtime_asserts != self._assertions
            or any(environment.var_to_range.get(symbol) != bounds for symbol, bounds in self._ranges.items())
        ):
            self._environment = self._mode = None
            self._integers.clear()
            self._ranges.clear()
            return
        self._note_known(environment)

    def _count_made(self) -> None:
        """Counts the symbols that layers made, of what only data can tell."""
        if self._environment is not None:
            self._count = max(self._count, self._environment.unbacked_symint_counter)

    def _note_known(self, environment: ShapeEnv) -> None:
        self._ranges = dict(environment.var_to_range)
        self._assertions = environment.num_deferred_runtime_asserts

    def _open(self) -> tuple[ShapeEnv, FakeTensorMode]:
        if self._environment is None or self._mode is None:
            from trt_core.internals import FakeTensorMode, ShapeEnv

            self._environment = ShapeEnv()
            self._environment.unbacked_symint_counter = self._count
            self._mode = FakeTensorMode(shape_env=self._environment)
            self._mode.cache_enabled = False  # what would be found is remembered here; its keys take half of the time
            self._note_known(self._environment)
        return self._environment, self._mode

    def _enter(self, environment: ShapeEnv, extent: Any) -> None:
        """Lets the environment know the symbols of an extent, under the numbers that they have here."""
        following, assertions = environment.unbacked_symint_counter, environment.num_deferred_runtime_asserts
        for symbol in sorted(extent.free_symbols - environment.var_to_range.keys(), key=str):
            environment.unbacked_symint_counter = int(symbol.name[1:])
            torch._check(environment.create_unbacked_symint() >= 0)
            self._ranges[symbol] = environment.var_to_range[symbol]
        environment.unbacked_symint_counter = following
        self._assertions += environment.num_deferred_runtime_asserts - assertions


_MOST_KNOWN: Final = 256
"""Symbols of an environment, which looks through all of them for each layer; a new one knows those that it is given."""
_MOST_TERMS: Final = 256
MOST_COMPUTED: Final = 4_000_000
"""Terms of all numbers of a network that shapes are computed of; each takes 25 microseconds where numbers have many."""
_TOO_MANY_TERMS: Final = "an extent of the output takes too many terms to say"
_MULTIPLIED: Final = 4
"""How many terms of a sum take as long as one of a product of sums."""
_MOST_POWER: Final = 8


def expression_of(number: Any) -> Any:
    """An integer, or the expression of a symbolic one; None for what cannot be kept, as an expression without end."""
    if isinstance(number, (bool, int, float)):
        return number
    if isinstance(number, np.generic):
        return number.item()
    if isinstance(number, torch.SymInt):
        expression = number.node.expr
        if expression.is_number:
            return int(expression)
        return expression if _count_terms(expression) <= _MOST_TERMS else None
    return None


def _count_terms(expression: Any) -> int:
    """How many terms an expression has once it is multiplied out, as PyTorch does to compare it, or one too many."""
    counts = [_count_terms(operand) for operand in expression.args]
    if expression.is_Add:
        return min(sum(counts), _MOST_TERMS + 1)
    if expression.is_Mul:
        sums = sum(count > 1 for count in counts)
        return min(math.prod(counts) * (_MULTIPLIED if sums > 1 else 1), _MOST_TERMS + 1)
    if expression.is_Pow:
        exponent = expression.args[1]
        is_small = exponent.is_Integer and abs(exponent) <= _MOST_POWER
        return min(counts[0] ** abs(int(exponent)), _MOST_TERMS + 1) if is_small else _MOST_TERMS + 1
    return min(1 + sum(counts), _MOST_TERMS + 1)
