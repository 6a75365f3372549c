"""Checks what a compiled module is called with: number, structure, types, shapes and plain values of its inputs.

Engines check their own inputs. The guard stands before all of them, so that a mistake is found also where the first
block runs in PyTorch, is told in terms of the model's own inputs, and plain values that capturing has fixed are not
silently ignored. It also brings the inputs of a call into the flat order of the captured program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree as pytree

from trt_core import InputError
from trt_core.dtypes import dtype_name
from trt_core.extents import Extent, evaluate_extent, extent_of, format_multiple, solve_extent
from trt_core.misfits import misfit, require_fixed, with_article
from trt_core.nesting import children_of
from trt_core.profile_fit import VaryingSize, require_profile
from trt_core.ranges import UNBOUNDED, ShapeRanges
from trt_core.state import is_written
from trt_runtime.direct_call import is_foreign

_MOST_REMEMBERED: Final = 256


@dataclass(frozen=True)
class Dimension:
    """What a dimension of an input may be.

    Attributes:
        extent: An int, a symbol, or an expression of symbols; None where it is no such expression.
        low, high: Smallest and largest size.
        profiles: (low, high) in each optimization profile, where there are several.
    """

    extent: Extent
    low: int
    high: int
    profiles: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        return f"at least {self.low}" if self.high >= UNBOUNDED else f"{self.low} to {self.high}"


@dataclass(frozen=True)
class TensorInput:
    """A tensor that the model takes.

    Attributes:
        dtype: Its type.
        shape: Its dimensions.
    """

    dtype: torch.dtype
    shape: tuple[Dimension, ...]

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class FixedValue:
    """A plain value that capturing the model has fixed.

    Attributes:
        value: The value: a number, a string, None, ...
    """

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class FreeValue:
    """A number that may differ from call to call."""

    def __str__(self) -> str:
        return "a number"


Expected = TensorInput | FixedValue | FreeValue


class InputGuard:
    """Refuses calls which do not fit what a module was compiled for.

    Args:
        names: Names of the model's parameters, positional before keyword.
        structure: How the inputs are nested: the specification of (args, kwargs).
        expected: What each leaf of that structure must be.
        parameters: Names of the model's parameters in their order, where it is known: keyword inputs that go on in that
            order may be given by position, too.
        written: Leaves that the model writes to. Another input must not share their memory.

    Attributes:
        is_flat: Whether every parameter is one tensor or one plain value.
        is_in_engine: Whether an engine that takes the inputs by position, as they come, checks all that this does.
    """

    def __init__(
        self,
        names: Sequence[str],
        structure: Any,
        expected: Sequence[Expected],
        parameters: Sequence[str] = (),
        written: Collection[int] = (),
    ) -> None:
        self._names = tuple(names)
        self._written = frozenset(written)
        self._expected = tuple(expected)
        positional, keyword = children_of(structure)
        self._specs = [*children_of(positional), *children_of(keyword)]
        self._positional = _count_positional(names, len(children_of(positional)), parameters)
        self.is_flat = all(spec.is_leaf() for spec in self._specs)
        takes_every_size = not any(_has_step(item) for item in self._expected)
        self.is_in_engine = self.is_flat and takes_every_size and self._positional == len(self._names)
        self._accepted: set[Any] = set()

    @classmethod
    def of(cls, graph: fx.Graph, ranges: ShapeRanges, parameters: Sequence[str] = ()) -> InputGuard:
        """Returns the guard of a lowered graph, whose placeholders say what the inputs are.

        Args:
            graph: A graph that is called like its model.
            ranges: Ranges of the symbolic dimensions.
            parameters: Names of the model's parameters in their order, where it is known.
        """
        info = graph._codegen.pytree_info  # type: ignore[attr-defined]  # of the code generation for nested inputs
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        expected = [_expected(node.meta.get("val"), ranges) for node in placeholders]
        written = [index for index, node in enumerate(placeholders) if is_written(node)]
        return cls(info.orig_args, info.in_spec, expected, parameters, written)

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Checks the inputs of a call, and returns them flat, in the order of the captured program.

        Raises:
            InputError: The message names the input, what it is, and what it should be.
        """
        if not self.is_flat or self._written:
            return self._check(self._bind(args, kwargs))
        flat: Sequence[Any] = args
        if kwargs or len(args) != len(self._names) or len(args) > self._positional:
            bound = self._bind(args, kwargs)
            flat = [bound[name] for name in self._names]
        key = self._key(flat)
        if key is None or key not in self._accepted:
            self._check(dict(zip(self._names, flat, strict=True)))
            if key is not None:
                if len(self._accepted) >= _MOST_REMEMBERED:
                    self._accepted.clear()
                self._accepted.add(key)
        return flat

    def refuse_gradients(self, leaves: Sequence[Any]) -> None:
        """Refuses inputs that require gradients.

        Args:
            leaves: What `read` returned.

        Raises:
            InputError: The message names the input, and what to do.
        """
        for index, value in enumerate(leaves):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                place = self._names[index] if self.is_flat else f"{index} of the flattened inputs"
                raise InputError(
                    f"input {place} requires gradients, and engines compute none",
                    hint="call the model under torch.no_grad() or torch.inference_mode(), or detach the input",
                )

    @staticmethod
    def _key(flat: Sequence[Any]) -> Any:
        """What decides whether flat inputs are accepted; None when something else than dense tensors is among them."""
        parts = []
        for value in flat:
            if not isinstance(value, torch.Tensor):
                return None
            parts.append((value.shape, value.dtype))
        try:
            hash(key := tuple(parts))
        except TypeError:  # symbolic shapes
            return None
        return key

    def __deepcopy__(self, memo: dict[int, Any]) -> InputGuard:
        return self  # it never changes, but for what it remembers

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns values by parameter name, all of them."""
        taken = f"it was compiled for {', '.join(self._names) or 'no inputs'}"
        if len(args) > len(self._names):
            raise InputError(
                f"the compiled model takes {_count(len(self._names))}, {len(args)} were given",
                hint=f"{taken}; compile it again to call it with others",
            )
        if len(args) > self._positional:
            name = self._names[self._positional]
            raise InputError(
                f"input {name!r} is taken by name, not by position",
                why="the model was captured with it as a keyword input",
                hint=f"write {name}=...",
            )
        bound = dict(zip(self._names, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise InputError(f"input {name!r} was given twice", hint="give it by position or by name, not both")
            if name not in self._names:
                raise InputError(
                    f"the compiled model takes no input {name!r}",
                    hint=f"{taken}; compile it with that input to call it with it",
                )
            bound[name] = value
        missing = [name for name in self._names if name not in bound]
        if missing:
            raise InputError(
                f"the compiled model takes {_count(len(self._names))}, {len(bound)} were given",
                why=f"missing: {', '.join(missing)}",
                hint=f"{taken}, optional ones too",
            )
        return bound

    def _check(self, bound: Mapping[str, Any]) -> list[Any]:
        """Checks inputs by name, and returns them flat."""
        leaves = [
            leaf
            for name, spec in zip(self._names, self._specs, strict=True)
            for leaf in _leaves(bound[name], spec, name)
        ]
        symbols: dict[str, int] = {}
        for (place, value), expected in zip(leaves, self._expected, strict=True):
            if isinstance(expected, TensorInput):
                _check_tensor(place, value, expected, symbols)
            elif isinstance(expected, FixedValue):
                require_fixed(place, value, expected.value)
        for (place, value), expected in zip(leaves, self._expected, strict=True):
            if isinstance(expected, TensorInput):
                _check_relations(place, value, expected, symbols)
        _check_profiles(leaves, self._expected)
        for index in self._written:
            _check_memory(leaves, index)
        return [value for _, value in leaves]


def _count_positional(names: Sequence[str], count: int, parameters: Sequence[str]) -> int:
    while count < min(len(names), len(parameters)) and names[count] == parameters[count]:
        count += 1
    return count


def _has_step(expected: Expected) -> bool:
    """Whether a tensor's sizes must be multiples of something: engines check their range only."""
    if not isinstance(expected, TensorInput):
        return False
    return any(isinstance(dimension.extent, list) for dimension in expected.shape)


