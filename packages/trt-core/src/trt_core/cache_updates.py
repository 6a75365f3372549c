"""Writes of a step's keys and values to caches, as graphs have them: rows that follow each other, written back.

They begin at one place, or at one of its own in each row of a batch, as where texts of many lengths go on together.

A graph is functional, so such a write is two nodes: what computes the whole cache anew, and `aten.copy_` to the
cache at the end. An engine does both as one: it changes those rows where the cache lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from trt_core.attributes import is_state, read_attribute
from trt_core.internals import OpOverload
from trt_core.provider import Provider, current_provider

aten = torch.ops.aten

_AXIS: Final = 2
_RANK: Final = 4
"""Of caches as TensorRT's layer takes them, (batch, heads, length, width)."""
_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_CODES: Final = (torch.int8, torch.float8_e4m3fn)
"""Types of caches beyond those of TensorRT's layer, which the portable provider updates in place, too."""
_COUNTS: Final = (torch.int64, torch.int32)
"""The same of states that are replaced as a whole."""
_SAME_NUMBERS: Final = frozenset(
    (
        *(aten.to.dtype, aten.to.device, aten.to.other, aten.to.dtype_layout, aten._to_copy.default),
        *(aten.type_as.default, aten.clone.default, aten.alias.default, aten.detach.default, aten.contiguous.default),
    )
)
_SAME_ORDER: Final = frozenset(
    (
        *(aten.view.default, aten.view_as.default, aten._unsafe_view.default, aten.reshape.default),
        *(aten.reshape_as.default, aten.flatten.using_ints, aten.unflatten.int, aten.ravel.default),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
    )
)
_REPEATS: Final = frozenset(
    {aten.expand.default, aten.expand_as.default, aten.broadcast_to.default, aten.repeat.default}
)
_SIZES: Final = frozenset({aten.sym_size.int, aten.sym_size.default})
"""What reads extents of a cache alone, such as blocks that get caches of any length do."""


_COUNTED: Final = "counted"
"""Key of `fx.Node.meta`: an input of a block counts up, from a number or, where that is None, from any."""


@dataclass(frozen=True)
class CacheUpdate:
    """One write to a cache.

    Attributes:
        cache: The cache, an attribute or input that nothing else reads: (batch, heads, length, width), or of any rank
            with its length on any axis.
        rows: What is written, of the same shape but for its length; first extents of one may be missing.
        places: Where each of the rows goes, (rows,), counting up by one; or where the first one goes.
        axis: The axis of the length.
        wraps: Whether negative places count from the end.
        by_batch: Whether each row of the batch, the first axis, has a place: places are as many, in order, or one.
        is_flat: Whether rows lack the axis of the length, as one row may.
    """

    cache: fx.Node
    rows: fx.Node
    places: fx.Node | int
    axis: int
    wraps: bool = False
    by_batch: bool = False
    is_flat: bool = False

    @property
    def layer_shape(self) -> tuple[int, ...] | None:
        """The shape in which a layer takes the same memory; None where that is the cache's own."""
        shape = tuple(self.cache.meta["val"].shape)
        if len(shape) == _RANK and self.axis == _AXIS:
            return None
        before, after = shape[: self.axis], math.prod(shape[self.axis + 1 :])
        if self.by_batch:
            return before[0], math.prod(before[1:]), shape[self.axis], after
        return math.prod(before), 1, shape[self.axis], after

    @property
    def has_many_places(self) -> bool:
        """Whether rows of the batch have places that may differ."""
        return self.by_batch and not _is_one_number(self.places)

    @property
    def missing(self) -> int:
        """How many first extents, all of them one, the rows lack."""
        return int(self.cache.meta["val"].dim() - self.is_flat - self.rows.meta["val"].dim())

    @property
    def count(self) -> int | torch.SymInt:
        """How many rows are written."""
        is_one = self.is_flat or self.axis < self.missing
        return 1 if is_one else self.rows.meta["val"].shape[self.axis - self.missing]


