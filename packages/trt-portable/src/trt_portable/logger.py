"""Loggers: TensorRT's `ILogger` interface, the printing `Logger`, and the safe way to call either."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import ClassVar, Final, TypeAlias

from trt_portable.arguments import instance_of
from trt_portable.context_managers import ContextManaged
from trt_portable.enums import PybindEnum


class Severity(PybindEnum):
    """How grave a message is; smaller is graver."""

    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


_PREFIX: Final = {
    Severity.INTERNAL_ERROR: "F",
    Severity.ERROR: "E",
    Severity.WARNING: "W",
    Severity.INFO: "I",
    Severity.VERBOSE: "V",
}


class ILogger(ContextManaged):
    """Interface of a message sink; subclass it, call ``ILogger.__init__`` and define `log`."""

    Severity: TypeAlias = Severity
    INTERNAL_ERROR: ClassVar = Severity.INTERNAL_ERROR
    ERROR: ClassVar = Severity.ERROR
    WARNING: ClassVar = Severity.WARNING
    INFO: ClassVar = Severity.INFO
    VERBOSE: ClassVar = Severity.VERBOSE

    def __init__(self) -> None:
        pass

    def log(self, severity: Severity, msg: str) -> None:
        """Receives one message.

        Raises:
            NotImplementedError: A subclass did not define it.
        """
        raise NotImplementedError("a subclass of ILogger must define log(severity, msg)")


class Logger(ILogger):
    """Prints messages that are at least as grave as `min_severity`: errors to stderr, others to stdout."""

    def __init__(self, min_severity: Severity = Severity.WARNING) -> None:
        super().__init__()
        self.min_severity = min_severity

    @property
    def min_severity(self) -> Severity:
        """The least grave messages that are printed."""
        return self._min_severity

    @min_severity.setter
    def min_severity(self, min_severity: Severity) -> None:
        self._min_severity = instance_of(Severity, min_severity, "min_severity")

    def log(self, severity: Severity, msg: str) -> None:
        """Prints the message when it is grave enough."""
        if int(instance_of(Severity, severity, "severity")) > int(self._min_severity):
            return
        stamp = time.strftime("%m/%d/%Y-%H:%M:%S")
        stream = sys.stderr if int(severity) <= int(Severity.ERROR) else sys.stdout
        print(f"[{stamp}] [TRT] [{_PREFIX[severity]}] {msg}", file=stream)


def emit(logger: ILogger | None, severity: Severity, message: str) -> None:
    """Hands a message to a logger. What the application's `log` raises never leaves this function."""
    if logger is None:
        return
    try:
        logger.log(severity, message)
    except Exception as error:
        report_callback_failure("log()", error)


def report_callback_failure(where: str, error: Exception) -> None:
    """Says on stderr that an application's callback raised, as TensorRT's bindings do."""
    with contextlib.suppress(OSError, ValueError):
        print(f"[ERROR] Exception caught in {where}: {error!r}", file=sys.stderr)  # noqa: T201 - the logger may be what failed
