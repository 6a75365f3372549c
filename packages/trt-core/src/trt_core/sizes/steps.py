"""Says in integers what is computed from a size in floats and rounded, as `int(0.7 * height)` is.

Networks have no float64, and float32 holds no such product exactly. Over the sizes that there are, rounded numbers lie
on a line of integers, `(factor * size + offset) // divisor`, but for few places: `0.7 * 90` is 62.99999999999999. So
the numbers of all sizes are computed, as Python computes them, and a line is looked for whose offset changes at few
places. With a flat line these are the steps of a function that has few values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import torch

from trt_core.sizes.expressions import Expression, Extent, argument_of, symbols_in, with_part
from trt_core.sizes.grid import SizeGrid

MOST_CHANGES: Final = 63
"""Most places at which an offset changes: TensorRT's tensors of sizes hold 64 numbers."""

_MOST_SIZES: Final = 1 << 21
"""A size that may have more values is not looked at."""

_ANY: Final = "n"
"""The symbol of the size that a rounded number is a function of."""


@dataclass(frozen=True)
class Steps:
    """`(factor * size + offset) // divisor`, with an offset that changes at some sizes.

    Attributes:
        size: The extent that it is a function of.
        factor, divisor: Of the line.
        changes: Sizes from which on there is another offset, in ascending order.
        offsets: One more than changes.
    """

    size: Extent
    factor: int
    divisor: int
    changes: tuple[int, ...]
    offsets: tuple[int, ...]

    def at(self, size: int) -> int:
        """Returns the number for a size."""
        offset = self.offsets[sum(size >= change for change in self.changes)]
        return (self.factor * size + offset) // self.divisor


def find_steps(extent: Extent, spans: Mapping[str, range]) -> Steps | None:
    """Returns a rounded number in integers.

    Args:
        extent: A rounding of what is computed from sizes, `["trunc", ["mul", 0.7, ["float", "s0"]]]`.
        spans: The sizes of each symbol in it.

    Returns:
        None where it is a function of several sizes, for too many sizes, and where no line is found.
    """
    size = argument_of(extent)
    if size is None:
        return None
    sizes = _values(size, {name: spans[name] for name in symbols_in(size) if name in spans})
    if sizes is None or not sizes.numel():
        return None
    first, last = int(sizes.min()), int(sizes.max())
    found = _values(with_part(extent, size, _ANY), {_ANY: range(first, last + 1)})
    return None if found is None else _on_line(size, first, found)


def _values(extent: Expression, spans: Mapping[str, range]) -> torch.Tensor | None:
    count = 1
    for span in spans.values():
        count *= len(span)
    return SizeGrid(spans).integers(extent) if count <= _MOST_SIZES else None


def _on_line(size: Extent, first: int, values: torch.Tensor) -> Steps | None:
    """Finds the line with the fewest changes for the values at `first`, `first + 1`, and so on."""
    best: Steps | None = None
    for slope in _slopes(values):
        most = MOST_CHANGES if best is None else len(best.changes) - 1
        best = _with_slope(size, first, values, slope, most) or best
        if best is not None and not best.changes:
            break
    return best


def _with_slope(size: Extent, first: int, values: torch.Tensor, slope: Fraction, most: int) -> Steps | None:
    """Returns the line with a slope that goes as far with each offset as it can; None for more changes than allowed.

    A value is `(factor * n + offset) // divisor` for offsets from `rest = divisor * value - factor * n` up to
    `rest + divisor - 1`.
    """
    factor, divisor = slope.numerator, slope.denominator
    if max(abs(factor) * (first + len(values)), divisor * int(values.abs().max())) >= 1 << 62:
        return None
    places = torch.arange(first, first + len(values), device="cpu")
    rest = divisor * values - factor * places
    changes, offsets, start, window = [], [], 0, 256
    while start < len(rest):
        part = rest[start : start + window]
        highest, lowest = part.cummax(0).values, part.cummin(0).values
        fits = highest - lowest < divisor
        count = len(part) if fits.all() else int(fits.to(torch.uint8).argmin())
        if count == window and start + window < len(rest):
            window *= 2
            continue
        low, high = int(highest[count - 1]), int(lowest[count - 1]) + divisor - 1
        offsets.append(min(max(0, low), high))
        start += count
        if start < len(rest):
            changes.append(first + start)
        if len(changes) > most:
            return None
    return Steps(size, factor, divisor, tuple(changes), tuple(offsets))


def _slopes(values: torch.Tensor) -> Iterator[Fraction]:
    """Yields slopes, simple ones first: fractions nearer and nearer to how the values rise, and none."""
    yield Fraction(0)
    count = len(values) - 1
    if not count:
        return
    mean = Fraction(int(values[-1] - values[0]), count)
    known = {Fraction(0)}
    distance = Fraction(1, 2)
    while distance * count * 4 > 1:
        slope = _simplest(mean - distance, mean + distance)
        if slope not in known:
            known.add(slope)
            yield slope
        distance /= 2


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """Returns the fraction with the smallest denominator between two."""
    whole = -(-low.numerator // low.denominator)
    if whole <= high:
        return Fraction(whole)
    below = whole - 1
    return below + 1 / _simplest(1 / (high - below), 1 / (low - below))
