"""Symbolic extents: those that only running can tell, and the environment that computes with them.

Extents that are known only at run time become unbacked symbolic integers; the expressions over them outlive the
environment that made them, so that an assumption made for one layer (two extents that must be equal, say) never reaches
another.
"""

from __future__ import annotations

import math
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

    def create(self) -> Any:
        """A new symbol for an extent that is not negative."""
        environment, _ = self._open()
        symbol = self._new(environment)
        self._count += 1
        self._note_known(environment)
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
            made = environment.create_symintnode(extent, hint=None)
            if not isinstance(made, torch.SymInt):
                return int(made)
            found = self._integers[extent] = made
        return found

    @staticmethod
    def expression(number: Any) -> Any:
        """An integer, or the expression of a symbolic one.

        Raises:
            Refusal: It takes too many terms to say.
        """
        found = expression_of(number)
        if found is None:
            raise Refusal("an extent of the output takes too many terms to say")
        return found

    def settle(self) -> None:
        """Drops what one layer assumed of the symbols, and counts those that it made."""
        environment = self._environment
        if environment is None:
            return
        created = len(environment.var_to_range) - len(self._ranges)
        if created > 0:
            self._count += created
        if (
            environment.replacements
            or environment.num_deferred_runtime_asserts != self._assertions
            or any(environment.var_to_range.get(symbol) != bounds for symbol, bounds in self._ranges.items())
        ):
            self._environment = self._mode = None
            self._integers.clear()
            return
        self._note_known(environment)

    def _note_known(self, environment: ShapeEnv) -> None:
        self._ranges = dict(environment.var_to_range)
        self._assertions = environment.num_deferred_runtime_asserts

    def _open(self) -> tuple[ShapeEnv, FakeTensorMode]:
        if self._environment is None or self._mode is None:
            from trt_core.internals import FakeTensorMode, ShapeEnv

            self._environment = ShapeEnv()
            self._mode = FakeTensorMode(shape_env=self._environment)
            self._mode.cache_enabled = False  # what would be found is remembered here; its keys take half of the time
            # Symbols are numbered in the order of their creation, so that the same ones come back.
            for _ in range(self._count):
                self._new(self._environment)
            self._note_known(self._environment)
        return self._environment, self._mode

    @staticmethod
    def _new(environment: ShapeEnv) -> Any:
        integer = environment.create_unbacked_symint()
        torch._check(integer >= 0)
        return integer.node.expr


_MOST_TERMS: Final = 256
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
