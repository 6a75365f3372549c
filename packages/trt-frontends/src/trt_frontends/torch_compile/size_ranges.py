"""Chooses the sizes that the engines of a dynamic graph are built for, and says whether a call stays within them.

Dynamo says what a size may be in principle, mostly two to infinity. An engine needs an end, and what it is tuned for:
the sizes of the first call. The end is generous, because a call beyond it builds anew, and small enough that no tensor
of the graph has more elements than TensorRT can count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.sizes.conditions import relation_of
from trt_core.sizes.expressions import Extent, evaluate_extent, extent_of, symbols_in
from trt_core.sizes.functions import relation_name
from trt_core.sizes.guards import shape_environment
from trt_core.sizes.ranges import UNBOUNDED, ShapeRanges

GENEROUS: Final = 4096
"""The end of a range that nothing bounds."""

MOST_ELEMENTS: Final = 2**31 - 1
"""The most elements of a tensor in a TensorRT engine."""

_TRIES: Final = 256


@dataclass(frozen=True)
class SizeReading:
    """Where a call says what a symbol is: the number at a position, or an extent of the tensor there.

    Attributes:
        symbol: The symbol.
        position: Position among the inputs of the graph.
        axis: Axis of the tensor, None for a number.
    """

    symbol: Any
    position: int
    axis: int | None

    def read(self, inputs: Sequence[Any]) -> int:
        """Returns the size."""
        value = inputs[self.position]
        return int(value if self.axis is None else value.shape[self.axis])


class GraphSizes:
    """The symbolic sizes of a graph.

    Args:
        gm: A graph whose nodes carry `meta["val"]`.

    Attributes:
        readings: Where a call says what each symbol is.
        counts: Those of numbers that are no size of any tensor, such as how many of the last tokens are wanted.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.readings = _find_readings(gm)
        self.counts = _find_counts(gm, self.readings)
        self._volumes = _find_volumes(gm) if self.readings else []
        self._shape_env = shape_environment(gm.graph.nodes)

    def read(self, inputs: Sequence[Any]) -> dict[Any, int]:
        """Returns the value of each symbol in a call."""
        return {reading.symbol: reading.read(inputs) for reading in self.readings}

    def choose(
        self, inputs: Sequence[Any], former: ShapeRanges | None = None, fixed_at: Collection[int] = ()
    ) -> ShapeRanges:
        """Returns the ranges to build for.

        Args:
            inputs: Inputs of the call that is at hand; it lies within the ranges, and they are tuned for it.
            former: Ranges that turned out too narrow; the new ones contain them.
            fixed_at: Positions of numbers that are part of the engines.
        """
        sizes = self.read(inputs)
        fixed = {reading.symbol for reading in self.counts if reading.position in fixed_at}
        low: dict[Any, int] = {}
        high: dict[Any, int] = {}
        open_ends = set()
        for symbol, size in sizes.items():
            if symbol in fixed:
                low[symbol] = high[symbol] = size
                continue
            least, most = self._known(symbol)
            if most >= UNBOUNDED:
                open_ends.add(symbol)
                most = max(GENEROUS, _next_power_of_two(4 * size))
            if former is not None:
                before = former.symbols[str(symbol)]
                least, most = min(least, before[0]), max(most, before[2])
            low[symbol], high[symbol] = min(least, size), max(most, size)
        self._limit_volumes(high, sizes, open_ends)
        low, high = self._agreeing(low, sizes, step=1), self._agreeing(high, sizes, step=-1)
        for symbol in sizes.keys() - fixed if former is not None else ():
            before = former.symbols[str(symbol)]  # type: ignore[union-attr]
            low[symbol], high[symbol] = min(low[symbol], before[0]), max(high[symbol], before[2])
        return ShapeRanges({str(symbol): (low[symbol], sizes[symbol], high[symbol]) for symbol in sizes})

    def _known(self, symbol: Any) -> tuple[int, int]:
        known = self._shape_env.var_to_range.get(symbol) if self._shape_env is not None else None
        if known is None:
            return 0, UNBOUNDED
        low = int(known.lower) if known.lower.is_Integer else 0
        high = int(known.upper) if known.upper.is_Integer else UNBOUNDED
        return max(low, 0), min(high, UNBOUNDED)

    def _limit_volumes(self, high: dict[Any, int], sizes: Mapping[Any, int], open_ends: set[Any]) -> None:
        """Halves the widest ranges until no tensor is larger than TensorRT can count."""
        names = {str(symbol): symbol for symbol in high}
        for extents in self._volumes:
            mine = [names[name] for name in sorted(set().union(*map(symbols_in, extents))) if name in names]
            while _volume(extents, high) > MOST_ELEMENTS:
                shrinkable = [
                    symbol for symbol in mine if symbol in open_ends and high[symbol] >= 2 * max(sizes[symbol], 1)
                ]
                if not shrinkable:
                    break
                widest = max(shrinkable, key=lambda symbol: (high[symbol] / max(sizes[symbol], 1), str(symbol)))
                high[widest] //= 2

    def _agreeing(self, ends: Mapping[Any, int], sizes: Mapping[Any, int], step: int) -> dict[Any, int]:
        """Moves one end of each range to where the guards of the graph hold, such as a multiple of 8, or `s1 + 1`.

        An engine is checked at the ends of all ranges at a time, so ends are chosen one after the other, each to agree
        with those before. Where nothing near an end agrees, it is a multiple or a part of the size at hand, or as far
        from that as guards hold, such as 39 for `size // 8 == 4`. An end that finds no agreement stays: guards are
        more than an engine needs.

        Args:
            ends: The end of each range.
            sizes: Sizes at which all guards hold.
            step: 1 to look upwards first, for the lower ends; -1 to look downwards first.
        """
        guards = self._guards()
        found: dict[Any, int] = {}
        for symbol, end in ends.items():
            known = {*found, symbol}
            mine = [guard for guard in guards if symbol in guard.free_symbols and guard.free_symbols <= known]
            if not mine:
                found[symbol] = end
                continue
            size, tests = sizes[symbol], [_test_of(guard) for guard in mine]
            named = {str(other): value for other, value in found.items()}

            def agrees(candidate: int, name: str = str(symbol), named: Any = named, tests: Any = tests) -> bool:
                return all(test({**named, name: candidate}) for test in tests)

            inwards = range(end, size + step, step)[:_TRIES]
            outwards = range(end, max(end - step * _TRIES, 0), -step)
            best = next(filter(agrees, (*inwards, *outwards, *_scales(size, end))), None)
            if best == size != end:
                beyond = range(size - step, end - step, -step)[:_TRIES]
                best = ([size, *itertools.takewhile(agrees, beyond)])[-1]
            found[symbol] = end if best is None else best
        return found

    def _guards(self) -> list[Any]:
        """Guards other than that two sizes differ: Dynamo asks that of sizes that differed at the first call."""
        guards = getattr(self._shape_env, "guards", ())
        return [guard.expr for guard in guards if relation_name(guard.expr) != "ne"]


