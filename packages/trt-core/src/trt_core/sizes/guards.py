"""Reads what an exported program asks of sizes, as conditions; what the ranges of its symbols say already is left out.

PyTorch keeps guards as expressions of sympy in the process that exported, and as text in a program that was read from a
file. Both become expressions in the symbols of the graph, are simplified, and leave as data. A guard that is left out
is a wrong result for the sizes at which it does not hold, so where one cannot be said, fewer sizes are allowed.
"""

from __future__ import annotations

import ast
import enum
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from trt_core.log import logger
from trt_core.nesting import children_of
from trt_core.sizes.conditions import Condition, Relation, relation_of
from trt_core.sizes.expressions import depends_on_data, expression_of, is_extent
from trt_core.sizes.functions import BY_CALL, BY_CLASS, FUNCTIONS, relation_name
from trt_core.sizes.grid import MOST_COMBINATIONS, SizeGrid, runs
from trt_core.sizes.ranges import UNBOUNDED, ShapeRanges

if TYPE_CHECKING:
    from torch.export import ExportedProgram


_NUMBERED: Final = re.compile(r"(.+)_(\d+)")

_SIGNS: Final[dict[type, str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "bitxor",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
"""Python's operators, by the names that the table of functions has for them."""


class NotRead(ValueError):
    """A guard is about something else than sizes, or is written in a way that is not known."""


def read_guard(text: str, graph: fx.Graph, placeholders: list[fx.Node]) -> Any:
    """Returns a guard as an expression of sympy in the symbols of a graph.

    Args:
        text: A Python expression, as PyTorch writes guards; it is parsed, never evaluated.
        graph: A graph that is called like the model.
        placeholders: Its placeholders, which carry `meta["val"]`.

    Raises:
        NotRead: It cannot be read.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NotRead(text) from error
    return _Reader(_by_source(graph, placeholders)).read(tree)


class _Reader:
    """Turns syntax into expressions.

    Args:
        values: What placeholders stand for, by their text in guards.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def read(self, node: ast.AST) -> Any:
        import sympy  # PyTorch has imported it where there are guards

        if isinstance(node, ast.BoolOp):
            join = sympy.And if isinstance(node.op, ast.And) else sympy.Or
            return join(*map(self.read, node.values))
        if isinstance(node, ast.UnaryOp):
            operand = self.read(node.operand)
            if isinstance(node.op, ast.Not):
                return sympy.Not(operand)
            if isinstance(node.op, ast.USub):
                return -operand
        if isinstance(node, ast.Compare):
            sides = [self.read(side) for side in (node.left, *node.comparators)]
            links = zip(node.ops, sides, sides[1:], strict=False)
            return sympy.And(*(self._apply(node, _SIGNS.get(type(sign)), pair) for sign, *pair in links))
        if isinstance(node, ast.BinOp):
            return self._apply(node, _SIGNS.get(type(node.op)), [self.read(node.left), self.read(node.right)])
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return sympy.Integer(node.value) if type(node.value) is int else sympy.Float(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in BY_CALL:
            return self._apply(node, BY_CALL[ast.unparse(node.func)].name, [self.read(item) for item in node.args])
        return self._size(node)

    def _apply(self, node: ast.AST, name: str | None, operands: list[Any]) -> Any:
        import sympy

        from trt_core.internals import size_functions

        classes = FUNCTIONS[name].classes if name is not None else ()
        kind = classes[0] if classes else ""
        if name == "sub":
            return operands[0] - operands[1]
        if name in ("truediv", "floordiv", "mod") and operands[1] == 0:
            raise NotRead(ast.unparse(node))
        if name == "truediv":
            kind = "IntTrueDiv" if all(operand.is_integer for operand in operands) else "FloatTrueDiv"
        elif name == "pow":
            if operands[1].is_Integer and 0 <= operands[1] <= 64:
                return operands[0] ** operands[1]
            kind = "FloatPow" if operands[1].is_Float else ""
        elif name in ("and", "or", "round"):  # of bits, and to so many digits
            kind = classes[-1] if len(operands) == 2 else classes[0]
        made: Any = getattr(size_functions, kind, None) or getattr(sympy, kind, None)
        try:
            return made(*operands)
        except TypeError as error:  # no such function in this release, or one of another number of operands
            raise NotRead(ast.unparse(node)) from error

    def _size(self, node: ast.AST) -> Any:
        """`L['x'].size()[0]`, or a number that is an input."""
        axis: Any = None
        source = node
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            call = node.value.func
            if isinstance(call, ast.Attribute) and call.attr == "size" and isinstance(node.slice, ast.Constant):
                source, axis = call.value, node.slice.value
        value = self._values.get(ast.unparse(source))
        if type(axis) is int and isinstance(value, torch.Tensor) and 0 <= axis < value.dim():
            value = value.shape[axis]
        if isinstance(value, torch.SymInt):
            return value.node.expr
        if type(value) is int:
            import sympy

            return sympy.Integer(value)
        raise NotRead(ast.unparse(node))


def _by_source(graph: fx.Graph, placeholders: list[fx.Node]) -> dict[str, Any]:
    """What placeholders stand for, by all the texts that guards may have for them."""
    values = [node.meta.get("val") for node in placeholders]
    found = {f"L['flat_args'][{index}]": value for index, value in enumerate(values)}
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None:
        return found | {f"L[{node.target!r}]": value for node, value in zip(placeholders, values, strict=True)}
    args, kwargs = map(children_of, children_of(info.in_spec))
    remaining = iter(values)
    for name, spec in zip(info.orig_args, (*args, *kwargs), strict=True):
        numbered = _NUMBERED.fullmatch(name)
        for path in _paths(spec):
            value = next(remaining)
            found[f"L[{name!r}]{path}"] = value
            if numbered:  # the second of *args is called args_1 by the graph, and L['args'][1] by the guard
                found.setdefault(f"L[{numbered[1]!r}][{numbered[2]}]{path}", value)
    return found


def _paths(spec: Any) -> list[str]:
    """Python's text for the way to each leaf of a structure."""
    if spec.is_leaf():
        return [""]
    children = children_of(spec)
    keys = list(spec.context) if spec.type is dict else range(len(children))
    return [f"[{key!r}]{path}" for key, child in zip(keys, children, strict=True) for path in _paths(child)]


_MOST_SIZES: Final = 1 << 14
"""Whether a condition holds everywhere is computed for up to so many sizes."""

_MOST_GAPS: Final = 32
"""Where the sizes of a symbol at which a guard fails lie in more pieces, only the usual one stays."""


class Asker(enum.Enum):
    """Who compared sizes."""

    MODEL = enum.auto()
    """Code of a model: what it learns decides what it computes."""
    OPERATOR = enum.auto()
    """An operator, which demands that sizes are equal, or takes one of several ways to the same result."""
    STRIDES = enum.auto()
    """Code that finds how tensors lie in memory, or which dimensions of a reshape are split or joined first: extents
    and values are the same for either answer."""
    SMALL_SIZES = enum.auto()
    """Code that asks for equality where extents have to be equal, and for all else to tell small sizes from others."""


_ASKERS: Final = (
    (Asker.STRIDES, "_prims_common/__init__.py", ("check_contiguous", "is_contiguous", "is_channels_last")),
    (Asker.STRIDES, "_prims_common/__init__.py", ("are_strides_like", "is_non_overlapping_and_dense")),
    (Asker.STRIDES, "_prims_common/__init__.py", ("compute_elementwise_output", "suggest_memory")),
    (Asker.STRIDES, "_refs/__init__.py", ("_reshape_view_helper",)),
    (Asker.STRIDES, "_subclasses/fake_impls.py", ("_compute_stride", "maybe_guard_or")),  # the latter are inside of it
    (Asker.SMALL_SIZES, "_prims_common/__init__.py", ("",)),
    (Asker.SMALL_SIZES, "_refs/__init__.py", ("_broadcast_shapes",)),
    (Asker.SMALL_SIZES, "_subclasses/fake_impls.py", ("infer_size",)),
    (Asker.MODEL, "__init__.py", ("",)),
    (Asker.MODEL, "_dynamo/", ("",)),
    (Asker.MODEL, "_export/non_strict_utils.py", ("",)),  # stands in for `min` and `max` while a model is exported
    (Asker.MODEL, "_tensor.py", ("",)),
    (Asker.MODEL, "ao/", ("",)),
    (Asker.MODEL, "distributions/", ("",)),
    (Asker.MODEL, "functional.py", ("",)),
    (Asker.MODEL, "nn/", ("",)),
    (Asker.OPERATOR, "", ("",)),
)
"""Who code of PyTorch asks for: how its file in PyTorch and its function begin. The first that fits; all else is of a
model, as layers are, and what they are written with."""


@functools.cache
def asker_in(filename: str, function: str = "") -> Asker:
    """Returns for whom code asks.

    Args:
        filename: Its file.
        function: Its function.
    """
    try:
        inside = Path(filename).relative_to(Path(torch.__file__).parent).as_posix()
    except ValueError:  # it is not PyTorch's
        return Asker.MODEL
    return next(asker for asker, path, names in _ASKERS if inside.startswith(path) and function.startswith(names))


def asker_of(guard: Any) -> Asker:
    """Returns who wanted to know what a guard of a shape environment says."""
    where = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    filename = getattr(where, "filename", None)
    return Asker.MODEL if filename is None else asker_in(filename, str(getattr(where, "name", "")))


def conditions_of(
    graph: fx.Graph,
    ranges: ShapeRanges,
    program: ExportedProgram | None = None,
    *,
    assume: bool = False,
    more: Iterable[Any] = (),
) -> tuple[Condition, ...]:
    """Returns what a captured model asks of its sizes.

    Args:
        graph: A graph that is called like the model, whose placeholders carry `meta["val"]`.
        ranges: Ranges of its symbolic dimensions.
        program: The program that it was made of, which may remember more.
        assume: Whether to leave out what PyTorch's own bookkeeping makes guards of, as it assumes that no size is 0 or
            1. That is for programs that were captured here: elsewhere PyTorch answers from such guards what a model
            asks, which leaves no guard then.
        more: Further conditions, in sympy's expressions.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    kept: list[Condition] = []
    simplifier = _Simplifier(ranges)
    for guard in itertools.chain(_guards(graph, placeholders, program, assume), more):
        for clause in _clauses(guard):
            kept += [condition for condition in simplifier.reduce(clause) if condition not in kept]
    return tuple(kept)


def forget_assumptions(program: ExportedProgram) -> None:
    """Removes the guards from a program which are no conditions of the model; see `conditions_of`."""
    env = shape_environment(program.graph.nodes)
    if env is None or not env.guards:
        return
    env.guards[:] = [guard for guard in env.guards if not is_assumption(guard)]
    rewrite_guard_text(program)


def rewrite_guard_text(program: ExportedProgram) -> None:
    """Makes the guards that a program is saved with those that its shape environment has."""
    from trt_core.internals import guard_writer

    rewrite = guard_writer()
    if rewrite is not None:
        program._guards_code = rewrite(program.graph_module)


def _guards(
    graph: fx.Graph, placeholders: list[fx.Node], program: ExportedProgram | None, assume: bool
) -> Iterator[Any]:
    """Yields guards as expressions in the symbols of the graph."""
    nodes = placeholders if program is None else program.graph.nodes
    env = shape_environment(nodes)
    yield from (env.replace(asked.node.expr) for asked in _asserted_sizes(nodes))
    if env is not None and env.guards:
        for guard in env.guards:
            expr = env.replace(guard.expr)
            if not (assume and is_assumption(guard)):
                yield expr
        if env.source_to_var:  # a program that was loaded knows from where no symbol is, and its text says the rest
            return
    for text in getattr(program, "_guards_code", None) or ():
        try:
            yield read_guard(text, graph, placeholders)
        except NotRead:  # it is about no size, or in words of another release
            if ".size()" in text:
                logger.warning("a condition of the program on its sizes cannot be read, and is not checked: %s", text)


def _asserted_sizes(nodes: Iterable[fx.Node]) -> Iterator[torch.SymBool]:
    """Yields what a graph asserts of sizes, which is where `prefer_deferred_runtime_asserts_over_guards` has guards."""
    for node in nodes:
        asked = node.args[0] if node.target is torch.ops.aten._assert_scalar.default else None
        value = asked.meta.get("val") if isinstance(asked, fx.Node) else None
        if isinstance(value, torch.SymBool) and not depends_on_data(value):
            yield value


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


def condition_of(expression: Any, answer: Any) -> Any:
    """Returns the relation under which an expression of sympy, a truth value or a number, has the value found."""
    import sympy  # PyTorch has imported it where sizes vary

    if getattr(expression, "is_Relational", False) or getattr(expression, "is_Boolean", False):
        return expression if answer else ~expression
    return sympy.Eq(expression, answer)


def is_of_strides(guard: Any) -> bool:
    """Whether a guard of a shape environment is about how tensors lie in memory; no extent or value depends on it."""
    return asker_of(guard) is Asker.STRIDES


def is_assumption(guard: Any) -> bool:
    """Whether a guard of a shape environment says which way PyTorch's own code went, as it matters to no model."""
    asker = asker_of(guard)
    return asker is Asker.STRIDES or (asker is Asker.SMALL_SIZES and (relation_name(guard.expr) or "eq") != "eq")


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
        self._left: dict[str, torch.Tensor] = {}
        self._factors: dict[Any, int] = {}

    def reduce(self, clause: tuple[Any, ...]) -> list[Condition]:
        """Returns what must hold for a clause to hold, as data; nothing where it holds in any case."""
        clause = tuple(_divided(part) for part in clause)
        if any(part == True for part in clause):  # noqa: E712 - sympy's true
            return []
        parts = [part for part in clause if part != False]  # noqa: E712 - sympy's false
        if not parts or any(self._always(self._in_multiples(part)) for part in parts):
            return []
        names = sorted({str(symbol) for part in parts for symbol in part.free_symbols})
        relations = [_relation(part) for part in parts]
        is_known = self._ranges.symbols.keys() >= set(names)
        if None in relations and not (is_known and names):
            return []  # it is about what no input shows
        most = MOST_COMBINATIONS if None in relations else _MOST_SIZES
        holds = self._computed(parts, names, most) if is_known else None
        if holds is not None and self._holds_for_the_rest(names, holds):
            return []
        condition = tuple(relation for relation in relations if relation is not None)
        if len(condition) < len(parts):
            return self._in_sizes(names, holds) or self._at(names, holds)
        if len(names) == 1 and not all(relation.is_whole for relation in condition):
            return self._in_sizes(names, holds) or [condition]
        self._note_multiple(parts)
        return [condition]

    def _span(self, name: str) -> range:
        low, _, high = self._ranges.symbols[name]
        return range(low, high + 1)

    def _computed(self, parts: list[Any], names: list[str], most: int) -> torch.Tensor | None:
        """For all sizes whether a clause holds; None for more than so many."""
        import sympy  # PyTorch has imported it where there are guards

        spans = {name: self._span(name) for name in names}
        if not names or math.prod(map(len, spans.values())) > most:
            return None
        return SizeGrid(spans).holds(sympy.Or(*parts))

    def _holds_for_the_rest(self, names: list[str], holds: torch.Tensor) -> bool:
        """Whether a clause holds for every size that the conditions before it have left."""
        if len(names) > 1:
            return bool(holds.all())
        left = self._left.setdefault(names[0], torch.ones_like(holds))
        self._left[names[0]] = left & holds
        return bool((left <= holds).all())

    def _in_sizes(self, names: list[str], holds: torch.Tensor | None) -> list[Condition]:
        """Conditions that name the sizes of one symbol at which a clause fails; none for several, and too many."""
        gaps = runs(~holds) if holds is not None and len(names) == 1 else []
        name, span = names[0], self._span(names[0])
        found: list[Condition] = []
        for low, high in ((span[first], span[last]) for first, last in gaps[: _MOST_GAPS + 1]):
            below = [Relation(name, "lt", low)] if low > span[0] or high == span[-1] else []
            above = [Relation(name, "gt", high)] if high < span[-1] else []
            found.append((Relation(name, "ne", low),) if low == high and below and above else (*below, *above))
        return found if len(found) <= _MOST_GAPS else []

    def _at(self, names: list[str], holds: torch.Tensor | None) -> list[Condition]:
        """Conditions that allow the usual sizes alone, or those nearest to them that a clause holds for."""
        usual = [self._ranges.symbols[name][1] for name in names]
        if holds is not None and holds.any():
            spans, places = list(map(self._span, names)), holds.nonzero()
            here = torch.tensor([best - span.start for best, span in zip(usual, spans, strict=True)], device="cpu")
            nearest = places[(places - here).abs().sum(1).argmin()].tolist()
            usual = [span[place] for span, place in zip(spans, nearest, strict=True)]
        return [(Relation(name, "eq", best),) for name, best in zip(names, usual, strict=True)]

    def _note_multiple(self, parts: list[Any]) -> None:
        """Remembers a symbol that must be a multiple, so that what follows from it is seen."""
        if len(parts) == 1 and relation_name(parts[0]) == "eq" and parts[0].rhs == 0:
            expr = parts[0].lhs
            if _is_rest(expr) and expr.args[0].is_Symbol and expr.args[1].is_Integer:
                factor = int(expr.args[1])
                self._factors[expr.args[0]] = math.lcm(self._factors.get(expr.args[0], 1), factor)

    def _in_multiples(self, expr: Any) -> Any:
        """The same, with `factor * symbol` in the place of a symbol that must be a multiple; it then counts them."""
        return expr.xreplace({symbol: factor * symbol for symbol, factor in self._factors.items()})

    def _always(self, expr: Any) -> bool:
        """Whether a relation follows from the ranges of its symbols."""
        from trt_core.internals import ValueRanges, bound_sympy, int_oo  # sympy is costly to import

        if expr == True:  # noqa: E712 - sympy's true
            return True
        kind = relation_name(expr)
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
    if relation_name(expr) != "eq" or expr.rhs != 0 or not _is_rest(expr.lhs):
        return expr
    size, modulus = expr.lhs.args
    factor, rest = size.as_coeff_Mul()
    if not (modulus.is_Integer and factor.is_Integer) or factor <= 1:
        return expr
    return expr.func(expr.lhs.func(rest, modulus // math.gcd(int(factor), int(modulus))), 0)


def _is_rest(expr: Any) -> bool:
    function = BY_CLASS.get(type(expr).__name__)
    return function is not None and function.name == "mod"


def _relation(expr: Any) -> Relation | None:
    name = relation_name(expr)
    if name is not None:
        return relation_of(expr.lhs, name, expr.rhs)
    said = expression_of(expr)
    return Relation(said, "ne", 0) if said is not None and is_extent(said, is_whole=False) else None