@dataclass(frozen=True)
class FirstPlace:
    """Where the first row of an update goes: what an input holds, and a number.

    Attributes:
        source: The input, of integers, of which the first element counts, or each one where there are many places; None
            for none.
        offset: The number.
    """

    source: fx.Node | None
    offset: int


_Follow: TypeAlias = Callable[[Any], FirstPlace | None]


def first_place(update: CacheUpdate) -> FirstPlace | None:
    """Returns where the first row goes, in terms of what the graph is given; None where that has to be computed."""
    places = update.places
    if isinstance(places, int):
        return FirstPlace(None, places)
    return _each_of(places) if update.has_many_places else _first_of(places)


def _first_of(item: Any) -> FirstPlace | None:
    """What the first element of a value is."""
    return _in_terms_of_inputs(item, _first_of, _first_made)


def _each_of(item: Any) -> FirstPlace | None:
    """What the elements of a value are: those of an input, or all one number."""
    return _in_terms_of_inputs(item, _each_of, _all_made)


def _in_terms_of_inputs(item: Any, follow: _Follow, made: _Follow) -> FirstPlace | None:
    """Follows integers to the input that they come from.

    Args:
        item: A value of a graph, or a number.
        follow: Does so for an operand.
        made: Does so for what the graph itself makes, or holds.
    """
    if not isinstance(item, fx.Node):
        return FirstPlace(None, item) if type(item) is int else None
    value, target = item.meta.get("val"), item.target
    if not isinstance(value, torch.Tensor) or value.dtype not in _COUNTS:
        return None
    if item.meta.get(_COUNTED) is not None:
        return made(item)
    if item.op == "placeholder" or (item.op == "get_attr" and is_state(item)):
        return FirstPlace(item, 0)
    if item.op == "get_attr" or not item.args:
        return made(item)
    if target in _SAME_NUMBERS or target in _SAME_ORDER or target in _REPEATS:
        return follow(item.args[0])
    if target not in (aten.add.Tensor, aten.sub.Tensor) or item.kwargs.get("alpha", 1) != 1:
        return made(item)
    one = follow(item.args[0])
    other = None if one is None else follow(item.args[1])
    if one is None or other is None:
        return None
    if target is aten.sub.Tensor:
        return None if other.source is not None else FirstPlace(one.source, one.offset - other.offset)
    if one.source is not None and other.source is not None:
        return None
    return FirstPlace(one.source or other.source, one.offset + other.offset)


def _first_made(item: fx.Node) -> FirstPlace | None:
    if item.op == "placeholder":
        return FirstPlace(None, item.meta[_COUNTED])
    if item.op == "get_attr":
        constant = _constant(item)
        return None if constant is None or not constant.numel() else FirstPlace(None, int(constant.reshape(-1)[0]))
    if item.target is aten.arange.default:
        return FirstPlace(None, 0)
    if item.target in (aten.arange.start, aten.arange.start_step):
        return _first_of(item.args[0])
    if item.target is aten.slice.Tensor and (len(item.args) < 3 or item.args[2] in (None, 0)):
        return _first_of(item.args[0])
    if item.target is aten.select.int and (item.args[2] == 0 or _is_only_part(item)):
        return _first_of(item.args[0])
    return None


def _all_made(item: fx.Node) -> FirstPlace | None:
    if item.op == "get_attr":
        constant = _constant(item)
        numbers = set() if constant is None else set(constant.reshape(-1).tolist())
        return FirstPlace(None, numbers.pop()) if len(numbers) == 1 else None
    return _each_of(item.args[0]) if item.target is aten.select.int and _is_only_part(item) else None


def _is_only_part(item: fx.Node) -> bool:
    """Whether what is taken of an axis is all of it."""
    value, axis = item.args[0].meta["val"], item.args[1]  # type: ignore[union-attr]
    return type(value.shape[axis]) is int and value.shape[axis] == 1


