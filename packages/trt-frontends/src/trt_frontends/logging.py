"""Levels of the log, as scripts of this field set them: for good, or inside a block; and their `Debugger`."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from trt_core import InputError, logger
from trt_core.held_arguments import held_to_signature
from trt_core.settings_reader import has_no_effect
from trt_core.wording import did_you_mean, nearest_or_all
from trt_frontends.pipeline import log_shown
from trt_frontends.torch_tensorrt import names_of

__all__ = ["Debugger", "debug", "errors", "graphs", "info", "internal_errors", "set_level", "warnings"]


@held_to_signature
def set_level(level: int, logger: logging.Logger | None = None) -> None:
    """Sets the least level that is logged.

    Args:
        level: One of Python's, such as `logging.DEBUG`.
        logger: The logger; by default that of the compiler, `torch_tensorrt`.
    """
    (logger or _LOGGER).setLevel(level)


_LOGGER: Final = logger


_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "internal_errors": logging.CRITICAL,
    "graphs": logging.DEBUG,
}


def _level(level: str, name: str = "") -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What shows a level inside a block, by the name that it has here where that is another."""
    name = name or level

    @contextlib.contextmanager
    def shown() -> Iterator[None]:
        with log_shown(_LEVELS[level]):
            yield

    shown.__name__ = shown.__qualname__ = name
    shown.__doc__ = f"Logs {name.replace('_', ' ')} and what is worse inside a block, on stderr without a set-up."
    return shown


internal_errors: Final = _level("internal_errors")
errors: Final = _level("error", "errors")
warnings: Final = _level("warning", "warnings")
info: Final = _level("info")
debug: Final = _level("debug")
graphs: Final = _level("graphs")

__getattr__, __dir__ = names_of(__name__)

_INSTEAD: Final = {
    "capture_fx_graph_before": "passes have other names here; explain tells what became of nodes",
    "capture_fx_graph_after": "passes have other names here; explain tells what became of nodes",
    "save_engine_profile": "time layers with trtc profile",
    "save_layer_info": "list layers with trtc inspect, or with an engine inspector",
    "capture_tensorrt_api_recording": "networks are no calls of another library here",
    "capture_replay": "networks are no calls of another library here",
}


class Debugger:
    """Logs what a compilation does while a block runs, on the console or in a folder; then all is as before.

    Args:
        log_level: `"debug"`, `"info"`, `"warning"`, `"error"`, `"internal_errors"` or `"graphs"`.
        capture_fx_graph_before, capture_fx_graph_after, save_engine_profile, save_layer_info: No effect, and a warning
            says what to do.
        profile_format, engine_builder_monitor: No effect.
        logging_dir: Folder for the file `trt.log`; None for the console alone.
        options: Others that scripts give; a warning names those that are known.

    Raises:
        InputError: There is no such level or option.
    """

    @held_to_signature
    def __init__(
        self,
        log_level: str = "debug",
        capture_fx_graph_before: Collection[str] | None = None,
        capture_fx_graph_after: Collection[str] | None = None,
        save_engine_profile: bool = False,
        profile_format: str = "perfetto",
        engine_builder_monitor: bool = True,
        logging_dir: str | os.PathLike[str] | None = None,
        save_layer_info: bool = False,
        **options: Any,
    ) -> None:
        if log_level not in _LEVELS:
            hint = nearest_or_all(log_level, _LEVELS)
            raise InputError(f"there is no log level {log_level!r}", hint=hint)
        asked = {
            "capture_fx_graph_before": capture_fx_graph_before,
            "capture_fx_graph_after": capture_fx_graph_after,
            "save_engine_profile": save_engine_profile,
            "save_layer_info": save_layer_info,
            **options,
        }
        for name, value in asked.items():
            if name not in _INSTEAD:
                raise InputError(f"Debugger has no option {name!r}", hint=did_you_mean(name, _INSTEAD))
            if value:
                has_no_effect(name, _INSTEAD[name])
        self._level = _LEVELS[log_level]
        self._folder = None if logging_dir is None else Path(logging_dir)
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> Debugger:
        with contextlib.ExitStack() as stack:
            stack.enter_context(log_shown(self._level))
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                handler = logging.FileHandler(self._folder / "trt.log", encoding="utf-8")
                handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
                _LOGGER.addHandler(handler)
                stack.callback(handler.close)
                stack.callback(_LOGGER.removeHandler, handler)
            self._inside = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._inside.close()
