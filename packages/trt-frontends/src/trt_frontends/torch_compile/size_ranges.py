"""Chooses the sizes that the engines of a dynamic graph are built for, and says whether a call stays within them.

Dynamo says what a size may be in principle, mostly two to infinity. An engine needs an end, and what it is tuned for:
the sizes of the first call. The end is generous, because a call beyond it builds anew, and small enough that no tensor
of the graph has more elements than TensorRT can count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.ranges import UNBOUNDED, Bounds, ShapeRanges

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
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.readings = _find_readings(gm)
        self._volumes = _find_volumes(gm) if self.readings else []
        self._shape_env = _shape_env(gm) if self.readings else None

    def read(self, inputs: Sequence[Any]) -> dict[Any, int]:
        """Returns the value of each symbol in a call."""
        return {reading.symbol: reading.read(inputs) for reading in self.readings}

    def choose(self, inputs: Sequence[Any], former: ShapeRanges | None = None) -> ShapeRanges:
        """Returns the ranges to build for.

        Args:
            inputs: Inputs of the call that is at hand; it lies within the ranges, and they are tuned for it.
            former: Ranges that turned out too narrow; the new ones contain them.
        """
        sizes = self.read(inputs)
        chosen: dict[Any, Bounds] = {}
        open_ends = set()
        for symbol, size in sizes.items():
            low, high = self._known(symbol)
            if high >= UNBOUNDED:
                open_ends.add(symbol)
                high = max(GENEROUS, _next_power_of_two(4 * size))
            if former is not None:
                before = former.symbols[str(symbol)]
                low, high = min(low, before[0]), max(high, before[2])
            chosen[symbol] = min(low, size), size, max(high, size)
        self._limit_volumes(chosen, open_ends)
        return ShapeRanges({str(symbol): self._fitting(symbol, chosen) for symbol in chosen})

    def _known(self, symbol: Any) -> tuple[int, int]:
        known = self._shape_env.var_to_range.get(symbol) if self._shape_env is not None else None
        if known is None:
            return 0, UNBOUNDED
        low = int(known.lower) if known.lower.is_Integer else 0
        high = int(known.upper) if known.upper.is_Integer else UNBOUNDED
        return max(low, 0), min(high, UNBOUNDED)

    def _limit_volumes(self, chosen: dict[Any, Bounds], open_ends: set[Any]) -> None:
        for volume in self._volumes:
            while _at_most(volume, chosen) > MOST_ELEMENTS:
                shrinkable = [
                    symbol
                    for symbol in volume.free_symbols & open_ends
                    if symbol in chosen and chosen[symbol][2] >= 2 * max(chosen[symbol][1], 1)
                ]
                if not shrinkable:
                    break
                widest = max(
                    shrinkable, key=lambda symbol: (chosen[symbol][2] / max(chosen[symbol][1], 1), str(symbol))
                )
                low, best, high = chosen[widest]
                chosen[widest] = low, best, high // 2

    def _fitting(self, symbol: Any, chosen: Mapping[Any, Bounds]) -> Bounds:
        """Moves the ends of a range to sizes that the guards of the graph allow, such as multiples of 8."""
        low, best, high = chosen[symbol]
        others = {other: bounds[1] for other, bounds in chosen.items() if other != symbol}
        guards = [guard for guard in self._guards() if symbol in guard.free_symbols]
        if not guards:
            return low, best, high

        def allowed(size: int) -> bool:
            known = {**others, symbol: size}
            return not any(guard.xreplace(known) == False for guard in guards)  # noqa: E712 - sympy's false

        for candidate in range(low, min(best, low + _TRIES)):
            if allowed(candidate):
                low = candidate
                break
        else:
            low = best
        high = next((size for size in range(high, max(best, high - _TRIES), -1) if allowed(size)), best)
        return low, best, high

    def _guards(self) -> list[Any]:
        """Guards other than that two sizes differ: Dynamo asks that of sizes that differed at the first call."""
        guards = getattr(self._shape_env, "guards", ())
        return [guard.expr for guard in guards if type(guard.expr).__name__ != "Unequality"]


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


def _find_volumes(gm: fx.GraphModule) -> list[Any]:
    """The numbers of elements of the graph's tensors, each expression once."""
    found = {}
    for value in _values(gm):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            extents = [extent.node.expr if isinstance(extent, torch.SymInt) else extent for extent in value.shape]
            if not all(isinstance(extent, int) for extent in extents):
                volume = math.prod(extents)
                found[str(volume)] = volume
    return list(found.values())


def _values(gm: fx.GraphModule) -> Iterator[Any]:
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        yield from value if isinstance(value, (tuple, list)) else (value,)


def _shape_env(gm: fx.GraphModule) -> Any:
    for value in _values(gm):
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
        if isinstance(value, torch.Tensor):
            for extent in value.shape:
                if isinstance(extent, torch.SymInt):
                    return extent.node.shape_env
    return None


def _at_most(volume: Any, chosen: Mapping[Any, Bounds]) -> int:
    value = volume.xreplace({symbol: bounds[2] for symbol, bounds in chosen.items()})
    return int(value) if value.is_Integer else 0


def _next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
