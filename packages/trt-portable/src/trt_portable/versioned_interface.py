"""Interfaces that applications implement, and that tell their version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trt_portable.enums import APILanguage


@dataclass(frozen=True)
class InterfaceInfo:
    """Kind and version of an interface.

    Attributes:
        kind: What the interface is.
        major: Rises with changes that break implementations.
        minor: Rises with additions.
    """

    kind: str
    major: int
    minor: int


class IVersionedInterface:
    """An interface that tells its version."""

    _INTERFACE: ClassVar[tuple[str, int, int]] = ("", 1, 0)
    """Kind, major and minor version."""

    @property
    def api_language(self) -> APILanguage:
        """The language of the implementation."""
        return APILanguage.PYTHON

    @property
    def interface_info(self) -> InterfaceInfo:
        """Kind and version."""
        return InterfaceInfo(*self._INTERFACE)