def written_cache(node: fx.Node) -> fx.Node | None:
    """Returns what computes the new cache where a node writes it back, and is all of a `CacheUpdate` with it."""
    if node.target is not aten.copy_.default or node.users:
        return None
    value = node.args[1]
    found = cache_update(value) if isinstance(value, fx.Node) else None
    return value if found is not None and found.cache is node.args[0] else None  # type: ignore[return-value]


def replaced_state(node: fx.Node) -> fx.Node | None:
    """Returns what computes all of a state that a node writes; None where something reads what that was.

    So are counters beside caches written. An engine takes such a state for a cache of one row, and writes it where it
    lies.
    """
    if node.target is not aten.copy_.default or node.users or len(node.args) != 2:
        return None
    state, value = node.args
    if not isinstance(state, fx.Node) or not isinstance(value, fx.Node) or value.op != "call_function":
        return None
    if state.op not in ("placeholder", "get_attr") or [*state.users] != [node]:
        return None
    held, made = state.meta.get("val"), value.meta.get("val")
    if not (isinstance(held, torch.Tensor) and isinstance(made, torch.Tensor)):
        return None
    is_constant = all(type(extent) is int and extent > 0 for extent in held.shape)
    fits = held.dtype is made.dtype and held.shape == made.shape and held.is_contiguous()
    kinds = (*_TYPES, *_CODES, *_COUNTS) if current_provider() is Provider.PORTABLE else _TYPES
    return value if is_constant and fits and held.dtype in kinds else None


def why_not_updated(node: fx.Node) -> str:
    """Says of a state that a node writes why no engine does so in place; nothing where it writes something else."""
    inputs = node.all_input_nodes
    if node.target is not aten.copy_.default or len(inputs) != 2 or inputs[0].op not in ("placeholder", "get_attr"):
        return ""
    state, made = inputs
    value, written = state.meta.get("val"), f"it writes to `{state.target if state.op == 'get_attr' else state.name}`"
    read = [user.name for user in state.users if user not in (node, made) and user.target not in _SIZES]
    if read:
        return f"{written}, and `{read[0]}` reads what that was before"
    is_portable = current_provider() is Provider.PORTABLE
    if isinstance(value, torch.Tensor) and value.dtype not in _TYPES and not is_portable:
        return f"{written}, of {value.dtype}, and TensorRT updates floats in place"
    found = _read(made) if made.op == "call_function" else None
    if found is not None and found.cache is state and first_place(found) is None:
        return f"{written}, at places that it computes: no call could be held to those that the cache has"
    return f"{written}, all of which `{made.name}` makes anew: engines write rows that follow each other in place"


