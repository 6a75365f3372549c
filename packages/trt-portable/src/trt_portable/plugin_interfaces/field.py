"""The parameters of a plugin."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeVar

import numpy as np

from trt_core.files import typed
from trt_portable.enums import PluginFieldType
from trt_portable.plan import tables

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")


class BoundList(list[T]):
    """A vector of C++ as a list, with the names that its bindings give to parameters."""

    def append(self, x: T) -> None:
        """Adds an item to the end."""
        super().append(x)

    def extend(self, L: Iterable[T]) -> None:
        """Adds items to the end."""
        super().extend(L)

    def insert(self, i: SupportsIndex, x: T) -> None:
        """Adds an item before a position."""
        super().insert(i, x)

    def pop(self, i: SupportsIndex = -1) -> T:
        """Removes an item, the last one by default, and returns it."""
        return super().pop(i)

    def remove(self, x: T) -> None:
        """Removes the first item that is equal.

        Raises:
            ValueError: There is none.
        """
        super().remove(x)

    def count(self, x: T) -> int:
        """How many items are equal."""
        return super().count(x)


class NodeIndices(BoundList[int]):
    """Numbers of nodes."""


class FallbackString(str):
    """Text as the bindings hand it to C++; plain text serves wherever it does."""


_ELEMENTS: Final[dict[PluginFieldType, np.dtype[Any]]] = {
    PluginFieldType.FLOAT16: np.dtype(np.float16),
    PluginFieldType.FLOAT32: np.dtype(np.float32),
    PluginFieldType.FLOAT64: np.dtype(np.float64),
    PluginFieldType.INT8: np.dtype(np.int8),
    PluginFieldType.INT16: np.dtype(np.int16),
    PluginFieldType.INT32: np.dtype(np.int32),
    PluginFieldType.INT64: np.dtype(np.int64),
    PluginFieldType.CHAR: np.dtype(np.int8),
}
"""What numpy calls the elements of a field; other types are kept as they are given."""


class PluginField:
    """A named parameter.

    Args:
        name: The name.
        data: The values: anything with a buffer, or text; None for a field that only announces a name.
        type: The element type.

    Raises:
        TypeError: Not a `PluginFieldType`, or data without a buffer.
        ValueError: The data are not whole elements of the type, or do not fit it.
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
        self.type = type
        self.data = data

    @property
    def data(self) -> npt.NDArray[Any] | None:
        """The values, flat, as elements of the type: int8 for CHAR; bytes as given where numpy lacks the type."""
        return self._data

    @data.setter
    def data(self, data: Any) -> None:
        self._data = None if data is None else _elements(data, self.type, self.name)

    @property
    def size(self) -> int:
        """Number of elements."""
        return 0 if self._data is None else self._data.size

    def _to_json(self) -> dict[str, Any]:
        array = np.empty(0, np.uint8) if self._data is None else self._data
        return {
            "name": self.name,
            "type": self.type.name,
            "dtype": array.dtype.str,
            "data": base64.b64encode(array.tobytes()).decode(),
        }

    @classmethod
    def _from_json(cls, entry: Any) -> PluginField:
        entry = typed.fields(entry, "a field of a plugin", tables.PLUGIN_FIELD)
        name = typed.text(entry["name"], "the name of a field of a plugin")
        data = base64.b64decode(typed.text(entry["data"], f"field {name!r}"), validate=True)
        flat = np.frombuffer(data, np.dtype(typed.text(entry["dtype"], f"the type of field {name!r}")))
        return cls(name, flat, typed.member(PluginFieldType, entry["type"], f"the type of field {name!r}"))


def _elements(data: Any, kind: PluginFieldType, name: str) -> npt.NDArray[Any]:
    wanted = _ELEMENTS.get(kind)
    array: npt.NDArray[Any]
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(data).reshape(-1)
    else:
        view = memoryview(data)
        plain = view.format in ("b", "B", "c")
        array = np.frombuffer(view, np.uint8) if plain else np.asarray(view).reshape(-1)
        if plain and wanted is not None:
            if array.size % wanted.itemsize:
                raise ValueError(f"field {name!r}: {array.size} bytes are not whole elements of {kind.name}")
            return array.view(wanted)
    if wanted is None or array.dtype == wanted:
        return array
    if array.dtype.itemsize == wanted.itemsize == 1:
        return array.view(wanted)
    converted = array.astype(wanted)
    if not np.array_equal(converted, array, equal_nan=array.dtype.kind == "f"):
        raise ValueError(f"field {name!r}: {array.dtype} values do not fit {kind.name}")
    return converted


class PluginFieldCollection(BoundList[PluginField]):
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
