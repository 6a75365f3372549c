"""Contracts of layers: how much a call makes, reads and adds up at most, told from the extents of its operands alone.

A layer with a contract also makes results whose sizes follow from the extents of its operands, and no data. Runs inside
of limits (`execution.bounded_runs`) take room for as much, and need not look at the operators that such a layer calls.
Bounds are generous: where there is no room for one, the run is looked at operator by operator, as of layers without.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trt_portable.shape_tensors import Value


Bound = tuple[float, float]
"""What a call takes at most: bytes that it makes, on the way too, and elements that it reads, makes and adds up."""

Operands = Sequence["Value | None"]
Contract = Callable[[Operands], Bound | None]
"""Bounds a call on operands; None where nothing can be said before."""

_WIDTH: Final = 8
"""Bytes of the widest elements."""

_STEPS: Final = 16
"""Tensors of the result's extents that a function of elements makes at most, one after another."""

_MADE: Final = _STEPS * _WIDTH
_READ: Final = 4 * _STEPS
"""Bytes that such a function makes, and elements that it reads and makes, for each element of its result."""

_COPIES: Final = 2
"""How often an operand is copied at most, before it is read in another order."""


def broadcast(inputs: Operands) -> Bound:
    """Of functions that go through their operands, broadcast, element by element or along axes."""
    if len(inputs) == 1:
        (value,) = inputs
        count = value.numel() or _joined(value.shape)  # type: ignore[union-attr]  # an operand that stands alone is there
    elif len(inputs) == 2 and inputs[0] is not None and inputs[1] is not None:
        one, other = inputs[0].shape, inputs[1].shape
        count = (inputs[0].numel() if one == other else 0) or _joined(one, other)
    else:
        count = _joined(*[value.shape for value in inputs if value is not None])
    return _MADE * count, _READ * count


def elements(shapes: Sequence[Sequence[int]]) -> Bound:
    """The same, of operands of these shapes."""
    count = joined(shapes)
    return _MADE * count, _READ * count


def moved(inputs: Operands) -> Bound:
    """Of what leaves elements as they are, and makes no more of them than there are."""
    count = 0
    for value in inputs:
        if value is not None:
            count += value.numel()
    return _COPIES * _WIDTH * count, 4 * count


def product(outer: int, rows: int, inner: int, columns: int) -> Bound:
    """Of products of matrices (outer, rows, inner) and (outer, inner, columns)."""
    made = outer * rows * columns
    given = outer * inner * (rows + columns)
    return _COPIES * _WIDTH * (made + given), 4 * (made * inner + made + given)


@functools.lru_cache(maxsize=1 << 10)  # layers of a network come with the same extents again and again
def linear(x: tuple[int, ...], rows: int, columns: int) -> Bound:
    """Of a product with a matrix whose extents are given, in whichever order, and an addend for each column."""
    *outer, inner = x
    return product(1, _count(outer), max(inner, 1), max(rows, columns))


def both(first: Bound, second: Bound) -> Bound:
    """Of one call after another."""
    return first[0] + second[0], first[1] + second[1]


@functools.lru_cache(maxsize=1 << 10)
def attention(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], mask: tuple[int, ...]) -> Bound:
    """Of attention (..., H, S, D) with keys and values (..., G, T, D) that heads share, and a mask that broadcasts."""
    outer = joined([query[:-3], key[:-3], value[:-3], mask[:-3]])
    masked = (1, 1, 1, *mask)
    heads = max(1, query[-3], key[-3], value[-3], masked[-3])
    rows = max(1, query[-2], masked[-2])
    columns = max(1, key[-2], value[-2], masked[-1])
    depth = max(query[-1], key[-1], value[-1], 1)
    scores = outer * heads * rows * columns
    given = outer * heads * (rows + columns) * depth
    return _STEPS * _WIDTH * (scores + 2 * given), 4 * _STEPS * (scores * depth + given)


def convolution(x: Sequence[int], padded: Sequence[int], kernel: Sequence[int], result: Sequence[int]) -> Bound:
    """Of windows of a padded operand."""
    made, weights = _count(result), _count(kernel)
    given = _count(x) + _count(padded) + weights
    window = weights // max(kernel[0], 1)
    return 2 * _COPIES * _WIDTH * (made + given), 4 * (made * window + made + given)


def selected(data: Sequence[int], axis: int, indices: Sequence[int]) -> Bound:
    """Of what indices name along an axis."""
    places = _count(indices)
    made = places * _count([extent for at, extent in enumerate(data) if at != axis])
    return _STEPS * _WIDTH * (made + places), 4 * _STEPS * (made + places) + _count(data)


def joined(shapes: Sequence[Sequence[int]]) -> int:
    """Elements of what shapes broadcast to; axes without any count as one."""
    return _joined(*map(tuple, shapes))


@functools.lru_cache(maxsize=1 << 10)
def _joined(*shapes: tuple[int, ...]) -> int:
    return math.prod(max(1, *column) for column in itertools.zip_longest(*map(reversed, shapes), fillvalue=1))


def _count(shape: Sequence[int]) -> int:
    """Elements; axes without any count as one, since what is added up along them has elements."""
    return math.prod(shape) or math.prod(extent or 1 for extent in shape)
