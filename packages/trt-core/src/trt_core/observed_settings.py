"""Settings that remember which of their fields were read: so it shows what an engine depends on."""

from __future__ import annotations

from typing import Any

from trt_core.settings import CompilationSettings, setting_names


class ObservedSettings(CompilationSettings):
    """Settings that remember which of their fields were read.

    Args:
        settings: What to observe.
    """

    def __init__(self, settings: CompilationSettings) -> None:
        vars(self).update(vars(settings))
        object.__setattr__(self, "_read", set())

    def replace(self, **changes: Any) -> CompilationSettings:
        """Returns a copy, no longer observed, with the given fields changed; reads every field."""
        return CompilationSettings(**{**{name: getattr(self, name) for name in setting_names()}, **changes})

    def __getattribute__(self, name: str) -> Any:
        if name in CompilationSettings.__dataclass_fields__:
            object.__getattribute__(self, "_read").add(name)
        return object.__getattribute__(self, name)

    def fields_read(self) -> frozenset[str]:
        """Returns the names of the fields that were read until now."""
        found: set[str] = object.__getattribute__(self, "_read")
        return frozenset(found)
