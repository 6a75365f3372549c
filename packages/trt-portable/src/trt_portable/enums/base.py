"""The behaviour that all enumerations of the API share."""

from __future__ import annotations

from enum import Enum


class PybindEnum(Enum):
    """An enumeration like those of TensorRT's bindings.

    Members convert with ``int()`` and serve as indices, but take no part in integer arithmetic and
    equal only members of their own class.
    """

    __hash__ = object.__hash__  # members are unique; hashing names costs a Python call per look-up

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)
