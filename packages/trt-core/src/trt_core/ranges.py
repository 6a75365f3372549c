"""Ranges of symbolic dimensions: what each symbol of a graph may be, and what it is tuned for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from trt_core.errors import InputError
from trt_core.input import Input

Bounds = tuple[int, int, int]
"""(min, opt, max) of a dimension."""

UNBOUNDED = 1 << 20
"""Maximum used for a dimension that nothing bounds; reported, so that users give a real one."""


@dataclass(frozen=True)
class ShapeRanges:
    """What the symbols of a graph may be.

    Attributes:
        symbols: (min, opt, max) by symbol name, such as `{"s0": (1, 4, 8)}`.
    """

    symbols: Mapping[str, Bounds] = field(default_factory=dict)

    @classmethod
    def from_placeholders(cls, gm: fx.GraphModule, inputs: Sequence[Any] | None = None) -> ShapeRanges:
        """Reads the ranges that the program was exported with, narrowed by the inputs it is compiled for.

        Args:
            gm: A graph whose placeholders carry `meta["val"]`.
            inputs: What the program is compiled for, one per placeholder: `Input`, tensor, or anything else for
                inputs without a shape. An `Input` decides min, opt and max of its dimensions.

        Raises:
            InputError: An input lies outside the range that the program was exported with, has another rank or
                number, or contradicts another input that shares a dimension.
        """
        values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
        symbols: dict[str, Bounds] = {}
        for value in values:
            for extent in _symbolic_values(value):
                _add_exported(symbols, extent)
        if inputs is not None:
            _narrow(symbols, values, list(inputs))
        return cls(symbols)

    def bounds(self, value: int | torch.SymInt) -> Bounds:
        """Returns (min, opt, max) of a dimension, whatever expression of the symbols it is."""
        if isinstance(value, int):
            return value, value, value
        expr = value.node.expr
        low, high = self._interval(expr)
        best = self._opt(expr)
        return low, min(max(best, low), high), high

    def is_bounded(self, value: int | torch.SymInt) -> bool:
        """Whether anything bounds the dimension from above."""
        return self.bounds(value)[2] < UNBOUNDED

    def _opt(self, expr: Any) -> int:
        known = {symbol: self.symbols.get(str(symbol), (0, 1, UNBOUNDED))[1] for symbol in expr.free_symbols}
        result = expr.subs(known)
        return int(result) if result.is_Integer else 1

    def _interval(self, expr: Any) -> tuple[int, int]:
        from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy  # sympy is costly to import

        ranges = {
            symbol: ValueRanges(*(self.symbols.get(str(symbol), (0, 1, UNBOUNDED))[::2]))
            for symbol in expr.free_symbols
        }
        found = bound_sympy(expr, ranges)
        return max(_finite(found.lower, 0), 0), _finite(found.upper, UNBOUNDED)


def allow_extent_one(program: Any) -> None:
    """Lets a program run with extents of 1 where its dynamic dimensions start at 2.

    Export assumes at least 2 while it traces, whatever range was asked for, and writes that into the program.

    Args:
        program: A `torch.export.ExportedProgram`; its range constraints are changed.
    """
    from torch.utils._sympy.value_ranges import ValueRanges  # sympy is costly to import

    for symbol, known in program.range_constraints.items():
        if known.lower == 2:
            program.range_constraints[symbol] = ValueRanges(1, known.upper)


def _finite(bound: Any, fallback: int) -> int:
    return int(bound) if bound.is_Integer else fallback


def _symbolic_values(value: Any) -> Iterable[torch.SymInt]:
    if isinstance(value, torch.SymInt):
        yield value
    elif isinstance(value, torch.Tensor):
        extents: Iterable[int | torch.SymInt] = value.shape
        yield from (extent for extent in extents if isinstance(extent, torch.SymInt))


def _add_exported(symbols: dict[str, Bounds], extent: torch.SymInt) -> None:
    shape_env = extent.node.shape_env
    for symbol in extent.node.expr.free_symbols:
        name = str(symbol)
        if name in symbols:
            continue
        known = shape_env.var_to_range.get(symbol)
        low = max(_finite(known.lower, 0), 0) if known is not None else 0
        low = 1 if low == 2 else low  # export assumes at least 2 while tracing, and allows 1 when it runs
        high = _finite(known.upper, UNBOUNDED) if known is not None else UNBOUNDED
        hint = _hint(shape_env, symbol)
        symbols[name] = low, min(max(hint if hint is not None else low, low), high), high


def _hint(shape_env: Any, symbol: Any) -> int | None:
    for table in ("backed_var_to_val", "var_to_val"):  # renamed between PyTorch releases
        value = getattr(shape_env, table, {}).get(symbol)
        if value is not None:
            return int(value)
    return None


def _narrow(symbols: dict[str, Bounds], values: list[Any], inputs: list[Any]) -> None:
    if len(values) != len(inputs):
        raise InputError(
            f"the program takes {len(values)} inputs, {len(inputs)} were given",
            hint="give one Input or tensor for each input, keyword inputs through kwarg_inputs",
        )
    narrowed: dict[str, Bounds] = {}
    for index, (value, given) in enumerate(zip(values, inputs, strict=True)):
        if not isinstance(value, torch.Tensor) or not isinstance(given, (Input, torch.Tensor)):
            continue
        spec = given if isinstance(given, Input) else Input.from_tensor(given)
        where = f"input {index}" + (f" ({spec.name})" if spec.name else "")
        if spec.dtype != value.dtype:
            raise InputError(
                f"{where} has type {spec.dtype}, the program was exported with {value.dtype}",
                hint="give an input of that type, or export the program again",
            )
        if len(spec.min_shape) != value.dim():
            raise InputError(
                f"{where} has rank {len(spec.min_shape)}, the program was exported with rank {value.dim()}",
                hint="give an input of that rank, or export the program again",
            )
        for axis, extent in enumerate(value.shape):
            wanted = (spec.min_shape[axis], spec.opt_shape[axis], spec.max_shape[axis])
            _narrow_extent(symbols, narrowed, extent, wanted, f"dimension {axis} of {where}", isinstance(given, Input))
    symbols.update(narrowed)


def _narrow_extent(
    symbols: dict[str, Bounds],
    narrowed: dict[str, Bounds],
    extent: int | torch.SymInt,
    wanted: Bounds,
    where: str,
    is_range: bool,
) -> None:
    if isinstance(extent, int):
        if wanted != (extent, extent, extent):
            raise InputError(
                f"{where} is {_show(wanted)}, but the program was exported with {extent} there",
                hint="export with that dimension dynamic (trt_frontends.trace reads Input ranges), or give that extent",
            )
        return
    expr = extent.node.expr
    if not expr.is_Symbol:
        return
    name = str(expr)
    low, _, high = symbols[name]
    if not (low <= wanted[0] and wanted[2] <= high):
        raise InputError(
            f"{where} is {_show(wanted)}, but the program was exported for {low} to {high}",
            hint="stay inside that range, or export again with a wider one",
        )
    if not is_range:  # a plain tensor says what to tune for, not that nothing else will come
        wanted = (low, wanted[1], high)
    if narrowed.setdefault(name, wanted) != wanted:
        raise InputError(
            f"{where} is {_show(wanted)}, but another input that shares the dimension says {_show(narrowed[name])}",
            hint="give both the same range",
        )


def _show(bounds: Bounds) -> str:
    return str(bounds[0]) if bounds[0] == bounds[2] else f"{bounds[0]} to {bounds[2]}"
