"""Which sizes a graph that was traced with symbolic sizes serves: the profile's, less what its compiler assumed.

PyTorch writes down as guards what tracing and compiling asked of sizes. A guard of one size narrows its range to the
sizes around the usual one for which it holds; two sizes that have to be equal are compared at run time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.sizes.grid import SizeGrid, runs
from trt_portable.errors import PortableError
from trt_portable.plan.artifact import Varying
from trt_portable.plan.engine_info import Shape
from trt_portable.plan.extents import SIZE, Expression, expression_of

_MOST_COMBINATIONS: Final = 1 << 22


class FixedSizes(PortableError):
    """A graph with symbolic sizes serves the usual ones alone."""


@dataclass(frozen=True)
class Limits:
    """What a profile allows an input.

    Attributes:
        least: The smallest extents.
        usual: Those that the graph is tuned at.
        most: The largest extents.
    """

    least: Shape
    usual: Shape
    most: Shape


def places_of(inputs: Sequence[torch.Tensor]) -> dict[Any, tuple[int, int]]:
    """Input and axis that each symbol is read from.

    Args:
        inputs: Tensors without data.
    """
    places: dict[Any, tuple[int, int]] = {}
    for index, tensor in enumerate(inputs):
        for axis, extent in enumerate(tensor.shape):
            if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                places.setdefault(extent.node.expr, (index, axis))
    return places


def served_sizes(
    inputs: Sequence[torch.Tensor], limits: Sequence[Limits]
) -> tuple[tuple[Varying, ...], tuple[tuple[Expression, Expression], ...]]:
    """The extents that may vary, and what has to be equal.

    Args:
        inputs: Tensors without data, with symbolic sizes, after all that asks something of these.
        limits: What the profile allows each of them.

    Raises:
        FixedSizes: The guards leave nothing to vary, or cannot be kept.
    """
    places = places_of(inputs)
    spans = {symbol: range(limits[at].least[axis], limits[at].most[axis] + 1) for symbol, (at, axis) in places.items()}
    usual = {symbol: limits[at].usual[axis] for symbol, (at, axis) in places.items()}
    for guard in _guards(inputs):
        spans = _narrowed(guard, spans, usual)
    varying: list[Varying] = []
    equal: list[tuple[Expression, Expression]] = []
    for index, (tensor, limit) in enumerate(zip(inputs, limits, strict=True)):
        for axis, extent in enumerate(tensor.shape):
            low, high = limit.least[axis], limit.most[axis]
            if low == high:
                continue
            expr = extent.node.expr if isinstance(extent, torch.SymInt) else extent
            span = spans.get(expr, range(low, high + 1))
            if places.get(expr) != (index, axis):
                said = expression_of(expr, places)
                if said is None:
                    raise FixedSizes(f"axis {axis} of input {index} has to be {expr}")
                if isinstance(said, int):
                    span = range(said, said + 1)
                else:
                    equal.append(([SIZE, index, axis], said))
            varying.append(Varying(index, axis, max(low, span.start), min(high, span.stop - 1)))
    if all(each.least == each.most for each in varying):
        raise FixedSizes("what was compiled assumes the usual sizes")
    return tuple(varying), tuple(equal)


def _guards(inputs: Sequence[torch.Tensor]) -> list[Any]:
    """What PyTorch asked of sizes, each once, in terms of the symbols that are left."""
    env = next(mode.shape_env for mode in (getattr(tensor, "fake_mode", None) for tensor in inputs) if mode is not None)
    return list(dict.fromkeys(env.replace(guard.expr) for guard in env.guards))


def _narrowed(guard: Any, spans: Mapping[Any, range], usual: Mapping[Any, int]) -> dict[Any, range]:
    """The sizes around the usual ones for which a guard holds.

    Raises:
        FixedSizes: It cannot be computed, or does not hold for all sizes of several symbols.
    """
    symbols = sorted(guard.free_symbols, key=str)
    if not symbols:
        return dict(spans)
    if not spans.keys() >= set(symbols) or math.prod(len(spans[symbol]) for symbol in symbols) > _MOST_COMBINATIONS:
        raise FixedSizes(f"it is assumed that {guard}")
    holds = SizeGrid({str(symbol): spans[symbol] for symbol in symbols}).holds(guard)
    if holds is None:
        raise FixedSizes(f"it is assumed that {guard}")
    if bool(holds.all()):
        return dict(spans)
    if len(symbols) > 1:
        raise FixedSizes(f"it is assumed that {guard}")
    (symbol,) = symbols
    start = spans[symbol].start
    for begin, end in runs(holds.reshape(-1)):
        if start + begin <= usual[symbol] <= start + end:
            return {**spans, symbol: range(start + begin, start + end + 1)}
    raise FixedSizes(f"it is assumed that {guard}")
