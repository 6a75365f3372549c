"""Converters of PyTorch's operators, one function per operator, one module per family; and what loads them.

A converter is named after its operator, its parameters mirror the schema, and the schema is the first line of its
docstring. Importing a module registers its converters. The shared registry is filled when it is first asked: with the
built-in families, then with the converters of other distributions.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Final

from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core.entry_points import BLOCK_LIST, Installed, load_installed, register_runtime_plugins, warn_of_failures
from trt_core.forked_lock import ForkedLock

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["BLOCK_LIST", "GROUP", "PluginStatus", "load_converters", "load_plugins", "plugin_status"]


class _Loading:
    """Loads once. A thread that asks meanwhile waits; what is being loaded may ask again, and sees what is there."""

    def __init__(self) -> None:
        self.plugins: tuple[PluginStatus, ...] = ()
        self._lock = ForkedLock()
        self._done = False

    def run(self) -> None:
        from trt_converters.aten import libraries  # imported at first use: the families register themselves

        if self._done and not libraries.is_waiting():
            return
        with self._lock:
            if self._lock.depth > 1:  # what is being loaded asks
                return
            _import_families()
            libraries.register()
            if not self._done:
                self.plugins = load_plugins(DYNAMO_CONVERTERS)
            self._done = True


_LOADING: Final = _Loading()


@functools.cache
def _import_families() -> None:
    """Imports every family, once."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


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

PluginStatus = Installed[object]
"""What became of a plugin."""


def load_plugins(registry: ConverterRegistry) -> tuple[PluginStatus, ...]:
    """Loads every plugin that is not blocked, and returns what became of them.

    Engines of a library that brings plugins for running them, too, are built and run here: these are registered.

    Args:
        registry: Where they register; it is as before when a plugin fails.
    """

    def register(point: EntryPoint) -> object:
        before = registry.copy()
        try:
            target = point.load()
            found = target if isinstance(target, ModuleType) else target()
            for item in register_runtime_plugins(point.name):
                if item.cause is not None:
                    raise item.cause
            return found
        except BaseException:
            registry.restore(before)
            raise

    plugins = load_installed(GROUP, register)
    warn_of_failures("converter plugin", plugins)
    return plugins
