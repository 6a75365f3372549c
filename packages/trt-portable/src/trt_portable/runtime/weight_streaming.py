"""Weight streaming: how many bytes of weights stay on the device, which ones, and where the others are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import torch

from trt_portable.dtypes import storage_bytes
from trt_portable.layers.convolution import IConvolutionLayer, IDeconvolutionLayer
from trt_portable.plan.engine_plan import is_host_constant
from trt_portable.runtime.streamed_program import StreamedProgram
from trt_portable.runtime.weight_transfers import pinned

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer
    from trt_portable.plan.weight_store import WeightStore

_ALIGNMENT: Final = 256
_SPARED: Final = 0.1
"""The part of a device's free memory that an automatic budget leaves alone."""


class WeightStreaming:
    """Places the weights of an engine that was built for streaming, on the host and on the device.

    The plan's own memory holds all of them and is what a refit replaces; what is on the device are copies.

    Args:
        weights: The engine's weights, on the host.
        layers: Its layers, by the index that a slot names.
        program: What runs while some weights lie on the host.
        device: The engine's device.

    Attributes:
        program: As given.
        streamable_bytes: Bytes of weights that may lie on the host.
    """

    def __init__(
        self, weights: WeightStore, layers: Sequence[ILayer], program: StreamedProgram, device: torch.device
    ) -> None:
        self.program = program
        self._weights = weights
        self._layers = layers
        self._device = device
        allowed = set(program.streamable)
        fixed: set[str] = set()
        sizes: dict[str, int] = {}
        for slot in weights.slots:
            if (id(layers[slot.layer]), slot.role) in allowed:
                sizes[slot.weights] = storage_bytes(slot.dtype, slot.count)
            else:
                fixed.add(slot.weights)
        self._sizes = {name: size for name, size in sizes.items() if name not in fixed}
        self.streamable_bytes = sum(self._sizes.values())

    def place(self, budget: int) -> bool:
        """Puts weights where a budget wants them, and binds them to their layers.

        Args:
            budget: Bytes of streamable weights that may stay on the device.

        Returns:
            Whether some lie on the host, so that nothing but `program` can run.

        Raises:
            RuntimeError: There is no memory for them.
        """
        self._let_go()
        slots = self._weights.slots
        streamed = self._streamed(budget)
        away = [index for index, slot in enumerate(slots) if slot.weights in streamed]
        here = [
            index for index, slot in enumerate(slots) if slot.weights not in streamed and not is_host_constant(slot)
        ]
        self.program.stream([(self._layers[slots[index].layer], slots[index].role) for index in away])
        self._bind(away, pinned)
        self._bind(here, self._on_device)
        return bool(away)

    def scratch_bytes(self, budget: int) -> int:
        """Bytes on the device for weights on their way, at a budget."""
        slots, streamed = self._weights.slots, self._streamed(budget)
        sizes = {
            (id(self._layers[slot.layer]), slot.role): self._sizes[slot.weights]
            for slot in slots
            if slot.weights in streamed
        }
        return self.program.scratch_bytes(sizes)

    def automatic_budget(self, run_bytes: int) -> int:
        """Bytes of weights for which the device has memory now, beside what a run needs.

        Args:
            run_bytes: Bytes of intermediate values of a run.
        """
        if self._device.type != "cuda":
            return self.streamable_bytes
        free, _ = torch.cuda.mem_get_info(self._device)
        free += torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        everything = self._weights.bytes_of()
        room = int(free * (1 - _SPARED)) - run_bytes - (everything - self.streamable_bytes)
        if room >= self.streamable_bytes:
            return self.streamable_bytes
        return max(room - self.scratch_bytes(0), 0)

    def _streamed(self, budget: int) -> set[str]:
        return self._sizes.keys() - resident_weights(self._sizes, budget)

    def _let_go(self) -> None:
        """Binds weights where the plan holds them, so that nothing keeps what a former budget had on the device."""
        for index in range(len(self._weights.slots)):
            tensor = self._weights.tensor(index)
            if tensor is not None:
                self._weights.bind(index, tensor)
        for layer in self._layers:
            if isinstance(layer, (IConvolutionLayer, IDeconvolutionLayer)):
                layer._own = None

    def _bind(self, indices: Sequence[int], move: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> None:
        """Binds uses of weights to copies elsewhere; what they share, they share there."""
        given = {index: tensor for index in indices if (tensor := self._weights.tensor(index)) is not None}
        keys = {index: (tensor.data_ptr(), tensor.dtype, tensor.numel()) for index, tensor in given.items()}
        distinct = {keys[index]: tensor for index, tensor in given.items()}
        moved = dict(zip(distinct, move(list(distinct.values())), strict=True))
        for index, key in keys.items():
            self._weights.bind(index, moved[key])

    def _on_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors on the engine's device, in one block; constants that the host knows stay."""
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
        block = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        found, begin = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            place = block[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            found.append(place.copy_(tensor))
            begin += size
        return found


def resident_weights(sizes: Mapping[str, int], budget: int) -> set[str]:
    """The weights that stay on the device: small ones first, whose transfers cost more than they save.

    Of those of one size of which only some fit, every so many stays: while their layers compute, weights of the others
    are on their way.

    Args:
        sizes: Bytes of weights by id, in the order of their layers.
        budget: Bytes that may stay.
    """
    resident: set[str] = set()
    for size, group in groupby(sorted(sizes, key=sizes.__getitem__), key=sizes.__getitem__):
        names = list(group)
        count = len(names) if not size else min(len(names), budget // size)
        resident.update(names[at * len(names) // count] for at in range(count))
        budget -= count * size
    return resident
