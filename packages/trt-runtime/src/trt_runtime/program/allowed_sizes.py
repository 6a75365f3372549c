"""Says in sizes what a guard says that extents cannot: `height / width > 1.5`, `int(0.3 * length) == 4`.

A guard that is left out is a wrong result for the sizes at which it does not hold. So where it cannot be said exactly,
fewer sizes are allowed than could be.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_core.extents import RELATIONS
from trt_runtime.program.conditions import Condition, Relation, relation_of
from trt_runtime.program.size_grid import MOST_COMBINATIONS, SizeGrid, count_combinations

Sizes = Mapping[str, tuple[int, int, int]]
"""(min, opt, max) of each symbol."""

_MOST_GAPS: Final = 32
"""Where the sizes of a symbol at which a guard fails lie in more pieces, only those around the usual one stay."""

_LARGEST_DENOMINATOR: Final = 1000


def allowed_sizes(guard: Any, sizes: Sizes) -> list[Condition]:
    """Returns conditions of which all hold only where a guard does.

    Args:
        guard: A condition of sympy.
        sizes: The sizes of all symbols in it.
    """
    spans = _computable(sizes)
    conditions = [
        condition
        for name, (low, _, high) in sizes.items()
        for condition in _between(name, range(low, high + 1), spans[name].start, spans[name].stop)
    ]
    return conditions + _allowed_within(guard, spans, [best for _, best, _ in sizes.values()])


def _computable(sizes: Sizes) -> dict[str, range]:
    """Returns the sizes of each symbol; those nearest to the usual ones where all are too many to be computed."""
    spans = {name: range(low, high + 1) for name, (low, _, high) in sizes.items()}
    while (count := count_combinations(spans)) > MOST_COMBINATIONS:
        name, span = max(spans.items(), key=lambda item: len(item[1]))
        kept = max(len(span) // 2, MOST_COMBINATIONS * len(span) // count)
        first = min(max(sizes[name][1] - kept // 2, span.start), span.stop - kept)
        spans[name] = range(first, first + kept)
    return spans


def _allowed_within(guard: Any, spans: Mapping[str, range], usual: list[int]) -> list[Condition]:
    """Returns conditions of which all hold only where a guard does, for spans of few enough sizes."""
    holds = SizeGrid(spans).holds(guard)
    if holds is None:
        return [(Relation(name, "eq", best),) for name, best in zip(spans, usual, strict=True)]
    if holds.all():
        return []
    if not holds.any():
        name, span = next(iter(spans.items()))
        return [(Relation(name, "lt", span[0]),)]
    quotient = _quotient_without_rounding(guard, spans, holds)
    if quotient is not None:
        return [(quotient,)]
    if len(spans) == 1:
        ((name, span),) = spans.items()
        gaps = _runs(~holds)
        if len(gaps) <= _MOST_GAPS:
            return [_outside(name, span, first, last) for first, last in gaps]
    places = np.argwhere(holds)
    distances = np.abs(places - [best - span.start for best, span in zip(usual, spans.values(), strict=True)]).sum(1)
    return _box(spans, holds, tuple(map(int, places[distances.argmin()])))


def _quotient_without_rounding(guard: Any, spans: Mapping[str, range], holds: npt.NDArray[Any]) -> Relation | None:
    """`5 * height > 6 * width` for `height / width > 1.2`, where it is the same for all sizes."""
    import sympy  # PyTorch has imported it where there are guards

    if type(guard).__name__ not in RELATIONS:
        return None
    guard = guard.reversed if type(guard.rhs).__name__ == "IntTrueDiv" else guard
    if type(guard.lhs).__name__ != "IntTrueDiv" or not guard.rhs.is_number:
        return None
    over, under = guard.lhs.args
    ratio = Fraction(float(guard.rhs)).limit_denominator(_LARGEST_DENOMINATOR)
    same = guard.func(sympy.Mul(ratio.denominator, over), sympy.Mul(ratio.numerator, under))
    found = SizeGrid(spans).holds(same) if same.is_Relational else None
    if found is None or not np.array_equal(found, holds):
        return None
    return relation_of(same.lhs, RELATIONS[type(same).__name__].__name__, same.rhs)


def _runs(flags: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Returns the first and the last place of each run of true values in a list."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _outside(name: str, span: range, first: int, last: int) -> Condition:
    """That a symbol is not between two places of its span."""
    if first == last and 0 < first < len(span) - 1:
        return (Relation(name, "ne", span[first]),)
    below = (Relation(name, "lt", span[first]),) if first > 0 else ()
    above = (Relation(name, "gt", span[last]),) if last < len(span) - 1 else ()
    return below + above


def _box(spans: Mapping[str, range], holds: npt.NDArray[Any], at: tuple[int, ...]) -> list[Condition]:
    """Sizes around some, a range for each symbol, at which a guard holds, however they are combined."""
    box = [slice(place, place + 1) for place in at]
    for axis, place in enumerate(at):
        others = tuple(other for other in range(len(at)) if other != axis)
        part = holds[tuple(slice(None) if other == axis else box[other] for other in range(len(at)))]
        line = np.asarray(part.all(axis=others))
        first, last = next(run for run in _runs(line) if run[0] <= place <= run[1])
        box[axis] = slice(first, last + 1)
    return [
        condition
        for (name, span), kept in zip(spans.items(), box, strict=True)
        for condition in _between(name, span, span[kept.start], span[kept.stop - 1] + 1)
    ]


def _between(name: str, span: range, first: int, end: int) -> list[Condition]:
    """That a symbol has, of its span, a size from one on and below another."""
    if end - first == 1 < len(span):
        return [(Relation(name, "eq", first),)]
    conditions: list[Condition] = []
    if first > span.start:
        conditions.append((Relation(name, "ge", first),))
    if end < span.stop:
        conditions.append((Relation(name, "le", end - 1),))
    return conditions
