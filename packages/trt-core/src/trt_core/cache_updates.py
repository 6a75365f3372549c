"""Writes of a step's keys and values to caches, as graphs have them: rows that follow each other, written back.

A graph is functional, so such a write is two nodes: what computes the whole cache anew, and `aten.copy_` to the
cache at the end. An engine does both as one: it changes those rows where the cache lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

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
_SAME_NUMBERS: Final = frozenset({aten.to.dtype, aten._to_copy.default, aten.clone.default, aten.alias.default})
_SAME_FIRST: Final = frozenset(
    {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim}
    | {aten.expand.default, aten.squeeze.default}
)
_SIZES: Final = frozenset({aten.sym_size.int, aten.sym_size.default})
"""What reads extents of a cache alone, such as blocks that get caches of any length do."""

_PUTS: Final = frozenset({aten.index_put.default, aten._unsafe_index_put.default})


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
    """

    cache: fx.Node
    rows: fx.Node
    places: fx.Node | int
    axis: int
    wraps: bool = False

    @property
    def layer_shape(self) -> tuple[int, ...] | None:
        """The shape in which a layer takes the same memory; None where that is the cache's own."""
        shape = tuple(self.cache.meta["val"].shape)
        if len(shape) == _RANK and self.axis == _AXIS:
            return None
        return math.prod(shape[: self.axis]), 1, shape[self.axis], math.prod(shape[self.axis + 1 :])

    @property
    def missing(self) -> int:
        """How many first extents, all of them one, the rows lack."""
        return int(self.cache.meta["val"].dim() - self.rows.meta["val"].dim())

    @property
    def count(self) -> int | torch.SymInt:
        """How many rows are written."""
        return 1 if self.axis < self.missing else self.rows.meta["val"].shape[self.axis - self.missing]


@dataclass(frozen=True)
class FirstPlace:
    """Where the first row of an update goes: what an input holds first, and a number.

    Attributes:
        source: The input, of integers, of which the first element counts; None for none.
        offset: The number.
    """

    source: fx.Node | None
    offset: int


def first_place(update: CacheUpdate) -> FirstPlace | None:
    """Returns where the first row goes, in terms of what the graph is given; None where that has to be computed."""
    places = update.places
    return FirstPlace(None, places) if isinstance(places, int) else _first_of(places)


def _first_of(item: Any) -> FirstPlace | None:
    """What the first element of a value is."""
    if not isinstance(item, fx.Node):
        return FirstPlace(None, item) if type(item) is int else None
    value, target = item.meta.get("val"), item.target
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int64, torch.int32):
        return None
    if item.op == "placeholder":
        return FirstPlace(item, 0)
    if item.op == "get_attr":
        constant = _constant(item)
        return None if constant is None or not constant.numel() else FirstPlace(None, int(constant.reshape(-1)[0]))
    if item.op != "call_function" or not item.args:
        return None
    if target in _SAME_NUMBERS or target in _SAME_FIRST:
        return _first_of(item.args[0])
    if target is aten.arange.default:
        return FirstPlace(None, 0)
    if target in (aten.arange.start, aten.arange.start_step):
        return _first_of(item.args[0])
    if target is not aten.add.Tensor or item.kwargs.get("alpha", 1) != 1:
        return None
    one, other = (_first_of(operand) for operand in item.args)
    if one is None or other is None or (one.source is not None and other.source is not None):
        return None
    return FirstPlace(one.source or other.source, one.offset + other.offset)


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
    read = [user.name for user in state.users if user not in (node, made)]
    if read:
        return f"{written}, and `{read[0]}` reads what that was before"
    is_portable = current_provider() is Provider.PORTABLE
    if isinstance(value, torch.Tensor) and value.dtype not in _TYPES and not is_portable:
        return f"{written}, of {value.dtype}, and TensorRT updates floats in place"
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
    if target is not aten.index_copy.default and target is not aten.slice_scatter.default and target not in _PUTS:
        return None
    given = {argument.name: node.kwargs.get(argument.name, argument.default_value) for argument in _arguments(target)}
    given.update(zip(given, node.args))  # noqa: B905 - the rest has defaults
    cache: Any = given["self"]
    value = cache.meta.get("val") if isinstance(cache, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.dim():
        return None
    if target is aten.index_copy.default:
        return CacheUpdate(cache, given["source"], given["index"], given["dim"] % value.dim())
    if target is aten.slice_scatter.default:
        start = given["start"] or 0
        is_plain = given["step"] == 1 and type(start) is int and start >= 0
        return CacheUpdate(cache, given["src"], start, given["dim"] % value.dim()) if is_plain else None
    indexed = [(axis, index) for axis, index in enumerate(given["indices"]) if index is not None]
    if len(indexed) != 1 or given["accumulate"]:
        return None
    ((axis, places),) = indexed
    return CacheUpdate(cache, given["values"], places, axis, wraps=True)


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
    whole = [*cache.shape[: update.axis], update.count, *cache.shape[update.axis + 1 :]]
    if [*map(str, whole)] != [*map(str, (*[1] * update.missing, *rows.shape))]:
        return False
    is_usual = update.layer_shape is None and not update.missing
    if not is_usual and not all(type(extent) is int for extent in cache.shape):
        return False
    if not is_usual and first_place(update) is None:  # nobody could tell of places outside, which PyTorch refuses
        return False
    if isinstance(update.places, int):
        return True
    places = update.places.meta.get("val") if isinstance(update.places, fx.Node) else None
    if not isinstance(places, torch.Tensor) or places.dim() != 1 or places.dtype not in (torch.int64, torch.int32):
        return False
    return str(places.shape[0]) == str(update.count) and _counts_up(update.places)


def _counts_up(node: fx.Node) -> bool:
    """Whether each number of a row of them is by one larger than the one before, whatever they are."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    if value.dim() == 1 and type(value.shape[0]) is int and value.shape[0] == 1:
        return True
    if node.op == "get_attr":
        return _is_range(node)
    target = node.target
    if target in _SAME_NUMBERS:
        source, is_integer = node.args[0], value.dtype in (torch.int64, torch.int32)
        return is_integer and isinstance(source, fx.Node) and _counts_up(source)
    if target is aten.arange.start_step:
        return len(node.args) < 3 or bool(node.args[2] == 1)
    if target in (aten.arange.default, aten.arange.start):
        return True
    if target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
        return False
    for one, other in (node.args[:2], node.args[1::-1]):
        if isinstance(one, fx.Node) and _counts_up(one) and _is_one_number(other):
            return True
    return False


def _is_one_number(item: Any) -> bool:
    if not isinstance(item, fx.Node):
        return isinstance(item, int)
    value = item.meta.get("val")
    return not isinstance(value, torch.Tensor) or all(type(extent) is int and extent == 1 for extent in value.shape)


def _is_range(node: fx.Node) -> bool:
    value = _constant(node)
    return value is not None and value.dim() == 1 and bool(value.numel()) and bool((value[1:] - value[:-1] == 1).all())


def _constant(node: fx.Node) -> torch.Tensor | None:
    """A tensor that a graph holds, with values that stay."""
    module = node.graph.owning_module
    if module is None or is_state(node):
        return None
    value = read_attribute(module, str(node.target))
    return value if isinstance(value, torch.Tensor) and not value.is_meta else None
