"""The logger handed to the provider: forwards to Python's logging, and remembers errors for messages."""

from __future__ import annotations

import logging
from typing import Any

from trt_core import logger as project_logger
from trt_core import trt

_LEVELS = {
    "INTERNAL_ERROR": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.DEBUG,
    "VERBOSE": logging.DEBUG,
}


def RecordingLogger() -> Any:
    """Returns a `trt.ILogger` with a method `text()`: the errors logged so far, one per line."""

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            level = _LEVELS.get(severity.name, logging.INFO)
            if level >= logging.ERROR:
                self.errors.append(message)
                level = logging.DEBUG  # the error raised from it repeats the message
            project_logger.log(level, "%s", message)

        def text(self) -> str:
            return "\n".join(self.errors)

    return Logger()
