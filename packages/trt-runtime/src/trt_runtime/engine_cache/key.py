"""The key of a cached engine: everything that the engine depends on, by component."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trt_core.errors import CacheError


@dataclass(frozen=True)
class Difference:
    """One thing in which two keys differ.

    Attributes:
        component: Where, such as `"weights"` or `"settings.workspace_size"`.
        wanted: What the one key has; None where it has nothing.
        found: What the other has.
    """

    component: str
    wanted: str | None
    found: str | None

    def __str__(self) -> str:
        return f"{self.component}: {_shorten(self.wanted)} is wanted, {_shorten(self.found)} is there"


@dataclass(frozen=True)
class EngineKey:
    """What an engine depends on; known before anything is converted or built.

    Attributes:
        components: Texts by dotted name, such as `{"graph": "...", "settings.refit": "False"}`. A text is a value
            that a reader understands, or a digest of what would be too long.

    Raises:
        CacheError: There are no components, or they are not texts.
    """

    components: Mapping[str, str]

    def __post_init__(self) -> None:
        values = self.components.items() if isinstance(self.components, Mapping) else ()
        if not values or not all(isinstance(name, str) and isinstance(text, str) for name, text in values):
            raise CacheError("the components of an engine's key are texts by name, at least one")

    @functools.cached_property
    def text(self) -> str:
        """The key as canonical JSON: equal keys have equal texts."""
        return json.dumps(dict(self.components), sort_keys=True, separators=(",", ":"))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the key in hexadecimal: the name of its entry."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def from_json(cls, value: Any) -> EngineKey:
        """Reads the components back.

        Raises:
            CacheError: They are not texts by name.
        """
        return cls(value)

    def differences(self, other: EngineKey) -> tuple[Difference, ...]:
        """Returns in what another key differs, in the order of the components' names."""
        names = sorted({*self.components, *other.components})
        pairs = ((name, self.components.get(name), other.components.get(name)) for name in names)
        return tuple(Difference(name, wanted, found) for name, wanted, found in pairs if wanted != found)


def _shorten(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= 60 else f"{text[:57]}..."
