"""The logger of the whole stack, and silence for those of others."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from trt_core.provider import provider_module
from trt_core.temporary import undone
from trt_core.wording import message_of

logger = logging.getLogger("torch_tensorrt")
"""Its name is the one that users' scripts already configure."""


def _spell_out(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    shown = message_of(text)
    if shown != text:
        record.msg, record.args = shown, None
    return True


logger.addFilter(_spell_out)  # names from files command no terminal


@contextlib.contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Keeps another logger from saying what is an answer here, and no fault.

    Args:
        name: The logger's.
    """

    def drop(record: logging.LogRecord) -> bool:
        return False

    other = logging.getLogger(name)
    with undone(lambda: other.removeFilter(drop)):
        other.addFilter(drop)
        yield


_KEPT: Final = 8


class _Messages(threading.local):
    """Errors that the provider noted in this thread since they were last taken."""

    def __init__(self) -> None:
        self.errors: list[str] = []


_messages = _Messages()


def provider_logger() -> Any:
    """Returns the `ILogger` for the provider in use; one per provider, as TensorRT wants it."""
    return _make_logger(provider_module())


def forget_errors() -> None:
    """Forgets what the provider logged in this thread."""
    if _messages.errors:
        _messages.errors.clear()


def note_error(text: str) -> None:
    """Notes an error of the provider that is not logged, since it was before."""
    if len(_messages.errors) < _KEPT:
        _messages.errors.append(text)


def take_errors() -> str:
    """Returns the errors that the provider noted in this thread, in one text, and forgets them."""
    text = "; ".join(_messages.errors)
    _messages.errors.clear()
    return text


@functools.lru_cache(maxsize=2)
def _make_logger(trt: ModuleType) -> Any:
    severity = trt.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.ERROR,
        severity.ERROR: logging.ERROR,
        severity.WARNING: logging.WARNING,
        severity.INFO: logging.INFO,
        severity.VERBOSE: logging.DEBUG,
    }

    class ProviderLogger(trt.ILogger):  # type: ignore[misc, name-defined]  # the base is known at run time
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            level = levels.get(severity, logging.DEBUG)
            if level == logging.ERROR:
                note_error(msg)
            logger.log(level, "%s: %s", trt.__name__, msg, extra={"provider": trt.__name__})

    return ProviderLogger()
