"""Ranges of symbolic dimensions: what each symbol of a graph may be, and what it is tuned for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from trt_core.errors import InputError
from trt_core.input import Input
from trt_core.sizes.expressions import Extent, extent_of, format_multiple, linear_form, solve_extent, symbols_in

Bounds = tuple[int, int, int]
"""(min, opt, max) of a dimension."""

UNBOUNDED = 1 << 20
"""Maximum used for a dimension that nothing bounds; reported, so that users give a real one."""


def largest_extent(extent: int | torch.SymInt) -> int | None:
    """The most that an extent may be by what the program was captured for; None where nothing bounds it."""
    if isinstance(extent, int):
        return extent
    most = extent.node.shape_env.bound_sympy(extent.node.expr).upper
    return int(most) if most.is_Integer else None


@dataclass(frozen=True)
class ShapeRanges:
    """What the symbols of a graph may be.

    Attributes:
        symbols: (min, opt, max) by symbol name, such as `{"s0": (1, 4, 8)}`: over all profiles, opt of the first.
        profiles: The ranges of each optimization profile, where there are several; else nothing.
    """

    symbols: Mapping[str, Bounds] = field(default_factory=dict)
    profiles: tuple[ShapeRanges, ...] = ()

    @classmethod
    def from_placeholders(
        cls, gm: fx.GraphModule, inputs: Sequence[Any] | None = None, constraints: Mapping[Any, Any] | None = None
    ) -> ShapeRanges:
        """Reads the ranges that the program was exported with, narrowed by the inputs it is compiled for.

        Args:
            gm: A graph whose placeholders carry `meta["val"]`.
            constraints: `range_constraints` of the exported program, which decide where they know a symbol.
            inputs: What the program is compiled for, one per placeholder: `Input`, tensor, or anything else for
                inputs without a shape. An `Input` decides min, opt and max of its dimensions.

        Raises:
            InputError: An input lies outside the range that the program was exported with, has another rank or
                number, contradicts another input that shares a dimension, or has another number of profiles.
        """
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("val") for node in placeholders]
        symbols: dict[str, Bounds] = {}
        known = {str(symbol): found for symbol, found in (constraints or {}).items()}
        for value in values:
            for extent in _symbolic_values(value):
                _add_exported(symbols, extent, known)
        if inputs is None:
            return cls(symbols)
        names = [str(node.target) for node in placeholders]
        count = _count_profiles(inputs, names)
        narrowed = [_narrow(symbols, values, list(inputs), names, index) for index in range(count)]
        if count == 1:
            return cls(narrowed[0])
        whole = {name: _union([profile[name] for profile in narrowed]) for name in symbols}
        return cls(whole, tuple(map(cls, narrowed)))

    def bounds(self, value: int | torch.SymInt) -> Bounds:
        """Returns (min, opt, max) of a dimension, whatever expression of the symbols it is."""
        if isinstance(value, int):
            return value, value, value
        expr = value.node.expr
        low, high = self._interval(expr)
        best = self._opt(expr)
        return low, min(max(best, low), high), high

    def spans(self) -> dict[str, range]:
        """Returns the sizes that each symbol may have, by its name."""
        return {name: range(low, high + 1) for name, (low, _, high) in self.symbols.items()}

    def each(self) -> tuple[ShapeRanges, ...]:
        """Returns the ranges of each optimization profile, one where there is nothing to choose."""
        return self.profiles or (self,)

    def _opt(self, expr: Any) -> int:
        known = {symbol: self.symbols.get(str(symbol), (0, 1, UNBOUNDED))[1] for symbol in expr.free_symbols}
        try:
            result = expr.subs(known)
        except ZeroDivisionError:  # sizes that cannot go together
            return 1
        return int(result) if result.is_Integer else 1

    def _interval(self, expr: Any) -> tuple[int, int]:
        from trt_core.internals import ValueRanges, bound_sympy  # sympy is costly to import

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
    from trt_core.internals import ValueRanges  # sympy is costly to import

    for symbol, known in program.range_constraints.items():
        if known.lower == 2:
            program.range_constraints[symbol] = ValueRanges(1, known.upper)


def constrain_to_inputs(program: Any, inputs: Sequence[Any]) -> None:
    """Makes the ranges of a program those that were asked for when it was captured.

    Export assumes at least 2 while it traces, and fixes a dimension whose range it takes for a single number, so what
    it writes into the program may be narrower, or wider, than the ranges of the inputs.

    Args:
        program: A `torch.export.ExportedProgram`; its range constraints are changed.
        inputs: What it was captured with, one per input of the user: `Input`s, tensors or anything else.
    """
    from trt_core.internals import ValueRanges  # sympy is costly to import

    by_name = {str(symbol): symbol for symbol in program.range_constraints}
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for name, given in zip(names, inputs, strict=False):
        value = values.get(name)
        if not isinstance(given, Input) or not isinstance(value, torch.Tensor):
            continue
        for extent, low, high in zip(value.shape, given.min_shape, given.max_shape, strict=True):
            lowest, highest = solve_extent(extent_of(extent), low), solve_extent(extent_of(extent), high)
            if lowest is None or highest is None or lowest[1] is None or highest[1] is None:
                continue
            symbol = by_name.get(lowest[0])
            if symbol is not None:
                program.range_constraints[symbol] = ValueRanges(lowest[1], highest[1])


def _finite(bound: Any, fallback: int) -> int:
    return int(bound) if bound.is_Integer else fallback


def _symbolic_values(value: Any) -> Iterable[torch.SymInt]:
    if isinstance(value, torch.SymInt):
        yield value
    elif isinstance(value, torch.Tensor):
        extents: Iterable[int | torch.SymInt] = value.shape
        yield from (extent for extent in extents if isinstance(extent, torch.SymInt))


def _add_exported(symbols: dict[str, Bounds], extent: torch.SymInt, constraints: Mapping[str, Any]) -> None:
    shape_env = extent.node.shape_env
    for symbol in extent.node.expr.free_symbols:
        name = str(symbol)
        if name in symbols:
            continue
        known = _derived(extent, constraints) or constraints.get(name) or shape_env.var_to_range.get(symbol)
        low = max(_finite(known.lower, 0), 0) if known is not None else 0
        if name not in constraints and low == 2:
            low = 1  # tracing assumes at least 2, and allows 1 when it runs
        high = _finite(known.upper, UNBOUNDED) if known is not None else UNBOUNDED
        hint = _hint(shape_env, symbol)
        symbols[name] = low, min(max(hint if hint is not None else low, low), high), high


def _derived(extent: torch.SymInt, constraints: Mapping[str, Any]) -> Any:
    """The range of the symbol of a multiple, from that of the multiple: of the symbol export says what it assumed."""
    stated = constraints.get(str(extent.node.expr))
    if stated is None or extent.node.expr.is_Symbol:
        return None
    ends = [solve_extent(extent_of(extent), _finite(end, UNBOUNDED)) for end in (stated.lower, stated.upper)]
    if any(end is None or end[1] is None for end in ends):
        return None
    from trt_core.internals import ValueRanges  # sympy is costly to import

    (_, low), (_, high) = ends  # type: ignore[misc]
    return ValueRanges(low, high)


def _hint(shape_env: Any, symbol: Any) -> int | None:
    known = getattr(shape_env, "backed_var_to_val", None)
    if known is None:  # as it was called in earlier releases of PyTorch; later ones warn of the name
        known = shape_env.var_to_val
    value = known.get(symbol)
    return None if value is None else int(value)


def _count_profiles(inputs: Sequence[Any], names: Sequence[str]) -> int:
    """How many optimization profiles inputs ask for.

    Raises:
        InputError: Two inputs have several, and differ in how many.
    """
    several = {
        name: len(given.profiles)
        for name, given in zip(names, inputs, strict=False)
        if isinstance(given, Input) and len(given.profiles) > 1
    }
    if len(set(several.values())) > 1:
        raise InputError(
            "inputs differ in how many profiles they have",
            why=", ".join(f"{name} has {count}" for name, count in several.items()),
            hint="the first profiles of all inputs belong together, the second ones, and so on; "
            "an input with one range has it in all of them",
        )
    return next(iter(several.values()), 1)


def _union(bounds: Sequence[Bounds]) -> Bounds:
    return min(low for low, _, _ in bounds), bounds[0][1], max(high for _, _, high in bounds)


def _narrow(
    symbols: Mapping[str, Bounds], values: list[Any], inputs: list[Any], names: list[str], profile: int
) -> dict[str, Bounds]:
    """Returns the ranges of the symbols in one profile of the inputs."""
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
        where = f"input {names[index]}" + (f" ({spec.name})" if spec.name not in ("", names[index]) else "")
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
        several = len(spec.profiles) > 1
        where += f" in profile {profile}" if several else ""
        for axis, extent in enumerate(value.shape):
            low, best, high = (shape[axis] for shape in spec.profiles[profile if several else 0])
            what = f"dimension {axis} of {where}"
            try:
                _narrow_extent(symbols, narrowed, extent, (low, best, high), what, isinstance(given, Input))
            except InputError as error:
                others = _others_of_one_size(values, inputs, names, (index, axis))
                raise InputError(error.what, why=error.why or others, hint=error.hint) from None
    return {**symbols, **narrowed}


def _others_of_one_size(values: list[Any], inputs: list[Any], names: list[str], place: tuple[int, int]) -> str:
    """Says which other dimensions the model takes for equal to one, with the ranges that they were given."""
    extent = values[place[0]].shape[place[1]]
    found = [
        f"dimension {axis} of input {names[index]}, given as {_show((spec.min_shape[axis], 0, spec.max_shape[axis]))}"
        for index, (value, spec) in enumerate(zip(values, inputs, strict=True))
        if isinstance(spec, Input) and isinstance(value, torch.Tensor) and len(spec.min_shape) == value.dim()
        for axis, other in enumerate(value.shape)
        if (index, axis) != place and isinstance(other, torch.SymInt) and str(other) == str(extent)
    ]
    return f"it equals {', '.join(found)}" if found else ""


def _narrow_extent(
    symbols: Mapping[str, Bounds],
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
    form = extent_of(extent)
    solved = [solve_extent(form, size) for size in wanted]
    if solved[0] is None or not symbols_in(form) <= symbols.keys():
        return
    name, (low, _, high) = solved[0][0], symbols[solved[0][0]]
    sizes = [found[1] for found in solved if found is not None and found[1] is not None]
    if len(sizes) != len(wanted):
        raise InputError(
            f"{where} is {_show(wanted)}, but the program was exported for {format_multiple(form)}",
            hint="give min, opt and max that are such sizes",
        )
    low = 1 if low == 2 else low  # whoever asks for 1 gets it: tracing assumes at least 2, and allows 1 when it runs
    if not (low <= sizes[0] and sizes[2] <= high):
        raise InputError(
            f"{where} is {_show(wanted)}, but the program was exported for {_show(_scaled(form, (low, low, high)))}",
            hint="stay inside that range, or export again with a wider one",
        )
    wanted = sizes[0], sizes[1], sizes[2]
    if not is_range:  # a plain tensor says what to tune for, not that nothing else will come
        wanted = (symbols[name][0] if sizes[0] >= symbols[name][0] else low, wanted[1], high)
    if narrowed.setdefault(name, wanted) != wanted:
        raise InputError(
            f"{where} is {_show(wanted)}, but another input that shares the dimension says {_show(narrowed[name])}",
            hint="give both the same range",
        )


def _scaled(form: Extent, bounds: Bounds) -> Bounds:
    linear = linear_form(form)
    assert linear is not None
    _, factor, offset = linear
    low, best, high = (factor * bound + offset for bound in bounds)
    return low, best, high


def _show(bounds: Bounds) -> str:
    return str(bounds[0]) if bounds[0] == bounds[2] else f"{bounds[0]} to {bounds[2]}"
