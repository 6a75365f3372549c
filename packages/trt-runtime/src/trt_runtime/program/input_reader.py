"""Checks what a compiled or loaded model is called with, and brings its inputs into the flat order of the program.

Engines check their own inputs. This stands before all of them, so that a mistake is found also where the first step is
PyTorch's, is told in terms of the model's own inputs, and values that capturing has fixed are not silently ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.errors import InputError
from trt_core.internals import pytree
from trt_core.remembered import Remembered
from trt_core.sizes.conditions import Home, Homes, home_of, require_conditions, write_extent
from trt_core.sizes.expressions import Extent, evaluate_extent, format_multiple, solve_extent
from trt_core.sizes.profiles import VaryingSize, require_profile
from trt_core.wording import counted, kind_of, with_article
from trt_runtime.input_check import require_tensor
from trt_runtime.program.graph import FixedInput, ForeignTree, Leaf, NumberInput, Program, Signature, TensorInput
from trt_runtime.program.input_memory import (
    HeldMemory,
    HeldTensor,
    require_own_memory,
    require_own_places,
    require_strides,
)
from trt_runtime.program.literals import Value

Symbols = Mapping[str, tuple[int, int, int]]
"""(min, opt, max) of every symbol."""

_TENSORS: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN: Final = frozenset({int, float, bool, str, type(None)})


class InputReader:
    """Brings the arguments of calls into the flat order of a program's inputs, and refuses those that do not fit.

    Args:
        signature: How the program is called.
        profiles: Ranges of the symbols in each optimization profile, where there are several.
        device: Where tensors lie that are not on the CPU; None for any device of their kind.
        written: Inputs that the program writes to. Another input must not share their memory, and each of their
            elements has a place of its own in it.

    Attributes:
        signature: How the program is called.
        takes_tensors_as_they_come: Whether every input is a tensor that may be given by position.
        is_in_engine: Whether, moreover, an engine that takes the inputs as they come checks all that this does.
    """

    def __init__(
        self,
        signature: Signature,
        profiles: Sequence[Symbols] = (),
        device: torch.device | None = None,
        written: Collection[int] = (),
    ) -> None:
        self.signature = signature
        self._profiles = tuple(profiles)
        self._device = device
        self._written = tuple(sorted(written))
        self._strides = {
            index: leaf.strides
            for index, leaf in enumerate(signature.leaves)
            if isinstance(leaf, TensorInput) and leaf.strides is not None
        }
        self._names = signature.names
        self._places = places_of(signature)
        self._homes = homes_of(signature)
        self._is_flat = all(type(tree) is Value for tree in signature.structure)
        self._arity = len(self._names) if signature.positional == len(self._names) else -1
        self.takes_tensors_as_they_come = (
            self._is_flat
            and self._arity >= 0
            and not (self._written or self._strides)
            and all(isinstance(leaf, TensorInput) for leaf in signature.leaves)
        )
        self.is_in_engine = (
            self.takes_tensors_as_they_come and not signature.conditions and not _has_expression(signature)
        )
        self._accepted: Remembered[Any, None] = Remembered()

    @classmethod
    def of(cls, program: Program, device: torch.device) -> InputReader:
        """Returns the reader of a program that runs on a device."""
        written = [number for number in program.written if number < program.first_tensor]
        return cls(program.signature, program.profiles, device, written)

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the flat inputs of one call, which fit.

        Raises:
            InputError: The message names the input, what it is, and what it should be.
        """
        flat = self.flatten(args, kwargs)
        key = _key(flat)
        if key is None or key not in self._accepted:
            self.check(flat)
            if key is not None:
                self._accepted[key] = None
        if self._written:
            require_own_memory(self._places, flat, self._written)
        for index in self._written:
            require_own_places(self._places[index], flat[index])
        symbols = self.symbols(flat) if self._strides else {}
        for index, strides in self._strides.items():
            place = self._places[index]
            wanted = [
                None if stride is None else _number(stride, symbols, f"stride {axis} of input {place}")
                for axis, stride in enumerate(strides)
            ]
            require_strides(place, flat[index], wanted)
        return flat

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the flat inputs of one call, whatever they are.

        Raises:
            InputError: There are others than the program takes, or they are nested otherwise.
        """
        if self._is_flat and not kwargs and len(args) == self._arity:
            return args
        flat: list[Any] = []
        bound = self._bind(args, kwargs)
        for name, tree in zip(self._names, self.signature.structure, strict=True):
            _flatten(bound[name], tree, name, flat)
        return flat

    def memory_of(self, held: Iterable[HeldTensor]) -> HeldMemory | None:
        """Returns what keeps inputs apart from tensors that the program holds; None where it writes to neither."""
        return HeldMemory(self._places, self._written, held) or None

    def refuse_gradients(self, flat: Sequence[Any]) -> None:
        """Refuses inputs that require gradients: a result without any would be silently wrong.

        Args:
            flat: What `read` returned.

        Raises:
            InputError: One of them does.
        """
        for place, value in zip(self._places, flat, strict=True):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                raise InputError(
                    f"input {place} requires gradients, and engines compute none",
                    hint="call the model under torch.no_grad() or torch.inference_mode(), or detach the input",
                )

    def symbols(self, flat: Sequence[Any]) -> dict[str, int]:
        """Values of the symbols in a call with these inputs."""
        return {name: home.value(flat) for name, home in self._homes.items()}

    def check(self, flat: Sequence[Any]) -> None:
        """Checks flat inputs, apart from the memory that they share.

        Raises:
            InputError: One of them does not fit.
        """
        leaves = self.signature.leaves
        for place, value, leaf in zip(self._places, flat, leaves, strict=True):
            require_leaf(place, value, leaf, self._device)
        symbols = self.symbols(flat)
        for place, value, leaf in zip(self._places, flat, leaves, strict=True):
            if isinstance(leaf, TensorInput):
                require_relations(place, value, leaf, symbols, self._homes)
        require_conditions(self.signature.conditions, symbols, self._homes)
        if self._profiles:
            self._require_profile(symbols)

    def __deepcopy__(self, memo: dict[int, Any]) -> InputReader:
        return self  # it never changes, but for what it remembers

    def _require_profile(self, symbols: Mapping[str, int]) -> None:
        """All sizes together fit one optimization profile."""
        sizes = []
        for name, home in self._homes.items():
            ranges = [profile[name] for profile in self._profiles]
            bounds = tuple((_size(home, low), _size(home, high)) for low, _, high in ranges)
            sizes.append(VaryingSize(str(home), _size(home, symbols[name]), bounds))
        if sizes and all(isinstance(item.size, int) for item in sizes):
            require_profile(sizes)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns values by parameter name, all of them."""
        taken = f"it was compiled for {', '.join(self._names) or 'no inputs'}"
        if len(args) > len(self._names):
            raise InputError(
                f"the model takes {counted(len(self._names), 'input')}, {len(args)} were given",
                hint=f"{taken}; compile it again to call it with others",
            )
        if len(args) > self.signature.positional:
            name = self._names[self.signature.positional]
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
                    f"the model takes no input {name!r}", hint=f"{taken}; compile it with that input to call it with it"
                )
            bound[name] = value
        missing = [name for name in self._names if name not in bound]
        if missing:
            raise InputError(
                f"the model takes {counted(len(self._names), 'input')}, {len(bound)} were given",
                why=f"missing: {', '.join(missing)}",
                hint=f"{taken}, optional ones too",
            )
        return bound


