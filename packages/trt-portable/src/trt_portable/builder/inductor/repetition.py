"""Repeated layers of a graph, found by structure, so that a compiler sees each kind once.

A transformer of 32 equal layers is a graph with a period. `split` cuts it into pieces: what comes before, the layers,
which share one code, and what comes after. Weights, and whatever else comes from outside of a piece, are its arguments.
A size that follows from those of inputs by divisions, as the length of what convolutions left of a sound, is a symbol
of its own inside of a piece: the compiler sees through `length`, and not through `((s // 80 - 3) // 2 - 1) // 2 + 1`.
Pieces are cut where a compiler cannot fuse in any case: what crosses a cut was made by a kernel of its own, or is in
memory anyway because such a kernel stands between its maker and its reader. So the pieces start the kernels that the
whole starts.
"""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import sympy
import torch
from torch import fx

from trt_core.graph_search import last_uses
from trt_core.internals import OWN_NAMESPACES, ConstantSource, DimDynamic, OpOverload

_LONGEST_PERIOD: Final = 2048
_LEAST_SAVED: Final = 32
"""Fewer nodes are compiled sooner than cut out."""
_MOST_CANDIDATES: Final = 4
_LONGEST_CHAIN: Final = 8
"""Operators that each piece repeats for itself; what takes more is made once and read."""
_SHARED_PERIODS: Final = 1.5
"""What is read further on than so many layers is one tensor for all of them, as tables of angles are."""
_ALIGNMENT: Final = 16
_FEW_NUMBERS: Final = 16
_HALF: Final = 2
_LEAST_LENGTH: Final = 2  # PyTorch takes extents of 0 and 1 for constants
_EXTERNAL: Final = ("mm", "addmm", "bmm", "baddbmm", "_int_mm", "_scaled_mm", "convolution", "dot", "mv", "addmv")
_EXTERNAL_PARTS: Final = ("scaled_dot_product", "cudnn", "convolution", "_addmm_activation", "_mm")


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


@dataclass(frozen=True)
class Piece:
    """A stretch of a graph.

    Attributes:
        code: Which of the codes computes it.
        inputs: What it takes: nodes with tensors, or expressions of sizes.
        outputs: The nodes whose tensors it returns.
    """

    code: int
    inputs: tuple[Any, ...]
    outputs: tuple[fx.Node, ...]


