"""Weights by key while an engine is built: on the host, on the GPU where the model is, or computed when written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import torch

from trt_core.copies import copy_all
from trt_core.weight_recipes import bytes_of
from trt_portable.memory import memory_in_file

LARGE_BYTES: Final = 64 << 20
"""More goes to a file, whose memory the system can give to others."""

_ALIGNMENT: Final = 64
_HOST: Final = torch.device("cpu")


@dataclass(frozen=True)
class _Deferred:
    """Weights that are not there yet.

    Attributes:
        dtype: Their type.
        count: Their number.
        write: Puts them into memory: a flat tensor of that type and size.
        device: Where that memory is to be.
        anywhere: Whether it may be on any device.
    """

    dtype: torch.dtype
    count: int
    write: Callable[[torch.Tensor], None]
    device: torch.device = _HOST
    anywhere: bool = False

    @property
    def room(self) -> int:
        """Bytes that they take, with those up to where others may begin."""
        return -(-self.count * self.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    def made(self, device: torch.device | None = None) -> torch.Tensor:
        """The weights, in memory of their own, on some device."""
        device = device or self.device
        found = torch.empty(self.count, dtype=self.dtype, device=device if self.anywhere else self.device)
        self.write(found)
        return found.to(device)


class WeightTable(MutableMapping[str, torch.Tensor]):
    """Tensors by key, for whoever only reads them; to those who write a plan it says what is computed in place.

    Reading deferred weights computes them, each time, in memory that dies with the reader. What is read is on the host:
    of weights on a GPU it is a copy.

    Args:
        tensors: What is there.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        self._entries: dict[str, torch.Tensor | _Deferred] = {}
        if isinstance(tensors, WeightTable):
            self._entries.update(tensors._entries)
        else:
            self._entries.update(tensors or {})

    def defer(
        self,
        key: str,
        dtype: torch.dtype,
        count: int,
        write: Callable[[torch.Tensor], None],
        device: torch.device = _HOST,
        *,
        anywhere: bool = False,
    ) -> None:
        """Adds weights that `write` computes into a flat tensor of a type and size, on a device, or on any."""
        self._entries[key] = _Deferred(dtype, count, write, device, anywhere)

    def in_place(self, key: str) -> torch.Tensor:
        """The tensor of a key where it lies, which may be a GPU."""
        entry = self._entries[key]
        return self[key] if isinstance(entry, _Deferred) else entry

    def only(self, keys: Collection[str]) -> WeightTable:
        """The entries with some keys."""
        found = WeightTable()
        found._entries = {key: entry for key, entry in self._entries.items() if key in keys}
        return found

    def spec(self, key: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape, without computing anything."""
        entry = self._entries[key]
        return (entry.dtype, (entry.count,)) if isinstance(entry, _Deferred) else (entry.dtype, tuple(entry.shape))

    def computed(self, device: torch.device = _HOST) -> dict[str, torch.Tensor]:
        """All tensors on a GPU; for the host where they lie, deferred ones in one block, which goes back to the system.

        Where these are large, they lie in a file, and the table keeps them so: they are not computed again.
        """
        if device != _HOST:
            return self._on(device)
        found = {key: entry for key, entry in self._entries.items() if isinstance(entry, torch.Tensor)}
        deferred = {key: entry for key, entry in self._entries.items() if isinstance(entry, _Deferred)}
        on_host = {key: entry for key, entry in deferred.items() if entry.device == _HOST}
        found.update((key, entry.made()) for key, entry in deferred.items() if key not in on_host)
        num_bytes = sum(entry.room for entry in on_host.values())
        in_file = _in_file(on_host) if num_bytes >= LARGE_BYTES else None
        if in_file is not None:
            self._entries.update(in_file)
            return found | in_file
        block = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        begin = 0
        for key, entry in on_host.items():
            found[key] = block[begin : begin + entry.count * entry.dtype.itemsize].view(entry.dtype)
            entry.write(found[key])
            begin += entry.room
        return found

    def _on(self, device: torch.device) -> dict[str, torch.Tensor]:
        """All tensors on a GPU: what lies there as it is, the others copied, or computed there."""
        found, copied = {}, []
        for key, entry in self._entries.items():
            if isinstance(entry, _Deferred):
                found[key] = entry.made(device)
            elif entry.device == device:
                found[key] = entry
            else:
                found[key] = torch.empty(entry.shape, dtype=entry.dtype, device=device)
                copied.append((entry.contiguous(), found[key]))
        copy_all(copied)
        return found

    def write_all(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Puts weights into flat host memory of their types and sizes, by key."""
        ready = {key: entry for key in targets if isinstance(entry := self._entries[key], torch.Tensor)}
        copy_all([(entry, targets[key]) for key, entry in ready.items() if entry.is_contiguous()])
        for key, target in targets.items():
            entry = self._entries[key]
            if isinstance(entry, _Deferred):
                if entry.device == _HOST:
                    entry.write(target)
                else:
                    copy_all([(entry.made(), target)])
            elif not entry.is_contiguous():
                target.view(entry.shape).copy_(entry)

    def __getitem__(self, key: str) -> torch.Tensor:
        entry = self._entries[key]
        return (entry.made() if isinstance(entry, _Deferred) else entry).cpu()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __setitem__(self, key: str, tensor: torch.Tensor) -> None:
        self._entries[key] = tensor

    def __delitem__(self, key: str) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _in_file(entries: Mapping[str, _Deferred]) -> dict[str, torch.Tensor] | None:
    """Computes weights one by one into a file; None where there is no room for it."""
    begins: dict[str, int] = {}

    def write(file: BinaryIO) -> None:
        for key, entry in entries.items():
            begins[key] = file.tell()
            file.write(bytes_of(entry.made()))
            file.write(bytes(begins[key] + entry.room - file.tell()))

    memory = memory_in_file(write)
    if memory is None:
        return None
    data = memory.as_tensor()
    return {
        key: data[begins[key] : begins[key] + entry.count * entry.dtype.itemsize].view(entry.dtype)
        for key, entry in entries.items()
    }
