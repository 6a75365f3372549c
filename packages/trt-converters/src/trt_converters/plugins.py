"""Converters of third parties, found through the entry point group `trt_converters.plugins`.

An entry point names a function without parameters, or a module, that registers converters when it is called or
imported. A plugin that fails is reported with a warning and skipped, with whatever it had registered until then. The
environment variable `TRT_BLOCKED_PLUGINS` names plugins that are not loaded at all, separated by commas; `*` names all.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Final

from trt_converters.registry import ConverterRegistry

GROUP: Final = "trt_converters.plugins"
BLOCK_LIST: Final = "TRT_BLOCKED_PLUGINS"


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


def load_plugins(registry: ConverterRegistry) -> tuple[PluginStatus, ...]:
    """Loads every plugin that is not blocked, and returns what became of them.

    Args:
        registry: Where they register; it is as before when a plugin fails.
    """
    blocked = {name.strip() for name in os.environ.get(BLOCK_LIST, "").split(",")} - {""}
    return tuple(_load_one(point, registry, blocked) for point in entry_points(group=GROUP))


def _load_one(point: EntryPoint, registry: ConverterRegistry, blocked: set[str]) -> PluginStatus:
    if blocked & {point.name, "*"}:
        return PluginStatus(point.name, point.value, f"blocked by {BLOCK_LIST}")
    before = registry.copy()
    try:
        target = point.load()
        if not isinstance(target, ModuleType):
            target()
    except BaseException as error:
        registry.restore(before)
        if not isinstance(error, (Exception, SystemExit)):  # an interrupt is the user's
            raise
        message = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"converter plugin {point.name!r} ({point.value}) was skipped: {message}; "
            f"{BLOCK_LIST}={point.name} keeps it from being tried",
            stacklevel=2,
        )
        return PluginStatus(point.name, point.value, message)
    return PluginStatus(point.name, point.value)
