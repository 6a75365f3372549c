"""What the parser has to say about a model: `ParserError`, and the exception behind each."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trt_core.wording import message_of
from trt_portable.enums import ErrorCode
from trt_portable.errors import NetworkError, PortableError, Refusal

_HERE: Final = Path(__file__).parent


class MissingPackage(PortableError, ImportError):
    """The `onnx` package, which reads models, is not installed."""


def require_onnx() -> None:
    """Imports the `onnx` package.

    Raises:
        MissingPackage: It is not installed.
    """
    try:
        import onnx as _  # noqa: F401  # the first use of the extra
    except ImportError as error:
        raise MissingPackage(
            "Models in ONNX's format are read with the onnx package, which is not installed: "
            "python -m pip install 'trt-portable[onnx]'"
        ) from error


class Unsupported(PortableError):
    """A model, or one of its nodes, that cannot become a network.

    Args:
        reason: What was found and what is needed instead.
        code: The parser's error code.
    """

    def __init__(self, reason: str, code: ErrorCode = ErrorCode.UNSUPPORTED_NODE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class ParserError:
    """One thing that is wrong with a model, and where.

    Args:
        code: The kind of error.
        desc: What is wrong; of a long line, its beginning.
        node: Index of the node in the model's graph; -1 if it is no node's fault.
        node_name: Name of the innermost node.
        node_operator: Its operator.
        stack: Names of the local functions that lead to it, the outermost first.
        cause: The exception, which tells the line that refused.
    """

    def __init__(
        self,
        code: ErrorCode,
        desc: str,
        node: int = -1,
        node_name: str = "",
        node_operator: str = "",
        stack: Sequence[str] = (),
        cause: BaseException | None = None,
    ) -> None:
        self._code = code
        self._desc = message_of(desc)
        self._node = node
        self._node_name = node_name
        self._node_operator = node_operator
        self._stack = tuple(stack)
        self._file, self._line, self._func = _origin(cause)

    def code(self) -> ErrorCode:
        """The kind of error."""
        return self._code

    def desc(self) -> str:
        """What is wrong."""
        return self._desc

    def file(self) -> str:
        """The parser's source file that found it."""
        return self._file

    def line(self) -> int:
        """The line in that file."""
        return self._line

    def func(self) -> str:
        """The function in that file."""
        return self._func

    def node(self) -> int:
        """Index of the node in the model's graph, -1 if it is no node's fault."""
        return self._node

    def node_name(self) -> str:
        """Name of the node; empty if it has none."""
        return self._node_name

    def node_operator(self) -> str:
        """Operator of the node."""
        return self._node_operator

    def local_function_stack(self) -> list[str]:
        """Names of the local functions that lead to the node, the outermost first."""
        return list(self._stack)

    def local_function_stack_size(self) -> int:
        """Number of local functions that lead to the node."""
        return len(self._stack)

    def __str__(self) -> str:
        place = "" if self._node < 0 else f"node {self._node} ({self._node_name or 'unnamed'}, {self._node_operator}): "
        return message_of(f"{self._code.name}: {place}{self._desc}")

    def __repr__(self) -> str:
        return f"<ParserError {self}>"


def code_and_reason(error: BaseException) -> tuple[ErrorCode, str]:
    """The parser's code for an exception, and what to tell of it."""
    if isinstance(error, Unsupported):
        return error.code, error.reason
    if isinstance(error, NetworkError):
        return ErrorCode.UNSUPPORTED_NODE, str(error)
    if isinstance(error, Refusal):
        return ErrorCode.UNSUPPORTED_NODE, error.rule
    if isinstance(error, (MemoryError, OverflowError)):
        told = f" ({error})" if str(error) else ""
        return ErrorCode.MEM_ALLOC_FAILED, f"what the model asks for here takes more memory than there is{told}"
    if isinstance(error, RecursionError):
        return ErrorCode.INVALID_GRAPH, "the model is nested too deeply"
    return ErrorCode.INTERNAL_ERROR, f"{type(error).__name__}: {error}"


def _origin(cause: BaseException | None) -> tuple[str, int, str]:
    """File, line and function of the parser in which an exception came up."""
    frames = [] if cause is None else traceback.extract_tb(cause.__traceback__)
    for frame in reversed(frames):
        if Path(frame.filename).is_relative_to(_HERE):
            return frame.filename, frame.lineno or 0, frame.name
    return "", 0, ""
