"""The weights of a loaded engine: which tensor stands for each use, and what is still missing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from trt_portable.dtypes import storage_bytes, storage_dtype
from trt_portable.errors import PortableError
from trt_portable.execution.loaded_network import FLAT, plain_layout
from trt_portable.plan.engine_info import WeightSlot

_TENSOR_CORE_TYPES: Final = (torch.float16, torch.bfloat16)

if TYPE_CHECKING:
    from trt_portable.execution.program import Program
    from trt_portable.network.layer import ILayer


class WeightStore:
    """Binds weights to layers, and replaces them when the engine is refitted.

    A use of weights is a layer's role. Uses share a tensor until a refit gives one of them its own.

    Args:
        slots: Every use of weights.
        layers: The engine's layers, by the index that a slot names.
        tensors: A flat tensor per use, on the engine's device; None where it is missing.
    """

    def __init__(
        self, slots: Sequence[WeightSlot], layers: Sequence[ILayer], tensors: Sequence[torch.Tensor | None]
    ) -> None:
        self.slots = tuple(slots)
        self.by_role: dict[tuple[str, str], list[int]] = {}
        self.by_name: dict[str, list[int]] = {}
        self._layers = layers
        self._tensors = list(tensors)
        for index, slot in enumerate(self.slots):
            self.by_role.setdefault((slot.layer_name, slot.role), []).append(index)
            if slot.name is not None:
                self.by_name.setdefault(slot.name, []).append(index)
        _check_uses(self.slots, layers, self._tensors)
        self._around = _uses_around(self.slots, layers)
        self.missing = {index for index, tensor in enumerate(self._tensors) if tensor is None}
        for index, tensor in enumerate(self._tensors):
            if tensor is not None:
                self.bind(index, tensor)

    def tensor(self, index: int) -> torch.Tensor | None:
        """The tensor of a use, None while it is missing."""
        return self._tensors[index]

    def replace(self, tensors: Mapping[int, torch.Tensor], programs: Iterable[Program]) -> None:
        """Gives uses new tensors, and programs the constants that changed; runs that have begun keep the old ones.

        What a loop or a conditional uses follows the layer inside it.
        """
        tensors = {use: tensor for index, tensor in tensors.items() for use in (*self._around.get(index, ()), index)}
        was_complete = not self.missing
        for index, tensor in tensors.items():
            self._tensors[index] = tensor
            self.missing.discard(index)
            self.bind(index, tensor)
        if not self.missing:
            changed = [self._layers[layer] for layer in {self.slots[index].layer for index in tensors}]
            for program in programs:
                program.load_constants(changed if was_complete else None)  # else none have been loaded so far

    def bind(self, index: int, tensor: torch.Tensor) -> None:
        """Makes the layer of a use read a tensor: that of the use, or a copy of it that lies elsewhere."""
        slot = self.slots[index]
        layer = self._layers[slot.layer]
        layer._bound = {**layer._bound, slot.role: _laid_out(layer, slot, tensor)}

    def laid_out(self, index: int) -> torch.Tensor:
        """The tensor of a use as its layer reads it."""
        slot = self.slots[index]
        tensor: torch.Tensor = self._layers[slot.layer]._bound[slot.role]
        return tensor

    def snapshot(self) -> tuple[tuple[WeightSlot, ...], dict[str, torch.Tensor]]:
        """Slots and tensors as a plan stores them: equal tensors once, under ids given anew."""
        ids: dict[tuple[int, torch.dtype, int], str] = {}
        tensors: dict[str, torch.Tensor] = {}
        slots = []
        for slot, tensor in zip(self.slots, self._tensors, strict=True):
            if tensor is None:
                slots.append(slot)
                continue
            key = (tensor.data_ptr(), tensor.dtype, tensor.numel())
            name = ids.setdefault(key, f"w{len(ids)}")
            tensors[name] = tensor
            slots.append(replace(slot, weights=name))
        return tuple(slots), tensors

    def bytes_of(self, ids: Container[str] | None = None) -> int:
        """Size of weights, each once: of all, or of those with the given ids in the plan."""
        sizes = {
            slot.weights: storage_bytes(slot.dtype, slot.count)
            for slot in self.slots
            if ids is None or slot.weights in ids
        }
        return sum(sizes.values())


def _laid_out(layer: ILayer, slot: WeightSlot, tensor: torch.Tensor) -> torch.Tensor:
    """Weights in the layout that the device's kernels read fastest.

    Tensor cores take convolutions with channels last; from other layouts cuDNN copies operands and result of
    each convolution. A kernel with channels last makes PyTorch keep activations that way from there on.
    """
    if not tensor.is_cuda or tensor.dtype not in _TENSOR_CORE_TYPES:
        return tensor
    layout = plain_layout(layer, slot)
    return tensor if layout is FLAT else layout.of(tensor)


def _check_uses(slots: Sequence[WeightSlot], layers: Sequence[ILayer], tensors: Sequence[torch.Tensor | None]) -> None:
    """Every role of every layer is one use of weights, of the type and size that the slot says.

    Raises:
        PortableError: The plan says otherwise, and a layer would compute with weights that nobody gave it.
    """
    roles = [(index, role) for index, layer in enumerate(layers) for role in layer._weight_keys]
    if sorted((slot.layer, slot.role) for slot in slots) != sorted(roles):
        raise PortableError("the table of weights does not name every use of weights, and nothing else")
    for slot, tensor in zip(slots, tensors, strict=True):
        if tensor is not None and not accepts(slot, tensor.reshape(-1)):
            raise PortableError(
                f"weights {slot.weights!r} of layer {slot.layer_name!r} have {tensor.numel()} elements of "
                f"{tensor.dtype}, not {slot.count} of {slot.dtype.name}"
            )


def _uses_around(slots: Sequence[WeightSlot], layers: Sequence[ILayer]) -> dict[int, list[int]]:
    """The uses by loops and conditionals of what a layer inside them uses, the outermost first, by the layer's use."""
    numbers = {id(layer): number for number, layer in enumerate(layers)}
    uses = {(slot.layer, slot.role): index for index, slot in enumerate(slots)}
    around: dict[int, list[int]] = {}
    for index, slot in enumerate(slots):
        layer, role = layers[slot.layer], slot.role
        while not is_of_layer(role):
            at, _, role = role.partition(".")
            layer = layer._children()[int(at)]
        if role != slot.role:
            around.setdefault(uses[numbers[id(layer)], role], []).append(index)
    return around


def is_of_layer(role: str) -> bool:
    """Whether a role is a layer's own; loops and conditionals put the number of the layer inside them before it."""
    return "." not in role


def accepts(slot: WeightSlot, tensor: torch.Tensor) -> bool:
    """Whether a flat tensor has the type and size of a use of weights."""
    return tensor.dtype is storage_dtype(slot.dtype) and tensor.nbytes == storage_bytes(slot.dtype, slot.count)