def homes_of(signature: Signature) -> dict[str, Home]:
    """Where a call shows the values of symbols: as a number, as a dimension, or as one that follows from it alone."""
    places = places_of(signature)
    shown: list[tuple[str, Home]] = []
    for index, (place, leaf) in enumerate(zip(places, signature.leaves, strict=True)):
        if isinstance(leaf, NumberInput) and leaf.symbol is not None:
            shown.append((leaf.symbol, Home(place, index, None)))
        elif isinstance(leaf, TensorInput):
            found = (home_of(dimension.extent, place, index, axis) for axis, dimension in enumerate(leaf.shape))
            shown += [item for item in found if item is not None]
    homes: dict[str, Home] = {}
    # a dimension that is the symbol tells it in every case, one that is a multiple of it only where it divides
    for name, home in sorted(shown, key=lambda item: (item[1].factor, item[1].offset) != (1, 0)):
        homes.setdefault(name, home)
    return homes


def places_of(signature: Signature) -> list[str]:
    """How messages call each input: `x`, `state['a']`."""
    return [
        place for name, tree in zip(signature.names, signature.structure, strict=True) for place in _places(tree, name)
    ]


def _key(flat: Sequence[Any]) -> Any:
    """What decides whether flat inputs fit; None when something else than plain tensors and values is among them."""
    parts: list[Any] = []
    try:
        for value in flat:
            kind = type(value)
            if kind in _TENSORS:
                parts += (value.shape, value.dtype, value.device, value.layout)
            elif kind in _PLAIN:
                parts += (kind, value)
            else:
                return None
        hash(key := tuple(parts))
    except (TypeError, RuntimeError):  # symbolic shapes, and nested tensors, which have none
        return None
    return key