def cache_update(node: fx.Node) -> CacheUpdate | None:
    """Returns what a node writes to a cache; None where it is something else, or cannot be done in place."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    found = _read(node)
    if found is None or found.cache.op not in ("placeholder", "get_attr") or not isinstance(found.rows, fx.Node):
        return None
    others = [user for user in found.cache.users if user is not node and user.target not in _SIZES]
    if len(others) != 1 or others[0].target is not aten.copy_.default or others[0].users:
        return None
    if others[0].args[:2] != (found.cache, node):
        return None
    return found if _fits(found) else None


def _read(node: fx.Node) -> CacheUpdate | None:
    """What a node writes, if it is one of the operators that write rows."""
    target: Any = node.target
    if target not in _READERS:
        return None
    given = {argument.name: node.kwargs.get(argument.name, argument.default_value) for argument in _arguments(target)}
    given.update(zip(given, node.args))  # noqa: B905 - the rest has defaults
    cache: Any = given["self"]
    value = cache.meta.get("val") if isinstance(cache, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.dim():
        return None
    if "dim" in given:
        given["dim"] %= value.dim()
    return _READERS[target](given)


def _copied(given: Mapping[str, Any]) -> CacheUpdate:
    return CacheUpdate(given["self"], given["source"], given["index"], given["dim"])


def _sliced(given: Mapping[str, Any]) -> CacheUpdate | None:
    start = given["start"] or 0
    is_plain = given["step"] == 1 and type(start) is int and start >= 0
    return CacheUpdate(given["self"], given["src"], start, given["dim"]) if is_plain else None


def _selected(given: Mapping[str, Any]) -> CacheUpdate | None:
    cache, axis, place = given["self"], given["dim"], given["index"]
    length = cache.meta["val"].shape[axis]
    if type(place) is not int or (place < 0 and type(length) is not int):
        return None
    return CacheUpdate(cache, given["src"], place + length if place < 0 else place, axis, is_flat=True)


def _put(given: Mapping[str, Any]) -> CacheUpdate | None:
    indexed = {axis: index for axis, index in enumerate(given["indices"]) if index is not None}
    if not indexed or given["accumulate"]:
        return None
    cache, axis = given["self"], max(indexed)
    places = indexed.pop(axis)
    if not indexed:
        return CacheUpdate(cache, given["values"], places, axis, wraps=True, is_flat=not places.meta["val"].dim())
    extents, rank = cache.meta["val"].shape, max(item.meta["val"].dim() for item in (places, *indexed.values()))
    has_row = rank > len(indexed) == axis  # as many places beside each other as there are rows: one
    if [*indexed] != [*range(len(indexed))] or rank != len(indexed) + has_row:
        return None
    if not all(_is_all_of(index, at, rank, extents) for at, index in indexed.items()):
        return None
    if not _is_one_number(places) and not _lies_along(places, 0, rank, extents):
        return None
    return CacheUpdate(cache, given["values"], places, axis, wraps=True, by_batch=True, is_flat=not has_row)


def _is_all_of(index: fx.Node, axis: int, rank: int, extents: Sequence[Any]) -> bool:
    """Whether an index is all places of an axis, in order."""
    is_from_zero = _first_of(index) == FirstPlace(None, 0)
    return is_from_zero and _lies_along(index, axis, rank, extents) and _counts_up(index)


def _lies_along(index: fx.Node, axis: int, rank: int, extents: Sequence[Any]) -> bool:
    """Whether an index has a number for each place of an axis, along that axis of what several indices are together.

    Args:
        index: The index.
        axis: The axis.
        rank: How many axes all indices have together.
        extents: Of the cache.
    """
    value, extent = index.meta["val"], str(extents[axis])
    return value.dim() >= rank - axis and str(value.shape[axis - rank]) == extent == str(value.numel())


def _scattered(given: Mapping[str, Any]) -> CacheUpdate | None:
    """One row for each of a batch, by an index that repeats its place for each element."""
    rows, index = given["src"], given["index"]
    if not isinstance(rows, fx.Node) or _texts(rows) != _texts(index):
        return None
    while index.op == "call_function" and (index.target in _SAME_NUMBERS or _repeats_rows(index)):
        index = index.args[0]
    is_one_each = all(extent == "1" for extent in _texts(index)[1:])
    return CacheUpdate(given["self"], rows, index, given["dim"], by_batch=True) if is_one_each else None


def _texts(node: fx.Node) -> list[str]:
    return [*map(str, node.meta["val"].shape)]


def _repeats_rows(node: fx.Node) -> bool:
    """Whether a node repeats each number for its own row of the batch alone, or the only one."""
    if node.target not in _REPEATS:
        return False
    before, after = _texts(node.args[0]), _texts(node)  # type: ignore[arg-type]
    return set(before) <= {"1"} or (len(before) == len(after) and before[0] == after[0])


_READERS: Final[dict[Any, Callable[[Mapping[str, Any]], CacheUpdate | None]]] = {
    aten.index_copy.default: _copied,
    aten.slice_scatter.default: _sliced,
    aten.select_scatter.default: _selected,
    aten.index_put.default: _put,
    aten._unsafe_index_put.default: _put,
    aten.scatter.src: _scattered,
}
"""What operators write, of their arguments by name."""


def _arguments(target: Any) -> Iterator[Any]:
    yield from target._schema.arguments


def _fits(update: CacheUpdate) -> bool:
    """Whether a layer that updates caches takes these operands."""
    cache, rows = update.cache.meta.get("val"), update.rows.meta.get("val")
    if not (isinstance(cache, torch.Tensor) and isinstance(rows, torch.Tensor)):
        return False
    if cache.dtype not in _TYPES and not (cache.dtype in _CODES and current_provider() is Provider.PORTABLE):
        return False
    if update.missing < 0 or rows.dtype is not cache.dtype or not cache.is_contiguous():
        return False
    whole = [*cache.shape[: update.axis], *[update.count] * (not update.is_flat), *cache.shape[update.axis + 1 :]]
    if [*map(str, whole)] != [*map(str, (*[1] * update.missing, *rows.shape))]:
        return False
    is_usual = update.layer_shape is None and not update.missing
    if not is_usual and not all(type(extent) is int for extent in cache.shape):
        return False
    first = first_place(update)
    if first is None and (update.by_batch or update.is_flat or not is_usual):
        return False  # nobody could tell of places outside, which PyTorch refuses
    if first is not None and first.source is None and not _is_inside(update, first.offset):
        return False
    if isinstance(update.places, int):
        return True
    places = update.places.meta.get("val") if isinstance(update.places, fx.Node) else None
    if not isinstance(places, torch.Tensor) or places.dtype not in _COUNTS:
        return False
    if update.by_batch:
        return update.axis > 0 and str(update.count) == "1" and str(places.numel()) in ("1", str(cache.shape[0]))
    return str(places.numel()) == str(update.count) and _counts_up(update.places)


def _is_inside(update: CacheUpdate, place: int) -> bool:
    """Whether rows fit a cache from a place on, where that can be told."""
    length, count = update.cache.meta["val"].shape[update.axis], update.count
    if type(length) is not int or type(count) is not int:
        return True
    first = place + length if update.wraps and place < 0 else place
    return 0 <= first <= length - count


def note_counting(placeholder: fx.Node, made: fx.Node) -> None:
    """Notes in the metadata of a block's input that it counts up, where what another block makes for it does.

    Args:
        placeholder: The input.
        made: What it stands for.
    """
    value = made.meta.get("val")
    if made.op == "call_function" and isinstance(value, torch.Tensor) and value.dtype in _COUNTS and _counts_up(made):
        first = _first_of(made)
        placeholder.meta[_COUNTED] = None if first is None or first.source is not None else first.offset


def _counts_up(node: fx.Node) -> bool:
    """Whether each number of a row of them is by one larger than the one before, whatever they are."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    if _is_one_number(node) or _COUNTED in node.meta:
        return True
    if node.op == "get_attr":
        return _is_range(node)
    target = node.target
    if target in _SAME_NUMBERS or target in _SAME_ORDER:
        source, is_integer = node.args[0], value.dtype in _COUNTS
        return is_integer and isinstance(source, fx.Node) and _counts_up(source)
    if target is aten.arange.start_step:
        return len(node.args) < 3 or bool(node.args[2] == 1)
    if target in (aten.arange.default, aten.arange.start):
        return True
    if target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
        return False
    for one, other in (node.args[:2], node.args[1::-1]):
        if isinstance(one, fx.Node) and _is_one_number(other) and _counts_up(one):
            return True
    return False


def _is_one_number(item: Any) -> bool:
    if not isinstance(item, fx.Node):
        return isinstance(item, int)
    value = item.meta.get("val")
    return not isinstance(value, torch.Tensor) or all(type(extent) is int and extent == 1 for extent in value.shape)


def _is_range(node: fx.Node) -> bool:
    value = _constant(node)
    row = None if value is None else value.reshape(-1)
    return row is not None and bool(row.numel()) and bool((row[1:] - row[:-1] == 1).all())


def _constant(node: fx.Node) -> torch.Tensor | None:
    """A tensor that a graph holds, with values that stay."""
    module = node.graph.owning_module
    if module is None or is_state(node):
        return None
    value = read_attribute(module, str(node.target))
    return value if isinstance(value, torch.Tensor) and not value.is_meta else None
