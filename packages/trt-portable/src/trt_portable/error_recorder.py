"""Where errors go: the application's `IErrorRecorder`, else the logger, else (strict) the caller."""

from __future__ import annotations

from typing import ClassVar

from trt_portable.enums import ErrorCodeTRT
from trt_portable.errors import NetworkError, Refusal, is_strict
from trt_portable.logger import ILogger, Severity, emit, report_callback_failure

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
        if recorder is not None and not isinstance(recorder, IErrorRecorder):
            raise TypeError(f"error_recorder must be IErrorRecorder, not {type(recorder).__name__}")
        self._recorder = recorder

    def child(self) -> Reporter:
        """The channel of an object created by the owner of this one."""
        return Reporter(self.logger, self)

    def error(self, subject: str, rule: str, code: ErrorCodeTRT = ErrorCodeTRT.INVALID_ARGUMENT) -> None:
        """Reports a refusal to recorder or logger.

        Args:
            subject: Name of the layer, tensor or operation.
            rule: The rule that it broke.
            code: TensorRT's error code for it.

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
        kind = "Internal Error" if code in _INTERNAL_CODES else "API Usage Error"
        severity = Severity.INTERNAL_ERROR if code in _INTERNAL_CODES else Severity.ERROR
        emit(self.logger, severity, f"Error Code {int(code)}: {kind} ({description})")

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