def _has_expression(signature: Signature) -> bool:
    """Whether sizes of an input must be multiples of something: engines check their range only."""
    return any(
        isinstance(dimension.extent, list)
        for leaf in signature.leaves
        if isinstance(leaf, TensorInput)
        for dimension in leaf.shape
    )


def _places(tree: Any, place: str) -> list[str]:
    if isinstance(tree, (list, tuple)):
        return [found for index, item in enumerate(tree) for found in _places(item, f"{place}[{index}]")]
    if isinstance(tree, dict):
        return [found for key, item in tree.items() for found in _places(item, f"{place}[{key!r}]")]
    if isinstance(tree, ForeignTree):
        return [f"{place}, leaf {index}," for index in range(len(tree.values))]
    return [place]


def _flatten(value: Any, tree: Any, place: str, flat: list[Any]) -> None:
    """Appends the leaves of a value that is nested like a tree."""
    if type(tree) is Value:
        flat.append(value)
    elif isinstance(tree, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(tree):
            raise wrong_kind(place, value, f"{with_article(type(tree).__name__)} of {len(tree)}")
        for index, (item, child) in enumerate(zip(value, tree, strict=True)):
            _flatten(item, child, f"{place}[{index}]", flat)
    elif isinstance(tree, dict):
        if not isinstance(value, Mapping) or set(value) != set(tree):
            raise wrong_kind(place, value, f"a dict of {', '.join(map(repr, tree))}")
        for key, child in tree.items():
            _flatten(value[key], child, f"{place}[{key!r}]", flat)
    else:
        leaves, found = pytree.tree_flatten(value)
        if found != tree.spec:
            wanted = with_article(tree.spec.type.__name__)
            raise wrong_kind(place, value, f"{wanted} like the one that it was captured with")
        flat += leaves


def _size(home: Home, value: int) -> int:
    return home.factor * value + home.offset


_SYMBOLIC = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}


def require_leaf(place: str, value: Any, leaf: Leaf, device: torch.device | None) -> None:
    """Checks one input by itself.

    Args:
        place: How messages call it.
        value: What was given.
        leaf: What it must be.
        device: Where tensors must lie that the leaf says are not on the CPU; None for any device of that kind.

    Raises:
        InputError: It is something else.
    """
    if isinstance(leaf, TensorInput):
        bounds = [(dimension.low, dimension.high) for dimension in leaf.shape]
        require_tensor(f"input {place}", value, leaf.dtype, bounds, "the model was compiled for")
        _require_multiples(place, value, leaf)
        _require_device(place, value, leaf, device)
    elif isinstance(leaf, FixedInput):
        require_fixed(place, value, leaf.value)
    elif not (type(value) is leaf.kind or isinstance(value, _SYMBOLIC[leaf.kind])):
        raise InputError(
            f"input {place} is {kind_of(value)}, the model was compiled for {with_article(leaf.kind.__name__)}",
            hint=f"give {with_article(leaf.kind.__name__)}, of any value",
        )


