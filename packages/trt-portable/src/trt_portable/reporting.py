"""Where messages and errors go: loggers, error recorders, and what tells either."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import ClassVar, Final, TypeAlias

from trt_core.log import note_error
from trt_portable.enums import ErrorCodeTRT, PybindEnum
from trt_portable.errors import NetworkError, Refusal, is_strict
from trt_portable.pybind import ContextManaged, instance_of, one_of


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

    min_severity = one_of(Severity.WARNING, "The least grave messages that are printed.")

    def __init__(self, min_severity: Severity = Severity.WARNING) -> None:
        super().__init__()
        self.min_severity = min_severity

    def log(self, severity: Severity, msg: str) -> None:
        """Prints the message when it is grave enough."""
        if int(instance_of(Severity, severity, "severity")) > int(self.min_severity):
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


_INTERNAL_CODES = frozenset({ErrorCodeTRT.INTERNAL_ERROR, ErrorCodeTRT.UNSPECIFIED_ERROR})


class IErrorRecorder:
    """Interface of a store for errors; subclass it, call ``IErrorRecorder.__init__``, define the methods."""

    MAX_DESC_LENGTH: ClassVar[int] = 127

    def __init__(self) -> None:
        pass

    def num_errors(self) -> int:
        """Number of errors held."""
        raise NotImplementedError("a subclass of IErrorRecorder must define num_errors()")

    def get_error_code(self, arg0: int) -> ErrorCodeTRT:
        """Code of the error at an index."""
        raise NotImplementedError("a subclass of IErrorRecorder must define get_error_code()")

    def get_error_desc(self, arg0: int) -> str:
        """Description of the error at an index."""
        raise NotImplementedError("a subclass of IErrorRecorder must define get_error_desc()")

    def has_overflowed(self) -> bool:
        """Whether errors were dropped for lack of room."""
        raise NotImplementedError("a subclass of IErrorRecorder must define has_overflowed()")

    def clear(self) -> None:
        """Forgets all errors."""
        raise NotImplementedError("a subclass of IErrorRecorder must define clear()")

    def report_error(self, arg0: ErrorCodeTRT, arg1: str) -> bool:
        """Stores an error; True when the error is fatal."""
        raise NotImplementedError("a subclass of IErrorRecorder must define report_error()")


class Reporter:
    """The error channel of one API object; a child inherits its parent's recorder.

    Args:
        logger: Receives every message.
        parent: The channel of the object that created this one.
    """

    __slots__ = ("_parent", "_recorder", "logger")

    def __init__(self, logger: ILogger | None, parent: Reporter | None = None) -> None:
        self.logger = logger
        self._parent = parent
        self._recorder: IErrorRecorder | None = None

    @property
    def recorder(self) -> IErrorRecorder | None:
        """The recorder set here, or the nearest one of the parents."""
        if self._recorder is not None or self._parent is None:
            return self._recorder
        return self._parent.recorder

    @recorder.setter
    def recorder(self, recorder: IErrorRecorder | None) -> None:
        if recorder is not None:
            instance_of(IErrorRecorder, recorder, "error_recorder")
        self._recorder = recorder

    def child(self) -> Reporter:
        """The channel of an object created by the owner of this one."""
        return Reporter(self.logger, self)

    def error(
        self, subject: str, rule: str, code: ErrorCodeTRT = ErrorCodeTRT.INVALID_ARGUMENT, *, is_known: bool = False
    ) -> None:
        """Reports a refusal to the recorder or, where there is none, to the logger.

        Args:
            subject: Name of the layer, tensor or operation.
            rule: The rule that it broke.
            code: TensorRT's error code for it.
            is_known: Whether the logger was told before, and is told of a repetition only where it wants all there is.

        Raises:
            NetworkError: Strict mode is on.
        """
        if is_strict():
            raise NetworkError(subject, rule, code)
        description = f"{subject}: {rule}" if subject else rule
        recorder = self.recorder
        if recorder is not None:
            try:
                recorder.report_error(code, description[: IErrorRecorder.MAX_DESC_LENGTH])
            except Exception as error:
                report_callback_failure("report_error()", error)
            return
        kind = "Internal Error" if code in _INTERNAL_CODES else "API Usage Error"
        severity = Severity.INTERNAL_ERROR if code in _INTERNAL_CODES else Severity.ERROR
        message = f"Error Code {int(code)}: {kind} ({description})"
        if is_known:
            note_error(message)
        emit(self.logger, Severity.VERBOSE if is_known else severity, message)

    def refuse(self, subject: str, refusal: Refusal) -> None:
        """Reports a `Refusal` under the name of what was refused.

        Raises:
            NetworkError: Strict mode is on.
        """
        self.error(subject, refusal.rule, refusal.code)

    def warning(self, message: str) -> None:
        """Logs a warning."""
        emit(self.logger, Severity.WARNING, message)

    def info(self, message: str) -> None:
        """Logs an information."""
        emit(self.logger, Severity.INFO, message)

    def verbose(self, message: str) -> None:
        """Logs a detail."""
        emit(self.logger, Severity.VERBOSE, message)


class RecordsErrors:
    """An object that tells its errors to a recorder of the application."""

    _reporter: Reporter

    @property
    def error_recorder(self) -> IErrorRecorder | None:
        """Receives the errors of this object and of what it makes; by default the recorder of what made it."""
        return self._reporter.recorder

    @error_recorder.setter
    def error_recorder(self, recorder: IErrorRecorder | None) -> None:
        self._reporter.recorder = recorder
