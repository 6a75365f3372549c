"""The parameters of a plugin."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from trt_portable.enums import PluginFieldType


class PluginField:
    """A named parameter: a numpy array, or anything with a buffer.

    Attributes:
        name: The name.
        data: The values; None for a field that only announces a name.
        type: The element type.
    """

    def __init__(
        self,
        name: str = "",
        data: Any = None,
        type: PluginFieldType = PluginFieldType.UNKNOWN,
    ) -> None:
        if not isinstance(type, PluginFieldType):
            raise TypeError(f"type must be PluginFieldType, not {type.__class__.__name__}")
        self.name = str(name)
        self.data = data
        self.type = type

    @property
    def size(self) -> int:
        """Number of elements."""
        if self.data is None:
            return 0
        return self.data.size if isinstance(self.data, np.ndarray) else len(self.data)

    def _to_json(self) -> dict[str, Any]:
        array = np.frombuffer(b"", np.uint8) if self.data is None else self._array()
        return {
            "name": self.name,
            "type": self.type.name,
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "data": base64.b64encode(array.tobytes()).decode(),
        }

    def _array(self) -> np.ndarray[Any, Any]:
        if isinstance(self.data, np.ndarray):
            return self.data
        if isinstance(self.data, str):
            return np.frombuffer(self.data.encode(), np.uint8)
        return np.frombuffer(self.data, np.uint8)

    @classmethod
    def _from_json(cls, entry: dict[str, Any]) -> PluginField:
        flat = np.frombuffer(base64.b64decode(entry["data"]), np.dtype(entry["dtype"]))
        return cls(entry["name"], flat.reshape(entry["shape"]), PluginFieldType[entry["type"]])


class PluginFieldCollection(list[PluginField]):
    """The parameters of a plugin, in order."""

    def __init__(self, fields: Iterable[PluginField] = ()) -> None:
        super().__init__(fields)


class PluginFieldCollection_:
    """A read-only view of parameters, as creators receive them."""

    def __init__(self, fields: PluginFieldCollection) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, index: int) -> PluginField:
        return self._fields[index]

    def __iter__(self) -> Iterator[PluginField]:
        return iter(self._fields)