def require_relations(
    place: str, value: torch.Tensor, leaf: TensorInput, symbols: Mapping[str, int], homes: Homes
) -> None:
    """Checks sizes that follow from those of other dimensions.

    Args:
        place: How messages call the input.
        value: A tensor that fits by itself.
        leaf: What it must be.
        symbols: The sizes of the call.
        homes: Where the call shows them.

    Raises:
        InputError: A size does not follow.
    """
    for axis, (extent, dimension) in enumerate(zip(value.shape, leaf.shape, strict=True)):
        if dimension.extent is None or isinstance(dimension.extent, int):
            continue
        wanted = _number(dimension.extent, symbols, f"dimension {axis} of input {place}")
        if isinstance(extent, int) and isinstance(wanted, int) and wanted != extent:
            rule = write_extent(dimension.extent, homes)
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, and must be {wanted}",
                why=f"the model ties it to a dimension of another input: {place}.shape[{axis}] == {rule}",
                hint="give inputs whose sizes agree, as they did when the model was captured",
            )


def _number(extent: Extent, symbols: Mapping[str, int], what: str) -> Any:
    """The number that a size or stride of a call must be, and what is symbolic where sizes are."""
    try:
        return evaluate_extent(extent, symbols)
    except (ValueError, ArithmeticError) as error:
        raise InputError(
            f"{what} cannot be checked",
            why=str(error),
            hint="give inputs whose sizes agree, as they did when the model was captured",
        ) from error


def _require_multiples(place: str, value: torch.Tensor, leaf: TensorInput) -> None:
    """Checks each size by itself; symbolic ones are those of whoever traces."""
    for axis, (extent, dimension) in enumerate(zip(value.shape, leaf.shape, strict=True)):
        if not isinstance(extent, int):
            continue
        solved = None if dimension.low == dimension.high else solve_extent(dimension.extent, extent)
        if solved is not None and solved[1] is None:
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, and must be {format_multiple(dimension.extent)}",
                why="the model was captured for such sizes",
                hint="pad the input to such a size, or capture the model with a dimension that takes every size",
            )


def _require_device(place: str, value: torch.Tensor, leaf: TensorInput, device: torch.device | None) -> None:
    if device is None or leaf.device != device.type:
        wanted, fits = torch.device(leaf.device), value.device.type == leaf.device
    else:
        wanted, fits = device, value.device == device
    if fits:
        return
    if value.device.type == "meta":
        raise InputError(
            f"input {place} is on the meta device, which holds no data to compute with",
            hint=f"give a tensor on {wanted}; shapes alone are inferred under torch's FakeTensorMode",
        )
    raise InputError(
        f"input {place} lies on {value.device}, the model was compiled for {wanted}",
        hint=f"move it with .to('{wanted}'), or compile the model for {value.device.type}",
    )


def require_fixed(place: str, value: Any, known: Any) -> None:
    """Checks an input whose value is part of the compiled model.

    Args:
        place: Which input it is.
        value: What was given.
        known: What the model was captured with: a number, a string, None, ...

    Raises:
        InputError: Another value was given, or one of another type.
    """
    if type(value) is type(known) and (value == known or (value != value and known != known)):
        return
    raise InputError(
        f"input {place} is {value!r:.60}, the model was compiled for {known!r:.60}",
        why="capturing the model has fixed the values of inputs that are not tensors",
        hint="give that value, compile once for each value, or make it a tensor",
    )


def wrong_kind(place: str, value: Any, wanted: str) -> InputError:
    """Returns the error for an input that is nested otherwise.

    Args:
        place: Which input it is.
        value: What was given.
        wanted: What it should be, such as `"a tuple of 2"`.
    """
    given = kind_of(value)
    if isinstance(value, Mapping):
        given += f" of {', '.join(map(repr, value))}"
    elif isinstance(value, (tuple, list)):
        given += f" of {len(value)}"
    return InputError(
        f"input {place} is {given}, the model was compiled for {wanted}",
        hint="nest the inputs as they were when the model was captured",
    )
