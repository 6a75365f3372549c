"""Converters of third parties, found through the entry point group `trt_converters.plugins`.

An entry point names a function without parameters, or a module, that registers converters when it is called or
imported. A plugin that fails is reported with a warning and skipped, with whatever it had registered until then.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Final

from trt_converters.registry import DYNAMO_CONVERTERS

GROUP: Final = "trt_converters.plugins"


@dataclass(frozen=True)
class PluginStatus:
    """What became of a plugin.

    Attributes:
        name: Name of the entry point.
        value: What it points to.
        error: Why it was skipped; empty when it was loaded.
    """

    name: str
    value: str
    error: str = ""


_lock = threading.Lock()
_loaded: list[PluginStatus] | None = None


def load() -> tuple[PluginStatus, ...]:
    """Loads every plugin once, and returns what became of them."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = [_load_one(point) for point in entry_points(group=GROUP)]
    return tuple(_loaded)


def _load_one(point: EntryPoint) -> PluginStatus:
    before = DYNAMO_CONVERTERS.copy()
    try:
        target = point.load()
        if not isinstance(target, ModuleType):
            target()
    except Exception as error:
        DYNAMO_CONVERTERS.restore(before)
        message = f"{type(error).__name__}: {error}"
        warnings.warn(f"converter plugin {point.name!r} ({point.value}) was skipped: {message}", stacklevel=2)
        return PluginStatus(point.name, point.value, message)
    return PluginStatus(point.name, point.value)
