"""Memory that the tensors of a call may not share: a captured program reads each of them as if nothing wrote to it.

PyTorch makes a program functional before it is lowered. Eager code sees what it has written to a tensor in every other
one that lies in the same memory; the program does not, so where one of two is written to they must lie apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from trt_core.attributes import holder_of
from trt_core.errors import InputError
from trt_core.nesting import reach_of


class HeldTensor:
    """A tensor that a module holds, found at each call where it is then: tools that trace put others there for a while.

    Args:
        attributes: What holds it, by name.
        name: Its name there.
        path: How messages call it.
        is_written: Whether the program writes to it.
    """

    __slots__ = ("_attributes", "_name", "is_written", "path")

    def __init__(self, attributes: Mapping[str, Any], name: str, path: str, is_written: bool) -> None:
        self._attributes, self._name = attributes, name
        self.path, self.is_written = path, is_written

    @classmethod
    def of(cls, owner: nn.Module, name: str, path: str, is_written: bool) -> HeldTensor:
        """Returns a tensor that is an attribute of a module: a parameter, a buffer, or neither."""
        return cls(holder_of(owner, name), name, path, is_written)

    def tensor(self) -> torch.Tensor:
        """The tensor that is there now."""
        found: torch.Tensor = self._attributes[self._name]
        return found

    def move(self, device: torch.device) -> None:
        """Moves the tensor for all who hold it: parameters stay the objects that they are."""
        held = self.tensor()
        held.data = held.data.to(device)


class HeldMemory:
    """Keeps the inputs of calls apart from the tensors that a program holds, where it writes to one of the two.

    Args:
        places: How messages call the inputs.
        written: Numbers of the inputs that the program writes to.
        held: The tensors that the program holds.
    """

    def __init__(self, places: Sequence[str], written: Collection[int], held: Iterable[HeldTensor]) -> None:
        self._places = places
        self._written = frozenset(written)
        self._held = tuple(item for item in held if item.is_written or written)
        self._taken = _Places([], [])  # those at the last call; tensors that stay where they are keep their sizes

    def __bool__(self) -> bool:
        """Whether there is anything that an input could be too near to."""
        return bool(self._held)

    def require_apart(self, flat: Sequence[Any]) -> None:
        """Checks the inputs of one call.

        Args:
            flat: The inputs, which fit by themselves.

        Raises:
            InputError: One of them shares memory with a tensor that the program holds, and writes to one of them.
        """
        starts = [_address_of(held.tensor()) for held in self._held]
        places = self._taken
        if places.starts != starts:
            places = self._taken = _Places(starts, [addresses_of(held.tensor())[1] for held in self._held])
        for value in flat:
            if isinstance(value, torch.Tensor) and places.are_reached_by(*addresses_of(value)):
                self._require_apart(flat)

    def _require_apart(self, flat: Sequence[Any]) -> None:
        """The same, where an input and a tensor of the program do share memory: whether one of them is written to."""
        for index, value in enumerate(flat):
            for held in self._held if isinstance(value, torch.Tensor) else ():
                if (held.is_written or index in self._written) and _overlap(value, held.tensor()):
                    raise _shared(self._places[index], held)


class _Places:
    """Places in memory, to be asked whether another one shares an address with one of them.

    Args:
        starts: The address that each begins at.
        stops: The address after each.
    """

    __slots__ = ("_furthest", "_sorted", "starts")

    def __init__(self, starts: list[int], stops: list[int]) -> None:
        self.starts = starts
        pairs = sorted(zip(starts, stops, strict=True))
        self._sorted = [start for start, _ in pairs]
        self._furthest = list(accumulate((stop for _, stop in pairs), max))

    @property
    def are_apart(self) -> bool:
        """Whether none begins before all that begin before it have ended."""
        return all(start >= stop for start, stop in zip(self._sorted[1:], self._furthest, strict=False))

    def are_reached_by(self, start: int, stop: int) -> bool:
        """Whether one of them shares an address with the place from `start` to before `stop`."""
        before = bisect_left(self._sorted, stop)
        return before > 0 and self._furthest[before - 1] > start


def _shared(place: str, held: HeldTensor) -> InputError:
    if held.is_written:
        return InputError(
            f"input {place} shares memory with the buffer {held.path} of the model, which the model writes to",
            why="the model was captured with inputs that do not, and reads them as they are when it is called",
            hint="give it as .clone()",
        )
    return InputError(
        f"input {place}, which the model writes to, shares memory with the tensor {held.path} of the model",
        why="the model was captured with inputs that do not, and reads its tensors as they are when it is called",
        hint="give it as .clone(), and take what was written from there",
    )


def require_own_memory(places: Sequence[str], flat: Sequence[Any], written: Sequence[int]) -> None:
    """Checks that no other input lies in the memory of one that the model writes to.

    Parts of one memory that follow each other, such as the caches of several layers, are apart.

    Args:
        places: How messages call the inputs.
        flat: The inputs.
        written: Numbers of those that are written to.

    Raises:
        InputError: Another one does.
    """
    spans = {index: addresses_of(value) for index, value in enumerate(flat) if isinstance(value, torch.Tensor)}
    taken = _Places(*([spans[index][end] for index in written] for end in (0, 1)))
    numbers = frozenset(written)
    others = (span for index, span in spans.items() if index not in numbers)
    if taken.are_apart and not any(taken.are_reached_by(*span) for span in others):
        return
    for index in written:
        _require_apart(places, flat, index)


def _require_apart(places: Sequence[str], flat: Sequence[Any], index: int) -> None:
    for other, value in enumerate(flat):
        if other == index or not isinstance(value, torch.Tensor):
            continue
        if _overlap(flat[index], value):
            raise InputError(
                f"input {places[other]} shares memory with input {places[index]}, which the model writes to",
                why="the model was captured with inputs that do not",
                hint="clone one of them",
            )


def require_own_places(place: str, value: torch.Tensor) -> None:
    """Checks that no two elements of an input that the model writes to lie in one place of memory.

    Args:
        place: How messages call the input.
        value: The input.

    Raises:
        InputError: Two of them do, as in an expanded tensor.
    """
    if not value.is_contiguous() and _shares_places(value):
        raise InputError(
            f"several elements of input {place} lie in one place of memory, and the model writes to it",
            why=f"its shape is {tuple(value.shape)} and its strides are {value.stride()}",
            hint="give it as .contiguous() or .clone(), and take what was written from there",
        )


def require_strides(place: str, value: torch.Tensor, strides: Sequence[int | None]) -> None:
    """Checks that an input lies in memory as the one did that the model was captured with.

    Args:
        place: How messages call the input.
        value: The input.
        strides: Those that it must have, but for axes of one element; None for any.

    Raises:
        InputError: It has others.
    """
    axes = zip(value.shape, value.stride(), strides, strict=True)
    if not value.numel() or all(extent == 1 or wanted in (None, stride) for extent, stride, wanted in axes):
        return
    raise InputError(
        f"input {place} lies otherwise in memory than the one that the model was compiled with",
        why="the model writes to what contiguous(), reshape() or the like give for it, itself or a copy, as it lies: "
        f"its shape is {tuple(value.shape)}, its strides are {value.stride()}, not {tuple(strides)}",
        hint="give it as .contiguous() if these are dense, or compile the model with an input that lies like this one",
    )


def addresses_of(value: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte of a tensor, and the one after the last; the same for one without elements."""
    start = _address_of(value)
    if value.is_contiguous():
        return start, start + value.nbytes
    if not value.numel():
        return start, start
    return start, start + reach_of(value.shape, value.stride()) * value.element_size()


def _address_of(value: torch.Tensor) -> int:
    """Where a tensor begins; one without data, of those who trace, where no tensor of another storage does."""
    try:
        address: int = value.data_ptr()
    except RuntimeError:
        storage: Any = value.untyped_storage()._cdata
        address = (storage << 64) + value.storage_offset() * value.element_size()
    return address


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    (start, stop), (begin, end) = addresses_of(one), addresses_of(other)
    return max(start, begin) < min(stop, end)


def _shares_places(value: torch.Tensor) -> bool:
    """Whether elements share places: exact, and cheap where each stride steps over all that is within."""
    axes = sorted((stride, extent) for stride, extent in zip(value.stride(), value.shape, strict=True) if extent != 1)
    last = 0  # the furthest place that smaller strides reach
    nested = True
    for stride, extent in axes:
        nested = nested and stride > last
        last += stride * (extent - 1)
    if nested or not value.numel():
        return False
    places = torch.arange(last + 1, device="cpu").as_strided(value.shape, value.stride())
    return len(places.unique()) < value.numel()