@dataclass
class SplitGraph:
    """A graph as pieces, in order.

    Attributes:
        codes: Graphs that take sizes and tensors one by one, and return tuples.
        pieces: What runs.
        inputs: The placeholders of the whole.
        outputs: The nodes that it returns.
    """

    codes: list[fx.GraphModule]
    pieces: list[Piece]
    inputs: list[fx.Node]
    outputs: list[fx.Node]
    _dying: list[list[fx.Node]] = field(default_factory=list)
    _places: dict[Any, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        touched = ([node for node in (*piece.inputs, *piece.outputs) if _is_node(node)] for piece in self.pieces)
        self._dying = last_uses(touched, self.outputs)
        self._places = places_of([node.meta["val"] for node in self.inputs])

    def run(self, calls: Sequence[Callable[[list[Any]], Sequence[Any]]], arguments: list[Any]) -> list[Any]:
        """Computes the outputs.

        Args:
            calls: What computes each of the codes, from a list that it may empty.
            arguments: What the whole takes; emptied, so that what nothing reads any more is free.
        """
        sizes = {symbol: arguments[index].shape[axis] for symbol, (index, axis) in self._places.items()}
        values: dict[fx.Node, Any] = dict(zip(self.inputs, arguments, strict=True))
        arguments.clear()
        for piece, dying in zip(self.pieces, self._dying, strict=True):
            given = [values[each] if _is_node(each) else _evaluated(each, sizes) for each in piece.inputs]
            values.update(zip(piece.outputs, calls[piece.code](given), strict=True))
            for node in dying:
                del values[node]
        return [values[node] for node in self.outputs]


@dataclass(frozen=True)
class CompiledGraph:
    """What a compiler made of a split graph.

    Attributes:
        split: The graph.
        codes: What computes each of its codes: takes a list of arguments, which it empties.
    """

    split: SplitGraph
    codes: Sequence[Any]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Computes the outputs from a list of arguments, which it empties."""
        return self.split.run(self.codes, arguments)


def _is_node(value: Any) -> bool:
    return isinstance(value, fx.Node)


def _evaluated(size: torch.SymInt, sizes: Mapping[Any, Any]) -> Any:
    """A size for sizes of inputs, or as it is where these are symbols."""
    if any(isinstance(each, torch.SymInt) for each in sizes.values()):
        return size
    return int(size.node.expr.subs(sizes))


def split(graph: fx.GraphModule) -> SplitGraph:
    """Cuts a graph at its repeated layers; one without them is one piece.

    Args:
        graph: Takes tensors one by one, returns a tuple of tensors, and writes to none but by `updates` of it.
    """
    return _Cutter(graph).split()


def whole(graph: fx.GraphModule) -> SplitGraph:
    """A graph as one piece.

    Args:
        graph: As `split` takes it; it may write to tensors.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    outputs = list(graph.graph.output_node().args[0])  # type: ignore[arg-type]
    return SplitGraph([graph], [Piece(0, tuple(inputs), tuple(outputs))], inputs, outputs)


def updates(graph: fx.GraphModule) -> set[fx.Node]:
    """The copies at a graph's end to what it takes, none of them read: there Inductor writes in place of copying."""
    calls = itertools.dropwhile(lambda node: node.op == "output", reversed(graph.graph.nodes))
    return set(itertools.takewhile(_is_update, calls))


def _is_update(node: fx.Node) -> bool:
    if node.target is not torch.ops.aten.copy_.default or node.users:
        return False
    state: Any = node.args[0]
    return bool(state.op == "placeholder")


def part_biases(graph: fx.GraphModule) -> None:
    """Makes a sum of its own of a bias that the compiler would fuse with what follows the product.

    It does so itself, where it sees the rest; here it may be in another piece.

    Args:
        graph: Is changed.
    """
    from trt_portable.internals import inductor_config as config
    from trt_portable.internals import is_pointwise_use

    aten = torch.ops.aten
    for node in graph.graph.find_nodes(op="call_function", target=aten.addmm.default):
        bias, left, right = node.args
        value = node.meta["val"]
        is_kept = getattr(config, "keep_addmm_fused_for_half_dtypes", False) and value.dtype.itemsize == _HALF
        if value.device.type != "cuda" or is_kept or node.kwargs or not all(map(is_pointwise_use, node.users)):
            continue
        with graph.graph.inserting_before(node):
            product = graph.graph.call_function(aten.mm.default, (left, right))
            total = graph.graph.call_function(aten.add.Tensor, (product, bias))
        product.meta["val"] = total.meta["val"] = value
        node.replace_all_uses_with(total)
        graph.graph.erase_node(node)


class _Outline:
    """The structure of a stretch of a graph, whatever tensors it takes.

    Args:
        cutter: Knows the whole graph.
        nodes: The stretch, in order; what it makes is written to what the graph takes at its end, not at the graph's.

    Attributes:
        form: Equal for stretches that one code computes.
        emitted: The operators of the code: the nodes, and what they read that each piece makes for itself.
        externals: Nodes with tensors from outside, in the order of their first use.
        sizes: Sizes that are read, by expression.
    """

    def __init__(self, cutter: _Cutter, nodes: Sequence[fx.Node]) -> None:
        self._cutter = cutter
        self._local: dict[fx.Node, int] = {}
        self.emitted: list[fx.Node] = []
        self.externals: dict[fx.Node, int] = {}
        self.sizes: dict[Any, torch.SymInt] = {}
        self._parts: list[Any] = []
        for node in (*nodes, *(update for value in nodes for update in cutter.updates.get(value, ()))):
            self._emit(node)
        self.form = tuple(self._parts)

    def index(self, node: fx.Node) -> int | None:
        """The place of a node among what is emitted."""
        return self._local.get(node)

    def mentioned(self) -> Iterator[Any]:
        """The expressions of all sizes of what is emitted, and of what it takes."""
        for node in (*self.emitted, *self.externals):
            yield from (size.node.expr for size in _sizes_of(node.meta.get("val")))

    def _emit(self, node: fx.Node) -> None:
        described = _encoded((node.args, tuple(sorted(node.kwargs.items()))), self._refer)
        self._local[node] = len(self.emitted)
        self.emitted.append(node)
        self._parts.append((*self._cutter.meaning(node), described, _signature(node)))

    def _refer(self, node: fx.Node) -> Any:
        if node in self._local:
            return "local", self._local[node]
        if _is_size(node):
            value = node.meta["val"]
            if isinstance(value, torch.SymInt):
                self.sizes.setdefault(value.node.expr, value)
            return "size", _plain(value)
        if node in self._cutter.moved:
            self._emit(node)
            return "local", self._local[node]
        if node not in self.externals:
            self.externals[node] = len(self.externals)
            return "given", self.externals[node], _signature(node)
        return "given", self.externals[node]


@dataclass(frozen=True)
class _Size:
    """A size that a piece takes.

    Attributes:
        expr: What it is inside.
        meaning: What it is outside.
    """

    expr: Any
    meaning: torch.SymInt


@dataclass(frozen=True)
class _Length:
    """A size that is a symbol of its own inside of pieces.

    Attributes:
        symbol: What it is inside.
        meaning: What it is outside.
        division: The part of its meaning that is hidden by it.
    """

    symbol: Any
    meaning: torch.SymInt
    division: Any

    @classmethod
    def of(cls, division: Any, extent: torch.SymInt) -> _Length:
        """Makes a symbol for an extent, within the range that it has."""
        node = extent.node
        env, bounds = node.shape_env, node.shape_env.bound_sympy(node.expr)
        symbol = env.create_symbol(
            node.hint, ConstantSource(f"length_{len(env.var_to_range)}"), DimDynamic.DYNAMIC, constraint_dim=None
        )
        env.var_to_range[symbol] = bounds
        _meanings.setdefault(env, {})[symbol] = node.expr
        return cls(symbol, extent, division)


@dataclass(frozen=True)
class _Lengths:
    """What becomes of sizes inside of a piece.

    Attributes:
        each: The sizes that are symbols there.
    """

    each: tuple[_Length, ...]

    def of(self, expr: Any) -> Any:
        """An expression over sizes as it is inside."""
        if not self.each:
            return expr
        inside = {each.division: each.symbol - (each.meaning.node.expr - each.division) for each in self.each}
        return sympy.expand(expr.xreplace(inside))

    def number(self, expr: Any, meaning: torch.SymInt) -> torch.SymInt:
        """A size of the inside, of which its meaning is known."""
        node = meaning.node
        return meaning if expr == node.expr else node.shape_env.create_symintnode(expr, hint=node.hint)

    def value(self, value: Any) -> Any:
        """What a node stands for, with the sizes of the inside."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.value, value))
        if isinstance(value, torch.SymInt):
            return self.number(self.of(value.node.expr), value)
        if not self.each or not isinstance(value, torch.Tensor) or next(_sizes_of(value), None) is None:
            return value
        shape, strides, (offset,) = (
            [self.value(number) for number in numbers]
            for numbers in (value.shape, value.stride(), (value.storage_offset(),))
        )
        with value.fake_mode:  # type: ignore[attr-defined]
            made = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
            return made if isinstance(offset, int) and offset == 0 else made.as_strided(shape, strides, offset)


_meanings: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()


def spelled_out(expression: Any, env: Any) -> Any:
    """Returns an expression over the symbols of pieces in those of inputs of the whole.

    Args:
        expression: Of sympy.
        env: The environment of the symbols.
    """
    return expression.xreplace(_meanings.get(env, {}))


def _divisions(expr: Any) -> Iterator[Any]:
    """The outermost parts of an expression that are more than sums and products."""
    if isinstance(expr, sympy.Function):
        yield expr
    else:
        for part in expr.args:
            yield from _divisions(part)


class _Cutter:
    """Finds repetitions and cuts.

    Args:
        graph: The whole.

    Attributes:
        moved: Nodes that each piece makes for itself: of nothing by a few operators, or views of inputs.
        updates: By the node whose tensor is written to what the graph takes, what writes it.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph
        everything = list(graph.graph.nodes)
        self._inputs = [node for node in everything if node.op == "placeholder"]
        (self._last,) = [node for node in everything if node.op == "output"]
        self._outputs: list[fx.Node] = list(self._last.args[0])
        self.moved = _movable(everything) - set(self._outputs)
        written = updates(graph)
        self.updates: dict[Any, list[fx.Node]] = {}
        for update in (node for node in everything if node in written):
            self.updates.setdefault(update.args[1], []).append(update)
        self._nodes = [
            node
            for node in everything
            if node.op not in ("placeholder", "output")
            and node not in self.moved
            and node not in written
            and not _is_size(node)
        ]
        self._at = {node: at for at, node in enumerate(self._nodes)}
        self._last_use = np.array(
            [
                max((self._at.get(user, len(self._nodes)) for user in node.users if user not in written), default=at)
                for at, node in enumerate(self._nodes)
            ]
        )
        self._codes: dict[Any, int] = {}
        self._made: list[fx.GraphModule] = []
        self._lengths: dict[Any, _Length] = {}

    def split(self) -> SplitGraph:
        """The whole as pieces."""
        ranges = list(self._ranges(0, len(self._nodes))) if self._is_splittable() else []
        if len(ranges) < 2 or not self._are_writes_last([end for _, end, _ in ranges]):
            return whole(self._graph)
        pieces = [piece for places in self._grouped(ranges) for piece in self._pieces(places)]
        return SplitGraph(self._made, pieces, self._inputs, self._outputs)

    def _is_splittable(self) -> bool:
        """Whether all sizes follow from those of inputs, and all outputs are tensors."""
        known: set[Any] = set()
        for node in self._inputs:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                return False
            extents: list[Any] = list(value.shape)
            known.update(extent.node.expr for extent in extents if isinstance(extent, torch.SymInt))
        for node in (*self._nodes, *self.moved):
            if "val" not in node.meta:
                return False
            if not all(size.node.expr.free_symbols <= known for size in _sizes_of(node.meta.get("val"))):
                return False
        return all(_is_node(node) and isinstance(node.meta.get("val"), torch.Tensor) for node in self._outputs)

    def _are_writes_last(self, ends: Sequence[int]) -> bool:
        """Whether each piece may write what it makes, since no later one reads what was there before."""
        if not all(value in self._at for value in self.updates):
            return False
        for value, writes in self.updates.items():
            end = min(end for end in ends if end > self._at[value])
            if any(at >= end for update in writes for at in self._uses(update.args[0])):
                return False
        return True

    def _uses(self, state: Any) -> Iterator[int]:
        """Where something reads what the graph takes, or a view of it; the end where it is returned."""
        for user in state.users:
            if user in self.moved:
                yield from self._uses(user)
            elif user is self._last:
                yield len(self._nodes)
            elif user in self._at:
                yield self._at[user]

    def meaning(self, node: fx.Node) -> tuple[Any, ...]:
        """The operator of a node, or the few numbers of a constant that the graph holds."""
        if node.op != "get_attr":
            return node.op, node.target
        value = getattr(self._graph, str(node.target))
        if not isinstance(value, torch.Tensor) or value.numel() > _FEW_NUMBERS:
            return node.op, node.target
        return node.op, str(value.dtype), tuple(value.shape), str(value.tolist())

    # Finding ---------------------------------------------------------------------------------------

    def _ranges(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Stretches of nodes in order: begin, end, and a number that stretches of one code share."""
        found = self._repetition(low, high)
        if found is None:
            if high > low:
                yield low, high, low
            return
        start, period, count = found
        yield from self._ranges(low, start)
        for turn in range(count):
            begin = start + turn * period
            yield begin, begin + period, start
        yield from self._ranges(start + count * period, high)

    def _repetition(self, low: int, high: int) -> tuple[int, int, int] | None:
        """Where equal stretches begin, how long each is, and how many there are."""
        if high - low < 2 * _LEAST_SAVED:
            return None
        numbers: dict[Any, int] = {}
        tokens = np.array([numbers.setdefault(self._token(node), len(numbers)) for node in self._nodes[low:high]])
        candidates: list[tuple[int, int, int, int]] = []
        for period in range(1, min(_LONGEST_PERIOD, len(tokens) // 2) + 1):
            begin, run = _longest_run(tokens[:-period] == tokens[period:])
            saved = (run // period) * period
            if saved >= _LEAST_SAVED:
                candidates.append((-saved, period, low + begin, low + begin + run + period))
        for _, period, begin, end in sorted(candidates)[:_MOST_CANDIDATES]:
            found = self._best_cut(period, begin, end)
            if found is not None:
                return found
        return None

    def _token(self, node: fx.Node) -> Any:
        """What a node does, whatever it reads."""
        kinds = _encoded((node.args, tuple(sorted(node.kwargs.items()))), lambda source: source.op == "placeholder")
        return *self.meaning(node), kinds, _signature(node)

    def _best_cut(self, period: int, begin: int, end: int) -> tuple[int, int, int] | None:
        """The places to cut: as many equal stretches as can be, and little that crosses from one to the next."""
        starts: list[tuple[int, int, int]] = []
        for start in range(begin, min(begin + period, end - period)):
            count = (end - start) // period
            cuts = {start, start + period, start + count * period}
            crossing = [self._crossing(cut, period) for cut in sorted(cuts)]
            if all(each is not None for each in crossing):
                starts.append((-count, sum(each or 0 for each in crossing), start))
        for negated, _, start in sorted(starts)[:_MOST_CANDIDATES]:
            places = [start + turn * period for turn in range(-negated)]
            forms = [_Outline(self, self._nodes[place : place + period]).form for place in places]
            first, count = _longest_run(np.array([form == forms[0] for form in forms]))
            if count == len(forms) or (count > 1 and (count - 1) * period >= _LEAST_SAVED):
                return places[first], period, count
        return None

    def _crossing(self, cut: int, period: int) -> int | None:
        """How many tensors cross a cut; None where it would part what one kernel computes."""
        count = 0
        for at in np.flatnonzero(self._last_use[:cut] >= cut).tolist():
            node = self._nodes[at]
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor) or not _is_aligned(value):
                return None
            count += 1
            base = _base(node)
            if base is None or base in self.moved or self._last_use[at] - self._at[base] > _SHARED_PERIODS * period:
                continue
            if not _is_external(base) and any(not self._is_apart(base, user) for user in self._readers(node, cut)):
                return None
        return count

    def _readers(self, node: fx.Node, cut: int) -> Iterator[fx.Node]:
        """What computes with a tensor, or a view of it, behind a cut; outputs and kernels of their own left out."""
        for user in node.users:
            if self._at.get(user, 0) < cut:  # it is returned or written, if it is not there
                continue
            if _is_view(user):
                yield from self._readers(user, cut)
            elif not _is_external(user):
                yield user

    def _is_apart(self, maker: fx.Node, reader: fx.Node) -> bool:
        """Whether a kernel that a compiler fuses with nothing stands between two nodes."""
        through = {maker: False}
        for node in self._nodes[self._at[maker] + 1 : self._at[reader] + 1]:
            met = [through[source] for source in node.all_input_nodes if source in through]
            if met:
                through[node] = any(met) or _is_external(node)
        return through.get(reader, True)

    # Cutting ---------------------------------------------------------------------------------------

    def _grouped(self, ranges: Sequence[tuple[int, int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Stretches that follow each other and share a code, together."""
        group: list[tuple[int, int]] = []
        shared = None
        for begin, end, number in ranges:
            if number != shared and group:
                yield group
                group = []
            shared = number
            group.append((begin, end))
        yield group

    def _pieces(self, places: Sequence[tuple[int, int]]) -> list[Piece]:
        """The pieces of stretches that one code computes."""
        outlines = [_Outline(self, self._nodes[begin:end]) for begin, end in places]
        returned: set[int] = set()
        for outline, (begin, end) in zip(outlines, places, strict=True):
            for at in range(begin, end):
                index = outline.index(self._nodes[at])
                if index is not None and self._last_use[at] >= end:
                    returned.add(index)
        order = sorted(returned)
        key = (outlines[0].form, tuple(order))
        lengths = self._lengths_in(outlines[0])
        sizes = self._sizes(outlines[0], lengths)
        if key not in self._codes:
            self._codes[key] = len(self._made)
            self._made.append(self._code(outlines[0], lengths, sizes, order))
        return [
            Piece(
                self._codes[key],
                (*(size.meaning for size in sizes), *outline.externals),
                tuple(outline.emitted[index] for index in order),
            )
            for outline in outlines
        ]

    def _sizes(self, outline: _Outline, lengths: _Lengths) -> list[_Size]:
        """The sizes that a piece takes: all symbols that it mentions, then what consists of them."""
        mentioned: set[Any] = set()
        for expr in (*outline.mentioned(), *outline.sizes):
            mentioned |= lengths.of(expr).free_symbols
        symbols: dict[Any, torch.SymInt] = {}
        for node in self._inputs:
            for extent in node.meta["val"].shape:
                if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                    symbols.setdefault(extent.node.expr, extent)
        found = [_Size(symbol, value) for symbol, value in symbols.items() if symbol in mentioned]
        found += [_Size(length.symbol, length.meaning) for length in lengths.each]
        known = {size.expr for size in found}
        spelled = [_Size(lengths.of(expr), value) for expr, value in outline.sizes.items()]
        return found + [size for size in spelled if size.expr not in known]

    def _lengths_in(self, outline: _Outline) -> _Lengths:
        """What follows from sizes by one division that is all that a piece knows of these."""
        exprs = {*outline.mentioned(), *outline.sizes}
        divisions = dict.fromkeys(division for expr in exprs for division in _divisions(expr))
        hidden = {division: sympy.Dummy() for division in divisions}
        open_to_it = set().union(*(expr.xreplace(hidden).free_symbols for expr in exprs))
        shared = Counter(symbol for division in divisions for symbol in division.free_symbols)
        extents = [
            extent
            for node in outline.externals
            for extent in getattr(node.meta["val"], "shape", ())
            if isinstance(extent, torch.SymInt)
        ]
        found: list[_Length] = []
        for division in divisions:
            if any(symbol in open_to_it or shared[symbol] > 1 for symbol in division.free_symbols):
                continue
            beyond = ((extent, extent.node.expr - division) for extent in extents)
            extent = next((extent for extent, offset in beyond if offset.is_Integer), None)
            if extent is not None and division not in self._lengths:
                self._lengths[division] = _Length.of(division, extent)
            if extent is not None and self._lengths[division].meaning.node.hint >= _LEAST_LENGTH:
                found.append(self._lengths[division])
        return _Lengths(tuple(found))

    def _code(
        self, outline: _Outline, lengths: _Lengths, taken: Sequence[_Size], returned: Sequence[int]
    ) -> fx.GraphModule:
        made = fx.Graph()
        sizes: dict[Any, fx.Node] = {}
        given: dict[fx.Node, fx.Node] = {}
        for number, size in enumerate(taken):
            sizes[size.expr] = made.placeholder(f"size_{number}")
            sizes[size.expr].meta["val"] = lengths.number(size.expr, size.meaning)
        for number, node in enumerate(outline.externals):
            given[node] = made.placeholder(f"given_{number}")
            given[node].meta["val"] = lengths.value(node.meta["val"])

        def replaced(node: fx.Node) -> Any:
            if node in given:
                return given[node]
            value = node.meta["val"]
            return sizes[lengths.of(value.node.expr)] if isinstance(value, torch.SymInt) else value

        for node in outline.emitted:
            given[node] = made.node_copy(node, replaced)
            given[node].meta["val"] = lengths.value(node.meta["val"])
        made.output(tuple(given[outline.emitted[index]] for index in returned))
        made.lint()
        return fx.GraphModule(self._graph, made)


def _longest_run(flags: Any) -> tuple[int, int]:
    """Where the longest run of true flags begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    best = int(lengths.argmax())
    return int(edges[2 * best]), int(lengths[best])


def _encoded(argument: Any, refer: Callable[[fx.Node], Any]) -> Any:
    """An argument as what can be compared and hashed."""
    if isinstance(argument, fx.Node):
        return refer(argument)
    if isinstance(argument, (list, tuple)):
        return tuple(_encoded(part, refer) for part in argument)
    if isinstance(argument, dict):
        return tuple((key, _encoded(part, refer)) for key, part in argument.items())
    if isinstance(argument, slice):
        return "slice", _encoded((argument.start, argument.stop, argument.step), refer)
    return type(argument).__name__, repr(argument)


def _signature(node: fx.Node) -> Any:
    return _described(node.meta.get("val"))


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        extents = tuple(map(_plain, (*value.shape, *value.stride())))
        return str(value.dtype), str(value.device), extents, _is_aligned(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    return _plain(value) if isinstance(value, torch.SymInt) else str(value)


def _plain(size: Any) -> Any:
    """A size as what can be compared and hashed; to spell it out takes a while."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (int, torch.SymInt))


def _sizes_of(value: Any) -> Iterator[torch.SymInt]:
    """The symbolic numbers of what a node makes."""
    if isinstance(value, torch.SymInt):
        yield value
    elif isinstance(value, torch.Tensor):
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        yield from (number for number in numbers if isinstance(number, torch.SymInt))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _sizes_of(part)


def _is_aligned(value: torch.Tensor) -> bool:
    """Whether compiled kernels may take a tensor for one that begins where memory is given out."""
    offset = value.storage_offset()
    return isinstance(offset, int) and offset * value.element_size() % _ALIGNMENT == 0


def _movable(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Nodes that a few operators make of nothing but sizes, and views of inputs."""
    lengths: dict[fx.Node, float] = {}  # of what is made of nothing
    views: dict[fx.Node, int] = {}
    for node in nodes:
        if _is_size(node) or node.op == "get_attr":
            lengths[node] = 0
            continue
        is_pure = isinstance(node.target, OpOverload) and not node.target._schema.is_mutable
        if not is_pure or torch.Tag.nondeterministic_seeded in node.target.tags:  # type: ignore[union-attr]
            continue
        if "empty" in str(node.target) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        sources = [source for source in node.all_input_nodes if not _is_size(source)]
        lengths[node] = 1 + sum(lengths.get(source, math.inf) for source in sources)
        if sources and _is_view(node) and (sources[0].op == "placeholder" or sources[0] in views):
            views[node] = 1 + views.get(sources[0], 0)
    made = {node for node, length in lengths.items() if length <= _LONGEST_CHAIN and not _is_size(node)}
    return made | {node for node, length in views.items() if length <= _LONGEST_CHAIN}


def _is_external(node: fx.Node) -> bool:
    """Whether a compiler calls a kernel for a node, and fuses nothing with it."""
    if not isinstance(node.target, OpOverload):
        return False
    namespace, _, name = node.target._schema.name.partition("::")
    return namespace not in OWN_NAMESPACES or name in _EXTERNAL or any(part in name for part in _EXTERNAL_PARTS)


def _is_view(node: fx.Node) -> bool:
    """Whether a node takes a part of its first operand, or sees it in another shape."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    arguments = node.target._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    return alias is not None and not alias.is_write


def _base(node: fx.Node) -> fx.Node | None:
    """What computed the memory that a node sees; None where that is an input."""
    while _is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return None if node.op != "call_function" else node
