"""Host weights by key while an engine is built, some of them computed only when they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

import torch

_ALIGNMENT: Final = 64


@dataclass(frozen=True)
class _Deferred:
    """Weights that are not there yet.

    Attributes:
        dtype: Their type.
        count: Their number.
        write: Puts them into memory: a flat tensor of that type and size.
    """

    dtype: torch.dtype
    count: int
    write: Callable[[torch.Tensor], None]


class WeightTable(MutableMapping[str, torch.Tensor]):
    """Tensors by key, for whoever only reads them; to those who write a plan it says what is computed in place.

    Reading deferred weights computes them, each time, in memory that dies with the reader.

    Args:
        tensors: What is there.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        self._entries: dict[str, torch.Tensor | _Deferred] = {}
        if isinstance(tensors, WeightTable):
            self._entries.update(tensors._entries)
        else:
            self._entries.update(tensors or {})

    def defer(self, key: str, dtype: torch.dtype, count: int, write: Callable[[torch.Tensor], None]) -> None:
        """Adds weights that `write` computes into a flat tensor of a type and size."""
        self._entries[key] = _Deferred(dtype, count, write)

    def only(self, keys: Collection[str]) -> WeightTable:
        """The entries with some keys."""
        found = WeightTable()
        found._entries = {key: entry for key, entry in self._entries.items() if key in keys}
        return found

    def spec(self, key: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Type and shape, without computing anything."""
        entry = self._entries[key]
        return (entry.dtype, (entry.count,)) if isinstance(entry, _Deferred) else (entry.dtype, tuple(entry.shape))

    def computed(self) -> dict[str, torch.Tensor]:
        """All tensors, the deferred ones in one block, which goes back to the system when the last of them dies."""
        deferred = {key: entry for key, entry in self._entries.items() if isinstance(entry, _Deferred)}
        sizes = {
            key: -(-entry.count * entry.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for key, entry in deferred.items()
        }
        block = torch.empty(sum(sizes.values()), dtype=torch.uint8)
        found = {key: entry for key, entry in self._entries.items() if isinstance(entry, torch.Tensor)}
        begin = 0
        for key, entry in deferred.items():
            found[key] = block[begin : begin + entry.count * entry.dtype.itemsize].view(entry.dtype)
            entry.write(found[key])
            begin += sizes[key]
        return found

    def write(self, key: str, target: torch.Tensor) -> None:
        """Puts weights into flat memory of their type and size."""
        entry = self._entries[key]
        if isinstance(entry, _Deferred):
            entry.write(target)
        else:
            target.view(entry.shape).copy_(entry)

    def __getitem__(self, key: str) -> torch.Tensor:
        entry = self._entries[key]
        if isinstance(entry, _Deferred):
            made = torch.empty(entry.count, dtype=entry.dtype)
            entry.write(made)
            return made
        return entry

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