def _expected(value: Any, ranges: ShapeRanges) -> Expected:
    if isinstance(value, torch.Tensor):
        return TensorInput(value.dtype, tuple(_dimension(extent, ranges) for extent in value.shape))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return FreeValue()
    return FixedValue(value)


def _dimension(extent: int | torch.SymInt, ranges: ShapeRanges) -> Dimension:
    low, _, high = ranges.bounds(extent)
    profiles = tuple(item.bounds(extent)[::2] for item in ranges.profiles)
    return Dimension(extent_of(extent), low, high, profiles if low != high else ())


def _check_tensor(place: str, value: Any, expected: TensorInput, symbols: dict[str, int]) -> None:
    """Checks type, rank and extents by themselves; notes what the symbols are."""
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f"input {place} is a {type(value).__name__}, not a tensor",
            hint=f"give a tensor: {expected}",
        )
    if is_foreign(value):
        raise InputError(
            f"input {place} is a {type(value).__name__}, which computes in its own way",
            hint="engines take plain tensors: give the tensor that it is made of",
        )
    if value.dtype is not expected.dtype:
        raise InputError(
            f"input {place} has type {dtype_name(value.dtype)}, the model was compiled for "
            f"{dtype_name(expected.dtype)}",
            hint=f"cast it with .to({expected.dtype}), or compile the model for that type",
        )
    if value.dim() != len(expected.shape):
        raise InputError(
            f"input {place} has rank {value.dim()}, the model was compiled for rank {len(expected.shape)}",
            why=f"its shape is {tuple(value.shape)}",
            hint=f"give {expected}",
        )
    for axis, (extent, dimension) in enumerate(zip(value.shape, expected.shape, strict=True)):
        if extent < dimension.low or (extent > dimension.high and dimension.high < UNBOUNDED):
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, the model was compiled for {dimension}",
                why=f"its shape is {tuple(value.shape)}",
                hint="compile the model with an Input whose range has that size, or give another tensor",
            )
        solved = None if dimension.low == dimension.high else solve_extent(dimension.extent, extent)
        if solved is None:
            continue
        symbol, size = solved
        if size is None:
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, and must be {format_multiple(dimension.extent)}",
                why="the model was captured for such sizes",
                hint="pad the input, or capture the model with a dimension that takes every size",
            )
        symbols.setdefault(symbol, size)


