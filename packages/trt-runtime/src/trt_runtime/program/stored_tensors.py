"""Tensors as raw bytes: what they share when they are saved, they share when they are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from trt_core.errors import ExportError
from trt_core.nesting import reach_of
from trt_core.wording import with_article
from trt_runtime.plan_notes import plan_bytes
from trt_runtime.program.fields import DTYPES
from trt_runtime.program.graph import Storage, StoredTensor

_ALIGNMENT: Final = 64
_GRAIN: Final = 16
"""Bytes that the largest element has: memory is cut at multiples of it."""


@dataclass
class _Span:
    """The part of a storage that tensors look into, in bytes."""

    storage: torch.UntypedStorage
    device: torch.device
    begin: int
    end: int


@dataclass(frozen=True)
class PackedTensors:
    """Tensors laid out as they go to a file.

    Attributes:
        entries: What the graph says of each.
        storages: Where their bytes lie in the section.
    """

    entries: tuple[StoredTensor, ...]
    storages: tuple[Storage, ...]
    _spans: tuple[_Span, ...]

    def parts(self) -> Iterator[memoryview | bytes]:
        """The content of the section, piece by piece; memory of other devices is copied one storage at a time."""
        end = 0
        for storage, span in zip(self.storages, self._spans, strict=True):
            yield bytes(storage.offset - end)
            flat = torch.empty(0, dtype=torch.uint8, device=span.device)
            flat = flat.set_(span.storage, span.begin, (storage.size,), (1,))
            yield plan_bytes(flat.cpu())
            end = storage.offset + storage.size


def check_storable(tensor: Any, name: str) -> None:
    """Checks that a tensor is nothing but typed bytes.

    Raises:
        ExportError: It is a subclass, sparse, quantized, or has no data.
    """
    kind = type(tensor)
    plain = kind in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized
    if not plain or tensor.dtype not in DTYPES.values() or tensor.device.type not in ("cpu", "cuda"):
        what = kind.__name__ if kind not in (torch.Tensor, torch.nn.Parameter) else f"{tensor.layout} {tensor.dtype}"
        raise ExportError(
            f"{name!r} is {with_article(what)} tensor on {tensor.device.type}, which a saved program cannot hold",
            hint="replace it by a plain dense tensor before compiling",
        )


def pack(entries: Sequence[StoredTensor], tensors: Sequence[torch.Tensor]) -> PackedTensors:
    """Lays tensors out: each storage once, cut to what the tensors see of it.

    Args:
        entries: Names and kind of each tensor; the rest is filled in.
        tensors: The tensors.
    """
    spans: dict[tuple[str, int], _Span] = {}
    for tensor in tensors:
        if not tensor.numel():
            continue
        storage = tensor.untyped_storage()
        begin, end = _extent_in_bytes(tensor)
        begin -= begin % _GRAIN
        span = spans.setdefault(_key(tensor), _Span(storage, tensor.device, begin, end))
        span.begin, span.end = min(span.begin, begin), max(span.end, end)
    numbers = {key: number for number, key in enumerate(spans)}
    storages = []
    end = 0
    for span in spans.values():
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        storages.append(Storage(begin, span.end - span.begin))
        end = begin + storages[-1].size
    packed = []
    for entry, tensor in zip(entries, tensors, strict=True):
        offset = 0
        if tensor.numel():
            start = tensor.storage_offset() * tensor.element_size() - spans[_key(tensor)].begin
            offset = start // tensor.element_size()
        packed.append(
            replace(
                entry,
                dtype=tensor.dtype,
                storage=numbers[_key(tensor)] if tensor.numel() else None,
                offset=offset,
                shape=tuple(tensor.shape),
                strides=tensor.stride(),
                device=tensor.device.type,
            )
        )
    return PackedTensors(tuple(packed), tuple(storages), tuple(spans.values()))


def unpack(
    entries: Sequence[StoredTensor], storages: Sequence[torch.Tensor], device: torch.device
) -> list[torch.Tensor]:
    """Returns the tensors of a program as views of their storages.

    Args:
        entries: What the graph says of each; checked to lie in its storage.
        storages: (bytes,), uint8, on the CPU, by number.
        device: Where tensors lie that are not on the CPU.
    """
    moved: dict[tuple[int, str], torch.Tensor] = {}
    tensors = []
    for entry in entries:
        target = torch.device("cpu") if entry.device == "cpu" else device
        if entry.storage is None:
            made = torch.empty_strided(entry.shape, entry.strides, dtype=entry.dtype, device=target)
            tensors.append(made)
            continue
        key = (entry.storage, entry.device)
        if key not in moved:
            moved[key] = storages[entry.storage].to(target)
        flat = moved[key]
        size = entry.dtype.itemsize
        whole = flat[: flat.numel() - flat.numel() % size].view(entry.dtype)
        tensors.append(whole.as_strided(entry.shape, entry.strides, entry.offset))
    return tensors


def view_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What two tensor objects have in common when they are one tensor."""
    if not tensor.numel():
        return (id(tensor),)
    return (*_key(tensor), tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _key(tensor: torch.Tensor) -> tuple[str, int]:
    return (str(tensor.device), tensor.untyped_storage().data_ptr())


def _extent_in_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor in its storage, and the one after its last."""
    first = int(tensor.storage_offset())
    end = first + reach_of(tensor.shape, tensor.stride())
    return first * tensor.element_size(), end * tensor.element_size()
