"""Reads what an exported program asks of sizes, as conditions; what the ranges of its symbols say already is left out.

PyTorch keeps guards as expressions of sympy in the process that exported, and as text in a program that was read from a
file. Both become expressions in the symbols of the graph, are simplified, and leave as data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from trt_core import logger
from trt_core.extents import RELATIONS
from trt_core.ranges import UNBOUNDED, ShapeRanges
from trt_runtime.internals import guard_writer
from trt_runtime.program.conditions import Condition, Relation, relation_of, symbols_of
from trt_runtime.program.guard_text import NotRead, read_guard

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_RELATIONS: Final = {kind: compare.__name__ for kind, compare in RELATIONS.items()}
"""What conditions call sympy's relations, by the names of their classes: `eq`, `ne`, `lt`, `le`, `gt`, `ge`."""

_MOST_SIZES: Final = 4096
"""Ranges of a symbol up to this length are gone through size by size."""

_OF_STRIDES: Final = (
    ("_prims_common/__init__.py", ("check_contiguous", "is_contiguous", "is_channels_last", "are_strides_like")),
    ("_prims_common/__init__.py", ("is_non_overlapping_and_dense", "compute_elementwise_output", "suggest_memory")),
    ("_refs/__init__.py", ("_reshape_view_helper",)),
)
"""Code of PyTorch that compares sizes to find how tensors lie in memory, and which dimensions of a reshape are split or
joined first: extents and values are the same for either answer. File, and how names of functions begin."""

_OF_SMALL_SIZES: Final = (("_prims_common/__init__.py", ("",)), ("_subclasses/fake_impls.py", ("infer_size",)))
"""Code that asks for equality where extents have to be equal, and for all else to tell small sizes from large ones."""


def conditions_of(
    graph: fx.Graph,
    ranges: ShapeRanges,
    program: ExportedProgram | None = None,
    *,
    as_asked: bool = False,
    more: Iterable[Any] = (),
) -> tuple[Condition, ...]:
    """Returns what a captured model asks of its sizes.

    Args:
        graph: A graph that is called like the model, whose placeholders carry `meta["val"]`.
        ranges: Ranges of its symbolic dimensions.
        program: The program that it was made of, which may remember more.
        as_asked: Whether somebody asked for these ranges. Tracing assumes that no size is 0 or 1, and PyTorch's own
            bookkeeping makes guards of that, which are no conditions of the model; then they are left out.
        more: Further conditions, in sympy's expressions.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    kept: list[Condition] = []
    simplifier = _Simplifier(ranges)
    for guard in itertools.chain(_guards(graph, placeholders, program, as_asked), more):
        for clause in _clauses(guard):
            kept += [condition for condition in simplifier.reduce(clause) if condition not in kept]
    return tuple(kept)


def forget_assumptions(program: ExportedProgram) -> None:
    """Removes the guards from a program which are no conditions of the model; see `conditions_of`."""
    env = shape_environment(program.graph.nodes)
    if env is None or not env.guards:
        return
    env.guards[:] = [guard for guard in env.guards if not _is_assumption(guard, env.replace(guard.expr))]
    rewrite_guard_text(program)


def rewrite_guard_text(program: ExportedProgram) -> None:
    """Makes the guards that a program is saved with those that its shape environment has."""
    rewrite = guard_writer()
    if rewrite is not None:
        program._guards_code = rewrite(program.graph_module)


def _guards(
    graph: fx.Graph, placeholders: list[fx.Node], program: ExportedProgram | None, as_asked: bool
) -> Iterator[Any]:
    """Yields guards as expressions in the symbols of the graph."""
    env = shape_environment(placeholders if program is None else program.graph.nodes)
    if env is not None and env.guards:
        for guard in env.guards:
            expr = env.replace(guard.expr)
            if not (as_asked and _is_assumption(guard, expr)):
                yield expr
        return
    for text in getattr(program, "_guards_code", None) or ():
        try:
            yield read_guard(text, graph, placeholders)
        except NotRead:  # it is about no size, or in words of another release
            if ".size()" in text:
                logger.warning("a condition of the program on its sizes cannot be read, and is not checked: %s", text)


def shape_environment(nodes: Iterable[fx.Node]) -> Any:
    """Returns the shape environment that sizes of inputs belong to; None where all are fixed.

    Args:
        nodes: The nodes of a graph.
    """
    for node in nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def is_of_strides(guard: Any) -> bool:
    """Whether a guard of a shape environment is about how tensors lie in memory; no extent or value depends on it."""
    return _asked_in(guard, _OF_STRIDES)


def _is_assumption(guard: Any, expr: Any) -> bool:
    """Whether a guard says which way PyTorch's own code went, as it does not matter to the model."""
    if is_of_strides(guard):
        return True
    return _asked_in(guard, _OF_SMALL_SIZES) and _RELATIONS.get(type(expr).__name__, "eq") != "eq"


def _asked_in(guard: Any, places: Iterable[tuple[str, tuple[str, ...]]]) -> bool:
    where = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    file = str(getattr(where, "filename", "")).replace("\\", "/")
    function = str(getattr(where, "name", ""))
    return any(file.endswith(f"torch/{path}") and function.startswith(names) for path, names in places)


