"""Memory layouts at the boundary of an engine: which exist, for which types, and where their elements lie.

Extents are always given in the order of LINEAR, (N, C, H, W) or (N, C, D, H, W), whatever the layout. A vector
format keeps several neighbours along the channel axis together and pads the channels to whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from trt_portable.enums import DataType, TensorFormat
from trt_portable.errors import Refusal


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie.

    Attributes:
        channel: Distance of the channel axis from the end: 3 for CHW formats, 4 for CDHW formats.
        lanes: Channels in a vector.
        channels_last: Whether vectors of one place follow each other; otherwise planes of vectors do.
        dtypes: Element types that may lie so.
        words: The layout in words, without the type.
    """

    channel: int
    lanes: int
    channels_last: bool
    dtypes: frozenset[DataType]
    words: str

    def memory_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extents of the memory as a dense tensor, padding included."""
        at = len(shape) - self.channel
        vectors = -(-shape[at] // self.lanes)
        if self.channels_last:
            return (*shape[:at], *shape[at + 1 :], vectors * self.lanes)
        return (*shape[:at], vectors, *shape[at + 1 :], self.lanes)

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The distances between neighbours along each axis, in vectors; -1 where an extent is unknown."""
        at = len(shape) - self.channel
        vectors = -1 if shape[at] == -1 else -(-shape[at] // self.lanes)
        extents = [vectors if axis == at else extent for axis, extent in enumerate(shape)]
        order = [axis for axis in range(len(shape)) if axis != at]
        order.insert(len(order) if self.channels_last else at, at)
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis] = step
            step = -1 if -1 in (step, extents[axis]) else step * max(extents[axis], 1)
        return tuple(strides)

    def pack(self, tensor: torch.Tensor, memory: torch.Tensor) -> None:
        """Writes a tensor into memory of `memory_shape`; padding becomes zero."""
        if tensor.shape[tensor.ndim - self.channel] % self.lanes:
            memory.zero_()
        for part, source in self._parts(memory, tensor):
            part.copy_(source, non_blocking=True)

    def unpack(self, memory: torch.Tensor, tensor: torch.Tensor) -> None:
        """Reads a tensor from memory of `memory_shape`."""
        for source, part in self._parts(memory, tensor):
            part.copy_(source, non_blocking=True)

    def _parts(self, memory: torch.Tensor, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Views of equal extents that together cover the tensor and its place in memory."""
        at = tensor.ndim - self.channel
        channels = tensor.shape[at]
        if self.channels_last:
            yield memory.narrow(-1, 0, channels).movedim(-1, at), tensor
            return
        vectors = memory.movedim(-1, at + 1)
        whole, rest = divmod(channels, self.lanes)
        if whole:
            split = tensor.narrow(at, 0, whole * self.lanes).unflatten(at, (whole, self.lanes))
            yield vectors.narrow(at, 0, whole), split
        if rest:
            yield vectors.select(at, whole).narrow(at, 0, rest), tensor.narrow(at, whole * self.lanes, rest)


_HALVES: Final = frozenset({DataType.HALF, DataType.BF16})
_D = DataType

LAYOUTS: Final[dict[TensorFormat, Layout]] = {
    TensorFormat.CHW2: Layout(3, 2, False, _HALVES, "Two wide channel vectorized row major {} format"),
    TensorFormat.HWC8: Layout(3, 8, True, _HALVES, "Channel major {} format where C % 8 == 0"),
    TensorFormat.CHW4: Layout(3, 4, False, frozenset({_D.INT8}), "Four wide channel vectorized row major {} format"),
    TensorFormat.CHW32: Layout(
        3, 32, False, frozenset({_D.INT8, _D.FLOAT, _D.HALF}), "Thirty-two wide channel vectorized row major {} format"
    ),
    TensorFormat.DHWC8: Layout(4, 8, True, _HALVES, "Channel major {} format where C % 8 == 0, with a depth axis"),
    TensorFormat.CDHW32: Layout(
        4,
        32,
        False,
        frozenset({_D.HALF, _D.INT8}),
        "Thirty-two wide channel vectorized row major {} format with a depth axis",
    ),
    TensorFormat.HWC: Layout(3, 1, True, frozenset({_D.FLOAT, _D.UINT8}), "Channel major {} format"),
    TensorFormat.HWC16: Layout(
        3, 16, True, frozenset({_D.HALF, _D.INT8, _D.FP8}), "Channel major {} format where C % 16 == 0"
    ),
    TensorFormat.DHWC: Layout(4, 1, True, frozenset({_D.FLOAT}), "Channel major {} format with a depth axis"),
}
"""Every format but LINEAR and those of DLA, which exist only on that hardware."""


def choose_format(allowed: int, dtype: DataType, rank: int, *, is_shape_tensor: bool = False) -> TensorFormat:
    """The format of an engine's input or output: LINEAR where it is allowed, else the first that fits.

    Args:
        allowed: Bit mask ``1 << int(TensorFormat)``.
        dtype: The element type.
        rank: The number of axes.
        is_shape_tensor: Whether the host needs the values; such tensors are LINEAR.

    Raises:
        Refusal: No allowed format has the type and the rank.
    """
    if allowed >> int(TensorFormat.LINEAR) & 1:
        return TensorFormat.LINEAR
    if is_shape_tensor:
        raise Refusal(f"allowed_formats {allowed:#x} exclude LINEAR, the only format of a shape tensor")
    wanted = [kind for kind in TensorFormat.__members__.values() if allowed >> int(kind) & 1]
    for kind in wanted:
        layout = LAYOUTS.get(kind)
        if layout is not None and dtype in layout.dtypes and rank >= layout.channel:
            return kind
    names = ", ".join(kind.name for kind in wanted) or "none"
    raise Refusal(f"no allowed format ({names}) takes {dtype.name} of rank {rank}; allow LINEAR as well")


def memory_bytes(shape: Sequence[int], kind: TensorFormat, dtype: torch.dtype) -> int:
    """Bytes that a tensor occupies, padding included."""
    layout = LAYOUTS.get(kind)
    return math.prod(shape if layout is None else layout.memory_shape(shape)) * dtype.itemsize


def describe_format(kind: TensorFormat, dtype: DataType) -> str:
    """A format in words."""
    layout = LAYOUTS.get(kind)
    return ("Row major linear {} format" if layout is None else layout.words).format(dtype.name)