def _check_relations(place: str, value: torch.Tensor, expected: TensorInput, symbols: Mapping[str, int]) -> None:
    """Checks extents that must equal, or follow from, those of other inputs."""
    for axis, (extent, dimension) in enumerate(zip(value.shape, expected.shape, strict=True)):
        try:
            wanted = extent if dimension.extent is None else evaluate_extent(dimension.extent, symbols)
        except KeyError:  # a symbol that no dimension of an input is by itself
            continue
        if wanted != extent:
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, and must be {wanted}",
                why="the model ties it to a dimension of another input",
                hint="give inputs whose sizes agree, as they did when the model was captured",
            )


def _check_profiles(leaves: Sequence[tuple[str, Any]], expected: Sequence[Expected]) -> None:
    """Checks that one optimization profile takes all sizes."""
    sizes = [
        VaryingSize(f"dimension {axis} of input {place}", value.shape[axis], dimension.profiles)
        for (place, value), item in zip(leaves, expected, strict=True)
        if isinstance(item, TensorInput)
        for axis, dimension in enumerate(item.shape)
        if dimension.profiles
    ]
    if sizes:
        require_profile(sizes)


def _check_memory(leaves: Sequence[tuple[str, Any]], index: int) -> None:
    """Checks that no other input lies in the memory of one that the model writes to."""
    place, value = leaves[index]
    memory = value.untyped_storage()._cdata
    for other, (name, tensor) in enumerate(leaves):
        if other != index and isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata == memory:
            raise InputError(
                f"input {name} shares memory with input {place}, which the model writes to",
                why="the model was captured with inputs that do not",
                hint="clone one of them",
            )


def _leaves(value: Any, spec: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of the leaves, in the order of the captured program."""
    if spec.is_leaf():
        yield place, value
        return
    children = children_of(spec)
    if spec.type in (tuple, list):
        if not isinstance(value, (tuple, list)) or len(value) != len(children):
            raise misfit(place, value, f"{with_article(spec.type.__name__)} of {len(children)}")
        for index, child in enumerate(children):
            yield from _leaves(value[index], child, f"{place}[{index}]")
    elif spec.type is dict:
        names = list(spec.context)
        if not isinstance(value, Mapping) or set(value) != set(names):
            raise misfit(place, value, f"a dict of {', '.join(map(repr, names))}")
        for name, child in zip(names, children, strict=True):
            yield from _leaves(value[name], child, f"{place}[{name!r}]")
    else:
        leaves, found = pytree.tree_flatten(value)
        if found != spec:
            raise misfit(place, value, f"{with_article(spec.type.__name__)} like the one that it was captured with")
        yield from ((f"{place}, leaf {index},", leaf) for index, leaf in enumerate(leaves))


def _count(number: int) -> str:
    return "1 input" if number == 1 else f"{number} inputs"
