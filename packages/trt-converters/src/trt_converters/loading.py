"""Loads what the shared registry holds: the built-in families of converters, then those of other distributions."""

from __future__ import annotations

import threading
from typing import Final

from trt_converters.plugins import PluginStatus, load_plugins
from trt_converters.registry import DYNAMO_CONVERTERS


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
