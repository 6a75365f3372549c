"""Notices that tensors which engines were built from have changed."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch

_CANDIDATES: Final = 8

_WHOLE_BYTES: Final = 1024
"""Tensors up to this size are compared as a whole: that takes a quarter of a microsecond."""


class FrozenTensors:
    """Tensors whose values are part of an engine, and how to tell that they are no longer the same.

    What tells is the tensor object, its version counter, which in-place operators raise, and the address of its
    memory, which assigning to `data` changes. Writing through `weight.data` changes none of them. Of each tensor on
    the CPU memory is compared as well: all of it where it is small, and one element of others, which finds what changes
    a tensor as a whole, such as a step of an optimizer. On a GPU looking at memory would wait for the device, so such a
    write is not seen there.

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
        pieces = list(map(_telling_piece, tensors))
        self._sampled_at = [at for at, piece in enumerate(pieces) if piece is not None]
        self._pieces = [pieces[at] for at in self._sampled_at]
        self._contents = [piece.raw for piece in self._pieces]

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
            # only now: memory may be read only where its tensor has not moved
            and [piece.raw for piece in self._pieces] == self._contents
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
        sampled = zip(self._sampled_at, self._pieces, self._contents, strict=True)
        found.update(at for at, piece, content in sampled if at not in found and piece.raw != content)
        return tuple(sorted(found))

    def _note_death(self, _: weakref.ref[torch.UntypedStorage]) -> None:
        self.are_alive = False


def _telling_piece(tensor: torch.Tensor) -> Any:
    """Returns the memory of a small tensor; of another one an element, one that is not zero if one of a few is not."""
    size, count = tensor.element_size(), tensor.numel()
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not count:
        return None
    if size * count <= _WHOLE_BYTES and torch.ops.aten.is_non_overlapping_and_dense.default(tensor):
        return (ctypes.c_char * (size * count)).from_address(tensor.data_ptr())
    element = None
    for candidate in range(_CANDIDATES):
        rest, offset = count * (2 * candidate + 1) // (2 * _CANDIDATES), 0
        for extent, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            rest, index = divmod(rest, extent)
            offset += index * stride
        element = (ctypes.c_char * size).from_address(tensor.data_ptr() + offset * size)
        if any(element.raw):
            break
    return element
