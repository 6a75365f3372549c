"""Says in integers what is computed from a size in floats and rounded, as `int(0.7 * height)` is.

Networks have no float64, and float32 holds no such product exactly. Over the sizes that there are, rounded numbers lie
on a line of integers, `(factor * size + offset) // divisor`, but for few places: `0.7 * 90` is 62.99999999999999. So
the numbers of all sizes are computed, as Python computes them, and a line is looked for whose offset changes at few
places. With a flat line these are the steps of a function that has few values. What `round` makes of numbers half way
between two integers lies on no line: they go to the even one, which is one below the line every other time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import torch

from trt_core.sizes.expressions import Expression, Extent, argument_of, format_extent, symbols_in, with_part
from trt_core.sizes.functions import FUNCTIONS
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
        to_even: Whether what the line reaches from half way goes to the even number instead: it is one less where
            `factor * size + offset` is an odd multiple of the divisor.
    """

    size: Extent
    factor: int
    divisor: int
    changes: tuple[int, ...]
    offsets: tuple[int, ...]
    to_even: bool = False

    def at(self, size: int) -> int:
        """Returns the number for a size."""
        offset = self.offsets[sum(size >= change for change in self.changes)]
        dividend = self.factor * size + offset
        return dividend // self.divisor - (self.to_even and dividend % (2 * self.divisor) == self.divisor)


def rounded_parts(extent: Expression) -> Iterator[list[Any]]:
    """Yields the parts of an expression that are rounded to integers."""
    if isinstance(extent, list):
        if FUNCTIONS[extent[0]].is_rounding:
            yield extent
        else:
            for operand in extent[1:]:
                yield from rounded_parts(operand)


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
    if found is None:
        return None
    line = _on_line(size, first, found)
    is_round = isinstance(extent, list) and extent[0] == "round"
    return _to_even(size, first, found) if line is None and is_round else line


def no_line(extent: Extent) -> str:
    """Says that `find_steps` found none for an extent."""
    return f"the size {format_extent(extent)} is no line of integers over the range of its sizes"


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


def _to_even(size: Extent, first: int, values: torch.Tensor) -> Steps | None:
    """Returns the line that rounds half way to even numbers; None where the values are others anywhere."""
    places = torch.arange(first, first + len(values), device="cpu")
    for slope in _slopes(values):
        factor, divisor = slope.numerator, slope.denominator
        if divisor % 2 or abs(factor) * (first + len(values)) >= 1 << 61:
            continue  # of an odd number of parts none is the half
        dividend = factor * places + divisor // 2
        ties = (dividend % (2 * divisor) == divisor).to(torch.int64)
        if torch.equal(dividend // divisor - ties, values):
            return Steps(size, factor, divisor, (), (divisor // 2,), to_even=True)
    return None


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
