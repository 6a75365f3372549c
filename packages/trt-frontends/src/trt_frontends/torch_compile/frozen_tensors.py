"""Notices that tensors which engines were built from have changed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

import torch

_CANDIDATES: Final = 8
_WORDS: Final[dict[int, Any]] = {
    1: ctypes.c_uint8,
    2: ctypes.c_uint16,
    4: ctypes.c_uint32,
    8: ctypes.c_uint64,
    16: ctypes.c_uint64,
}


class FrozenTensors:
    """Tensors whose values are part of an engine, and how to tell that they are no longer the same.

    What tells is the tensor object, its version counter, which in-place operators raise, and the address of its
    memory, which assigning to `data` changes. Writing through `weight.data` changes none of them. Of each tensor on
    the CPU one element is compared as well, which finds what changes a tensor as a whole, such as a step of an
    optimizer. On a GPU looking at an element would wait for the device, so such a write is not seen there.

    Args:
        tensors: The tensors, in any order that `unchanged` is asked in.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._records = [_Record.of(tensor) for tensor in tensors]
        # the same by column: one comparison of lists for all tensors is what makes the check cheap
        self._tensors = [record.tensor for record in self._records]
        self._tracked = [record.tensor for record in self._records if record.version is not None]
        self._versions = [record.version for record in self._records if record.version is not None]
        self._addresses = [record.address for record in self._records]
        self._elements = [record.element for record in self._records if record.element is not None]
        self._words = [record.word for record in self._records if record.element is not None]

    def unchanged(self, current: Sequence[Any]) -> bool:
        """Whether what is given now is what was frozen, with the values that it had.

        Args:
            current: What stands in the place of each tensor now.
        """
        return (
            all(map(is_, current, self._tensors))
            and [tensor._version for tensor in self._tracked] == self._versions
            and list(map(torch.Tensor.data_ptr, self._tensors)) == self._addresses
            # only now: an element may be read only where its tensor has not moved
            and [element.value for element in self._elements] == self._words
        )

    def changed(self, current: Sequence[Any]) -> tuple[int, ...]:
        """Returns the positions of what is no longer what was frozen.

        Args:
            current: What stands in the place of each tensor now.
        """
        pairs = zip(current, self._records, strict=True)
        return tuple(position for position, (now, record) in enumerate(pairs) if record.differs(now))


@dataclass(frozen=True)
class _Record:
    """What is remembered of one tensor: `version` is None where none is kept, `element` where none can be read."""

    tensor: torch.Tensor
    version: int | None
    address: int
    element: Any
    word: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Record:
        version = None if tensor.is_inference() else tensor._version
        element = _telling_element(tensor)
        return cls(tensor, version, tensor.data_ptr(), element, 0 if element is None else element.value)

    def differs(self, now: Any) -> bool:
        if now is not self.tensor or (self.version is not None and self.tensor._version != self.version):
            return True
        if self.tensor.data_ptr() != self.address:
            return True
        return self.element is not None and self.element.value != self.word


def _telling_element(tensor: torch.Tensor) -> Any:
    """Returns an element of a tensor in memory, one that is not zero if there is one among a few."""
    word = _WORDS.get(tensor.element_size())
    count = tensor.numel()
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or word is None or not count:
        return None
    element = None
    for candidate in range(_CANDIDATES):
        rest, offset = count * (2 * candidate + 1) // (2 * _CANDIDATES), 0
        for extent, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            rest, index = divmod(rest, extent)
            offset += index * stride
        element = word.from_address(tensor.data_ptr() + offset * tensor.element_size())
        if element.value:
            break
    return element