def outside(ranges: ShapeRanges, sizes: Mapping[Any, int]) -> list[str]:
    """Returns what lies outside of ranges, such as `s0 is 9, built for 2 to 8`."""
    found = []
    for symbol, size in sizes.items():
        low, _, high = ranges.symbols[str(symbol)]
        if not low <= size <= high:
            found.append(f"{symbol} is {size}, built for {low} to {high}")
    return found


def _find_readings(gm: fx.GraphModule) -> tuple[SizeReading, ...]:
    found: dict[Any, SizeReading] = {}
    placeholders = list(enumerate(gm.graph.find_nodes(op="placeholder")))
    for position, node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            found.setdefault(value.node.expr, SizeReading(value.node.expr, position, None))
    for position, node in placeholders:
        value = node.meta.get("val")
        for axis, extent in enumerate(value.shape) if isinstance(value, torch.Tensor) else ():
            if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                found.setdefault(extent.node.expr, SizeReading(extent.node.expr, position, axis))
    return tuple(found.values())


def _find_counts(gm: fx.GraphModule, readings: Sequence[SizeReading]) -> tuple[SizeReading, ...]:
    in_shapes: set[Any] = set()
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for extent in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else ():
            if isinstance(extent, torch.SymInt):
                in_shapes |= extent.node.expr.free_symbols
    return tuple(reading for reading in readings if reading.axis is None and reading.symbol not in in_shapes)


def _find_volumes(gm: fx.GraphModule) -> list[tuple[Extent, ...]]:
    """The shapes of the graph's tensors that vary, each once."""
    found: dict[str, tuple[Extent, ...]] = {}
    for value in _values(gm):
        if isinstance(value, torch.Tensor) and any(isinstance(extent, torch.SymInt) for extent in value.shape):
            found.setdefault(str(tuple(value.shape)), tuple(map(extent_of, value.shape)))
    return [extents for extents in found.values() if None not in extents]


def _values(gm: fx.GraphModule) -> Iterator[Any]:
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        yield from value if isinstance(value, (tuple, list)) else (value,)


def _volume(extents: Sequence[Extent], sizes: Mapping[Any, int]) -> int:
    named = {str(symbol): size for symbol, size in sizes.items()}
    try:
        return math.prod(int(evaluate_extent(extent, named)) for extent in extents)
    except (KeyError, ZeroDivisionError):  # a symbol that no input tells, or sizes that cannot go together
        return 0
    except ValueError:  # an extent of more than 64 bits
        return MOST_ELEMENTS + 1


def _scales(size: int, end: int) -> Iterator[int]:
    """Sizes between an end and a size, from the end on: the size times powers of two, or divided by them."""
    if not size:
        return
    steps = max(end, size).bit_length()
    sizes = (size << step if end > size else size >> step for step in range(steps, -1, -1))
    yield from (each for each in sizes if min(size, end) <= each <= max(size, end))


def _test_of(guard: Any) -> Callable[[Mapping[str, int]], bool]:
    """Returns what says whether a guard may hold for sizes by name; one that divides by zero does not.

    Substituting in sympy takes a thousand times as long as arithmetic, and many sizes are tried.
    """
    name = relation_name(guard)
    relation = relation_of(guard.lhs, name, guard.rhs) if name is not None else None
    if relation is not None:
        return relation.holds
    symbols = tuple(guard.free_symbols)

    def test(sizes: Mapping[str, int]) -> bool:
        try:
            return bool(guard.subs({symbol: sizes[str(symbol)] for symbol in symbols}) != False)  # noqa: E712
        except ZeroDivisionError:
            return False

    return test


def _next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
