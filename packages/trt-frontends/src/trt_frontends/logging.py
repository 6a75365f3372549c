"""Levels of the log, as scripts of this field set them: for good, or inside a block."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from trt_core import logger
from trt_core.held_arguments import held_to_signature
from trt_frontends.pipeline import log_shown

__all__ = ["debug", "errors", "graphs", "info", "internal_errors", "set_level", "warnings"]


@held_to_signature
def set_level(level: int, logger: logging.Logger | None = None) -> None:
    """Sets the least level that is logged.

    Args:
        level: One of Python's, such as `logging.DEBUG`.
        logger: The logger; by default that of the compiler, `torch_tensorrt`.
    """
    (logger or _LOGGER).setLevel(level)


_LOGGER: Final = logger


def _level(level: int, name: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def shown() -> Iterator[None]:
        with log_shown(level):
            yield

    shown.__name__ = shown.__qualname__ = name
    shown.__doc__ = f"Logs {name.replace('_', ' ')} and what is worse inside a block, on stderr without a set-up."
    return shown


internal_errors: Final = _level(logging.CRITICAL, "internal_errors")
errors: Final = _level(logging.ERROR, "errors")
warnings: Final = _level(logging.WARNING, "warnings")
info: Final = _level(logging.INFO, "info")
debug: Final = _level(logging.DEBUG, "debug")
graphs: Final = _level(logging.DEBUG, "graphs")
