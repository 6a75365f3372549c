"""Loads what the shared registry holds: the built-in families of converters, then those of other distributions."""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Final

from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry


class _Loading:
    """Loads once. A thread that asks meanwhile waits; what is being loaded may ask again, and sees what is there."""

    def __init__(self) -> None:
        self.plugins: tuple[PluginStatus, ...] = ()
        self._lock = threading.RLock()
        self._done = False
        self._running = False

    def run(self) -> None:
        from trt_converters import aten  # imported at first use: the families register themselves

        if self._done and not aten.vision.is_waiting():
            return
        with self._lock:
            if self._running:
                return
            self._running = True
            try:
                aten.load()
                if not self._done:
                    self.plugins = load_plugins(DYNAMO_CONVERTERS)
                self._done = True
            finally:
                self._running = False


_LOADING: Final = _Loading()


def load_converters() -> None:
    """Loads the built-in converters and those of plugins into `DYNAMO_CONVERTERS`; later calls cost nothing.

    Whoever asks the registry has it called, so there is seldom a reason to call it.
    """
    _LOADING.run()


def plugin_status() -> tuple[PluginStatus, ...]:
    """Returns what became of each installed plugin, loading them when they are not loaded yet."""
    load_converters()
    return _LOADING.plugins


DYNAMO_CONVERTERS.fill_with(load_converters)


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