def _clauses(expr: Any) -> Iterator[tuple[Any, ...]]:
    """Yields what must hold, each as relations of which one must."""
    import sympy  # PyTorch has imported it where there are guards

    for clause in sympy.And.make_args(sympy.to_cnf(expr)):
        yield sympy.Or.make_args(clause)


class _Simplifier:
    """Leaves out what holds for all sizes that are left.

    Args:
        ranges: What the symbols may be.
    """

    def __init__(self, ranges: ShapeRanges) -> None:
        self._ranges = ranges
        self._sizes: dict[str, list[int]] = {}
        self._factors: dict[Any, int] = {}

    def reduce(self, clause: tuple[Any, ...]) -> list[Condition]:
        """Returns what must hold for a clause to hold, as data; nothing where it holds in any case."""
        clause = tuple(_divided(part) for part in clause)
        if any(part == True for part in clause):  # noqa: E712 - sympy's true
            return []
        parts = [part for part in clause if part != False]  # noqa: E712 - sympy's false
        if not parts or any(self._always(self._in_multiples(part)) for part in parts):
            return []
        relations = [_relation(part) for part in parts]
        if None in relations:
            return self._by_size(parts)
        condition = tuple(relation for relation in relations if relation is not None)
        if self._holds_everywhere(condition):
            return []
        self._note_multiple(parts)
        return [condition]

    def _by_size(self, parts: list[Any]) -> list[Condition]:
        """Conditions for a clause that extents cannot express; none about what no input shows."""
        import sympy

        from trt_runtime.program.allowed_sizes import allowed_sizes  # few models ask such things

        names = sorted({str(symbol) for part in parts for symbol in part.free_symbols})
        if not self._ranges.symbols.keys() >= set(names) or not names:
            return []
        return allowed_sizes(sympy.Or(*parts), {name: self._ranges.symbols[name] for name in names})

    def _holds_everywhere(self, condition: Condition) -> bool:
        """Whether a condition on one symbol holds for every size that the conditions before it have left."""
        names = symbols_of(condition)
        name = next(iter(names), "")
        low, _, high = self._ranges.symbols.get(name, (0, 0, UNBOUNDED))
        if len(names) != 1 or high - low >= _MOST_SIZES:
            return False
        sizes = self._sizes.setdefault(name, list(range(low, high + 1)))
        left = [size for size in sizes if any(relation.holds({name: size}) for relation in condition)]
        if len(left) == len(sizes):
            return True
        self._sizes[name] = left
        return False

    def _note_multiple(self, parts: list[Any]) -> None:
        """Remembers a symbol that must be a multiple, so that what follows from it is seen."""
        if len(parts) == 1 and type(parts[0]).__name__ == "Equality" and parts[0].rhs == 0:
            expr = parts[0].lhs
            if type(expr).__name__ in ("Mod", "PythonMod") and expr.args[0].is_Symbol and expr.args[1].is_Integer:
                factor = int(expr.args[1])
                self._factors[expr.args[0]] = math.lcm(self._factors.get(expr.args[0], 1), factor)

    def _in_multiples(self, expr: Any) -> Any:
        """The same, with `factor * symbol` in the place of a symbol that must be a multiple; it then counts them."""
        return expr.xreplace({symbol: factor * symbol for symbol, factor in self._factors.items()})

    def _always(self, expr: Any) -> bool:
        """Whether a relation follows from the ranges of its symbols."""
        from trt_core.internals import ValueRanges, bound_sympy
        from trt_runtime.internals import int_oo

        if expr == True:  # noqa: E712 - sympy's true
            return True
        kind = _RELATIONS.get(type(expr).__name__)
        if kind is None:
            return False
        ranges = {}
        for symbol in expr.free_symbols:
            low, _, high = self._ranges.symbols.get(str(symbol), (0, 0, UNBOUNDED))
            factor = self._factors.get(symbol, 1)
            ranges[symbol] = ValueRanges(-(-low // factor), int_oo if high >= UNBOUNDED else high // factor)
        try:
            found = bound_sympy(expr.lhs - expr.rhs, ranges)
            answers = {
                "eq": found.lower == found.upper == 0,
                "ne": found.lower > 0 or found.upper < 0,
                "lt": found.upper < 0,
                "le": found.upper <= 0,
                "gt": found.lower > 0,
                "ge": found.lower >= 0,
            }
        except Exception:  # sympy may raise anything; then it stays to be checked
            return False
        return bool(answers[kind])


def _divided(expr: Any) -> Any:
    """`3*s % 12 == 0` as `s % 4 == 0`."""
    if type(expr).__name__ != "Equality" or expr.rhs != 0 or type(expr.lhs).__name__ not in ("Mod", "PythonMod"):
        return expr
    size, modulus = expr.lhs.args
    factor, rest = size.as_coeff_Mul()
    if not (modulus.is_Integer and factor.is_Integer) or factor <= 1:
        return expr
    return expr.func(expr.lhs.func(rest, modulus // math.gcd(int(factor), int(modulus))), 0)


def _relation(expr: Any) -> Relation | None:
    name = _RELATIONS.get(type(expr).__name__)
    if name is None:
        return None
    return relation_of(expr.lhs, name, expr.rhs)
