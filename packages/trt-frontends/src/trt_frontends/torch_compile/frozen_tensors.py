"""Notices that tensors which engines were built from have changed."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
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

    The tensors are not kept alive. Their memory is held weakly, so that no other tensor is taken for one of them, and
    not they themselves: `torch.utils.swap_tensors` refuses tensors that anybody holds weakly.

    Args:
        tensors: The tensors.

    Attributes:
        are_alive: Whether the memory of all of them still exists.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.are_alive = True
        self._memory = [weakref.ref(tensor.untyped_storage(), self._note_death) for tensor in tensors]
        self._ids = list(map(id, tensors))
        self._tracked_at = [at for at, tensor in enumerate(tensors) if not tensor.is_inference()]
        self._versions = [tensors[at]._version for at in self._tracked_at]
        self._addresses = list(map(torch.Tensor.data_ptr, tensors))
        elements = list(map(_telling_element, tensors))
        self._sampled_at = [at for at, element in enumerate(elements) if element is not None]
        self._elements = [elements[at] for at in self._sampled_at]
        self._words = [element.value for element in self._elements]

    def unchanged(self, current: Sequence[Any]) -> bool:
        """Whether what is given now is what was frozen, with the values that it had.

        Args:
            current: What stands in the place of each tensor now.
        """
        return (
            self.are_alive
            and list(map(id, current)) == self._ids
            and [current[at]._version for at in self._tracked_at] == self._versions
            and list(map(torch.Tensor.data_ptr, current)) == self._addresses
            # only now: an element may be read only where its tensor has not moved
            and [element.value for element in self._elements] == self._words
        )

    def changed(self, current: Sequence[Any]) -> tuple[int, ...]:
        """Returns the positions of what is no longer what was frozen.

        Args:
            current: What stands in the place of each tensor now.
        """
        found = {at for at, now in enumerate(current) if id(now) != self._ids[at] or self._memory[at]() is None}
        pairs = zip(self._tracked_at, self._versions, strict=True)
        found.update(at for at, version in pairs if at not in found and current[at]._version != version)
        found.update(
            at for at, address in enumerate(self._addresses) if at not in found and current[at].data_ptr() != address
        )
        sampled = zip(self._sampled_at, self._elements, self._words, strict=True)
        found.update(at for at, element, word in sampled if at not in found and element.value != word)
        return tuple(sorted(found))

    def _note_death(self, _: weakref.ref[torch.UntypedStorage]) -> None:
        self.are_alive = False


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
