"""How a graph module is called and what it returns, taken over from what capturing the model left on its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.attributes import LIES_AS_CAPTURED, is_written
from trt_core.errors import ExportError
from trt_core.nesting import children_of
from trt_core.sizes.conditions import Condition, symbols_of
from trt_core.sizes.expressions import Extent, extent_of, symbols_in
from trt_core.sizes.ranges import UNBOUNDED, ShapeRanges
from trt_core.wording import with_article
from trt_runtime.plain_structure import plain_tree
from trt_runtime.program.fields import MAX_EXTENT, is_input_name
from trt_runtime.program.graph import (
    Dimension,
    FixedInput,
    ForeignTree,
    Leaf,
    NumberInput,
    NumberType,
    SequenceType,
    Signature,
    TensorInput,
    TensorType,
    ValueType,
)
from trt_runtime.program.input_reader import InputReader, Symbols, homes_of
from trt_runtime.program.literals import Value

INTERCHANGE: Final = 'save it with format="exported_program", which PyTorch reads, or compile it without that'
"""What to do with what has no place in a saved program."""


def reader_of(
    graph: fx.Graph, ranges: ShapeRanges, conditions: Sequence[Condition] = (), parameters: Sequence[str] = ()
) -> InputReader:
    """Returns what checks calls of a graph module, and brings their inputs into the order of its placeholders.

    Args:
        graph, ranges, conditions, parameters: See `signature_of`.
    """
    signature = signature_of(graph, ranges, conditions, parameters)
    written = [index for index, node in enumerate(_placeholders(graph)) if is_written(node)]
    profiles = [symbol_bounds(item, signature) for item in ranges.profiles]
    return InputReader(signature, profiles, written=written)


def signature_of(
    graph: fx.Graph, ranges: ShapeRanges, conditions: Sequence[Condition] = (), parameters: Sequence[str] = ()
) -> Signature:
    """Returns how a graph module is called.

    Args:
        graph: A graph that is called like its model, whose placeholders carry `meta["val"]`.
        ranges: Ranges of its symbolic dimensions.
        conditions: What else it asks of sizes; those that name a size which no input shows are left out.
        parameters: Names of the model's parameters in their order, where it is known: keyword inputs that go on in that
            order may be given by position, too.
    """
    placeholders = _placeholders(graph)
    info = getattr(graph._codegen, "pytree_info", None)
    if info is None:
        names = tuple(str(node.target) for node in placeholders)
        structure: tuple[Any, ...] = tuple(Value(index) for index in range(len(names)))
        positional = len(names)
    else:
        counter = iter(range(len(placeholders)))
        args, kwargs = map(children_of, children_of(info.in_spec))
        names = tuple(info.orig_args)
        structure = tuple(_tree(spec, counter) for spec in (*args, *kwargs))
        positional = _count_positional(names, len(args), parameters)
    signature = Signature(names, positional, structure, tuple(_leaf(node, ranges) for node in placeholders))
    homes = homes_of(signature)
    leaves = tuple(_without_unknown(leaf, homes.keys()) for leaf in signature.leaves)
    known = tuple(condition for condition in conditions if symbols_of(condition) <= homes.keys())
    return Signature(names, positional, structure, leaves, known)


def declared_type(value: Any, extent: Callable[[int | torch.SymInt], Extent] = extent_of) -> ValueType | None:
    """Returns what a program declares of a value that was traced; None for what is no tensor, number or sequence.

    Args:
        value: What `meta["val"]` of its node holds.
        extent: Writes a size.
    """
    if isinstance(value, torch.Tensor):
        return TensorType(value.dtype, tuple(map(extent, value.shape)))
    if isinstance(value, (list, tuple)):
        return SequenceType(tuple(declared_type(item, extent) for item in value))
    kind = next((kind for kind, traced in _NUMBERS.items() if isinstance(value, (kind, traced))), None)
    return None if kind is None else NumberType(kind)


_NUMBERS: Final[dict[type, type]] = {bool: torch.SymBool, int: torch.SymInt, float: torch.SymFloat}
"""Traced numbers by type, `bool` before `int`; one that capture found to be a certain number is a plain one."""


def symbol_bounds(ranges: ShapeRanges, signature: Signature) -> Symbols:
    """Returns (min, opt, max) of the symbols that a call of the program shows."""
    homes = homes_of(signature)
    return {name: (low, best, _bounded(high)) for name, (low, best, high) in ranges.symbols.items() if name in homes}


def require_plain(signature: Signature) -> None:
    """Refuses inputs that nest in a class which a program cannot name, or that have no name of a parameter.

    Raises:
        ExportError: The message names the input.
    """
    for name, tree in zip(signature.names, signature.structure, strict=True):
        if not is_input_name(name):
            raise ExportError(
                f"an input is called {name!r:.80}, which Python takes for no name of a parameter",
                why="tools print the names of inputs into code",
                hint="name it with letters, digits and underscores",
            )
        for foreign in _foreign(tree):
            raise ExportError(
                f"input {name!r} is {with_article(foreign.spec.type.__name__)}, "
                "and programs take tuples, lists and dicts",
                hint=INTERCHANGE,
            )


def nest(results: Sequence[Any], spec: Any) -> Any:
    """The results in the nesting of the model's result, with dicts and tuples in the place of foreign classes."""
    return plain_tree(spec, iter(results))


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _tree(spec: Any, counter: Iterator[int]) -> Any:
    if spec.is_leaf():
        return Value(next(counter))
    children = children_of(spec)
    if spec.type in (tuple, list):
        return spec.type(_tree(child, counter) for child in children)
    if spec.type is dict:
        return {key: _tree(child, counter) for key, child in zip(spec.context, children, strict=True)}
    return ForeignTree(spec, tuple(Value(next(counter)) for _ in range(spec.num_leaves)))


def _foreign(tree: Any) -> Iterator[ForeignTree]:
    if isinstance(tree, ForeignTree):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _foreign(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _foreign(item)


def _count_positional(names: Sequence[str], count: int, parameters: Sequence[str]) -> int:
    while count < min(len(names), len(parameters)) and names[count] == parameters[count]:
        count += 1
    return count


def _leaf(node: fx.Node, ranges: ShapeRanges) -> Leaf:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        shape = tuple(_dimension(extent, ranges) for extent in value.shape)
        strides = tuple(map(extent_of, value.stride())) if node.meta.get(LIES_AS_CAPTURED) else None
        return TensorInput(value.dtype, shape, value.device.type, strides)
    if isinstance(value, torch.SymInt):
        found = extent_of(value)
        return NumberInput(int, found if isinstance(found, str) else None)
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return NumberInput(float if isinstance(value, torch.SymFloat) else bool)
    return FixedInput(value)


def _dimension(value: int | torch.SymInt, ranges: ShapeRanges) -> Dimension:
    low, _, high = ranges.bounds(value)
    return Dimension(extent_of(value), low, high if isinstance(value, int) else _bounded(high))


def _without_unknown(leaf: Leaf, known: Any) -> Leaf:
    """An input with nothing said of sizes that follow from what no input shows."""
    if not isinstance(leaf, TensorInput):
        return leaf
    shape = tuple(Dimension(_known(item.extent, known), item.low, item.high) for item in leaf.shape)
    strides = None if leaf.strides is None else tuple(_known(item, known) for item in leaf.strides)
    return TensorInput(leaf.dtype, shape, leaf.device, strides)


def _known(extent: Extent, known: Any) -> Extent:
    return extent if symbols_in(extent) <= known else None


def _bounded(high: int) -> int:
    return MAX_EXTENT if high >= UNBOUNDED else high
