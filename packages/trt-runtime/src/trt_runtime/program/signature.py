"""Checks what a program is called with: number, nesting, types, shapes and plain values of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError
from trt_core.extents import evaluate_extent
from trt_core.misfits import misfit, require_fixed, with_article
from trt_core.profile_fit import VaryingSize, require_profile
from trt_runtime.program.fields import MAX_EXTENT
from trt_runtime.program.graph import Dimension, FixedInput, Leaf, NumberInput, Program, Signature, TensorInput, Value

_MOST_REMEMBERED: Final = 256


class InputReader:
    """Brings the arguments of calls into the flat order of a program's inputs, and refuses those that do not fit.

    Args:
        program: The program; it says how it is called.
        device: Where its tensors lie that are not on the CPU.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        self._signature = signature = program.signature
        self._profiles = program.profiles
        self._device = device
        self._names = signature.names
        self._places = [
            place for name, tree in zip(self._names, signature.structure, strict=True) for place in _places(tree, name)
        ]
        self.is_flat = all(type(tree) is Value for tree in signature.structure)
        self._all_tensors = self.is_flat and all(isinstance(leaf, TensorInput) for leaf in signature.leaves)
        self._accepted: set[Any] = set()
        self._homes = _homes(signature)

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the flat inputs of one call, which fit.

        Raises:
            InputError: The message names the input, what it is, and what it should be.
        """
        if self._all_tensors and not kwargs:
            key = self._key(args)
            if key is not None and key in self._accepted:
                return args
        else:
            key = None
        bound = self._bind(args, kwargs)
        flat: list[Any] = []
        for name, tree in zip(self._names, self._signature.structure, strict=True):
            _flatten(bound[name], tree, name, flat)
        self.check(flat)
        if key is not None:
            if len(self._accepted) >= _MOST_REMEMBERED:
                self._accepted.clear()
            self._accepted.add(key)
        return flat

    def refuse_gradients(self, flat: Sequence[Any]) -> None:
        """Refuses inputs that require gradients: a result without any would be silently wrong.

        Raises:
            InputError: One of them does.
        """
        for place, value in zip(self._places, flat, strict=True):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                raise InputError(
                    f"input {place} requires gradients, and a saved program computes none",
                    hint="call it under torch.no_grad() or torch.inference_mode(), or detach the input",
                )

    def symbols(self, flat: Sequence[Any]) -> dict[str, int]:
        """Values of the symbols in a call with these inputs."""
        return {
            name: flat[index] if axis is None else flat[index].shape[axis]
            for name, (index, axis) in self._homes.items()
        }

    def check(self, flat: Sequence[Any]) -> None:
        """Checks flat inputs.

        Raises:
            InputError: One of them does not fit.
        """
        for place, value, leaf in zip(self._places, flat, self._signature.leaves, strict=True):
            self._check_leaf(place, value, leaf)
        symbols = self.symbols(flat)
        for place, value, leaf in zip(self._places, flat, self._signature.leaves, strict=True):
            if isinstance(leaf, TensorInput):
                _check_relations(place, value, leaf, symbols)
        if self._profiles:
            self._check_profiles(symbols)

    def _check_profiles(self, symbols: Mapping[str, int]) -> None:
        """All sizes together fit one optimization profile."""
        sizes = []
        for name, (index, axis) in self._homes.items():
            what = (
                f"input {self._places[index]}" if axis is None else f"dimension {axis} of input {self._places[index]}"
            )
            bounds = tuple((profile[name][0], profile[name][2]) for profile in self._profiles)
            sizes.append(VaryingSize(what, symbols[name], bounds))
        if sizes and all(isinstance(item.size, int) for item in sizes):
            require_profile(sizes)

    @staticmethod
    def _key(args: tuple[Any, ...]) -> Any:
        """What decides whether flat tensors are accepted; None when something else is among them."""
        parts: list[Any] = []
        for value in args:
            if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
                return None
            parts += (value.shape, value.dtype, value.device)
        return tuple(parts)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns values by parameter name, all of them."""
        taken = f"it takes {', '.join(self._names) or 'no inputs'}"
        if len(args) > len(self._names):
            raise InputError(f"the program takes {_count(len(self._names))}, {len(args)} were given", hint=taken)
        bound = dict(zip(self._names, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise InputError(f"input {name!r} was given twice", hint="give it by position or by name, not both")
            if name not in self._names:
                raise InputError(f"the program takes no input {name!r}", hint=taken)
            bound[name] = value
        missing = [name for name in self._names if name not in bound]
        if missing:
            raise InputError(
                f"the program takes {_count(len(self._names))}, {len(bound)} were given",
                why=f"missing: {', '.join(missing)}",
                hint=f"{taken}, optional ones too",
            )
        return bound

    def _check_leaf(self, place: str, value: Any, leaf: Leaf) -> None:
        if isinstance(leaf, TensorInput):
            self._check_tensor(place, value, leaf)
        elif isinstance(leaf, FixedInput):
            require_fixed(place, value, leaf.value)
        elif not _is_number(value, leaf):
            raise InputError(
                f"input {place} is {with_article(type(value).__name__)}, not {with_article(leaf.kind.__name__)}"
            )

    def _check_tensor(self, place: str, value: Any, leaf: TensorInput) -> None:
        wanted = describe(leaf)
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"input {place} is {with_article(type(value).__name__)}, not a tensor", hint=f"give {wanted}"
            )
        if value.dtype is not leaf.dtype:
            name = dtype_name(leaf.dtype)
            raise InputError(
                f"input {place} has type {dtype_name(value.dtype)}, not {name}",
                hint=f"cast it with .to(torch.{name}), or compile the model for that type",
            )
        if value.dim() != len(leaf.shape):
            raise InputError(
                f"input {place} has rank {value.dim()}, not {len(leaf.shape)}",
                why=f"its shape is {tuple(value.shape)}",
                hint=f"give {wanted}",
            )
        for axis, (extent, dimension) in enumerate(zip(value.shape, leaf.shape, strict=True)):
            if isinstance(extent, int) and not dimension.low <= extent <= dimension.high:
                raise InputError(
                    f"dimension {axis} of input {place} is {extent}, not {_range(dimension)}",
                    why=f"its shape is {tuple(value.shape)}",
                    hint="give a tensor inside the range, or compile the model with an Input of a wider range",
                )
        self._check_device(place, value, leaf)

    def _check_device(self, place: str, value: torch.Tensor, leaf: TensorInput) -> None:
        wanted = self._device if leaf.device == self._device.type else torch.device(leaf.device)
        if value.device == wanted:
            return
        if value.device.type == "meta":
            raise InputError(
                f"input {place} is on the meta device, which holds no data to compute with",
                hint=f"give a tensor on {wanted}; shapes alone are inferred under torch's FakeTensorMode",
            )
        raise InputError(
            f"input {place} lies on {value.device}, the program runs on {wanted}",
            hint=f"move it with .to('{wanted}')",
        )


def describe(leaf: TensorInput) -> str:
    """What a tensor must be, in words: `a float32 tensor of shape (1 to 8, 3)`."""
    return f"a {dtype_name(leaf.dtype)} tensor of shape ({', '.join(_range(dimension) for dimension in leaf.shape)})"


def _homes(signature: Signature) -> dict[str, tuple[int, int | None]]:
    """Where the value of each symbol is read: number of the input, and axis; None where the input is the number."""
    found: dict[str, tuple[int, int | None]] = {}
    for index, leaf in enumerate(signature.leaves):
        if isinstance(leaf, NumberInput) and leaf.symbol is not None:
            found.setdefault(leaf.symbol, (index, None))
        elif isinstance(leaf, TensorInput):
            for axis, dimension in enumerate(leaf.shape):
                if isinstance(dimension.extent, str):
                    found.setdefault(dimension.extent, (index, axis))
    return found


def symbols_at_home(signature: Signature) -> frozenset[str]:
    """Symbols that an input shows by themselves, so that a call knows their values."""
    return frozenset(_homes(signature))


def _places(tree: Any, place: str) -> list[str]:
    """How messages call the leaves of a tree."""
    if isinstance(tree, (list, tuple)):
        return [found for index, item in enumerate(tree) for found in _places(item, f"{place}[{index}]")]
    if isinstance(tree, dict):
        return [found for key, item in tree.items() for found in _places(item, f"{place}[{key!r}]")]
    return [repr(place) if place.isidentifier() else place]


def _flatten(value: Any, tree: Any, place: str, flat: list[Any]) -> None:
    """Appends the leaves of a value that is nested like a tree."""
    if type(tree) is Value:
        flat.append(value)
    elif isinstance(tree, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(tree):
            raise misfit(place, value, f"{with_article(type(tree).__name__)} of {len(tree)}")
        for index, (item, child) in enumerate(zip(value, tree, strict=True)):
            _flatten(item, child, f"{place}[{index}]", flat)
    else:
        if not isinstance(value, Mapping) or set(value) != set(tree):
            raise misfit(place, value, f"a dict of {', '.join(map(repr, tree))}")
        for key, child in tree.items():
            _flatten(value[key], child, f"{place}[{key!r}]", flat)


def _check_relations(place: str, value: torch.Tensor, leaf: TensorInput, symbols: Mapping[str, int]) -> None:
    """Checks extents that must equal, or follow from, those of other inputs."""
    for axis, (extent, dimension) in enumerate(zip(value.shape, leaf.shape, strict=True)):
        if dimension.extent is None or isinstance(dimension.extent, int):
            continue
        try:
            wanted = evaluate_extent(dimension.extent, symbols)
        except (ValueError, ArithmeticError) as error:
            raise InputError(f"dimension {axis} of input {place} cannot be checked", why=str(error)) from error
        if isinstance(extent, int) and isinstance(wanted, int) and wanted != extent:
            known = ", ".join(f"{name} = {number}" for name, number in symbols.items())
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, and must be {wanted}",
                why=f"the model ties it to a dimension of another input: {known}",
                hint="give inputs whose sizes agree, as they did when the model was compiled",
            )


def _is_number(value: Any, leaf: NumberInput) -> bool:
    symbolic = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}[leaf.kind]
    return type(value) is leaf.kind or isinstance(value, symbolic)


def _range(dimension: Dimension) -> str:
    if dimension.low == dimension.high:
        return str(dimension.low)
    if dimension.high >= MAX_EXTENT:
        return f"at least {dimension.low}"
    return f"{dimension.low} to {dimension.high}"


def _count(number: int) -> str:
    return "1 input" if number == 1 else f"{number} inputs"
