"""`OnnxParserRefitter`: weights of an engine from another version of its model."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_portable.enums import ErrorCode
from trt_portable.errors import NetworkError, strict
from trt_portable.onnx_parser.diagnostics import ParserError, Unsupported, code_and_reason, require_onnx
from trt_portable.onnx_parser.initializers import Initializer, read_initializer
from trt_portable.onnx_parser.parser import load_model, read_model_file
from trt_portable.pybind import ContextManaged, Sealed, to_integer, to_text
from trt_portable.reporting import ILogger, Reporter
from trt_portable.runtime.refitter import Refitter

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto


class OnnxParserRefitter(ContextManaged, Sealed):
    """Hands the constants of a model to a `Refitter`, by their names; `refit_cuda_engine` is still to be called.

    Args:
        refitter: Of an engine whose network an `OnnxParser` made.
        logger: Receives errors.

    Raises:
        TypeError: An argument of the wrong class.
        MissingPackage: The `onnx` package is not installed.
    """

    def __init__(self, refitter: Refitter, logger: ILogger) -> None:
        if not isinstance(refitter, Refitter):
            raise TypeError(f"refitter must be Refitter, not {type(refitter).__name__}")
        if not isinstance(logger, ILogger):
            raise TypeError(f"logger must be ILogger, not {type(logger).__name__}")
        require_onnx()
        self._refitter = refitter
        self._reporter = Reporter(logger)
        self._errors: list[ParserError] = []
        self._pending: tuple[ModelProto, Path | None] | None = None
        self._given: dict[str, bytes | memoryview] = {}
        self._kept: list[Initializer] = []

    def refit_from_bytes(self, model: bytes | bytearray | memoryview, path: str | None = None) -> bool:
        """Hands over the constants of a model in memory.

        Args:
            model: A serialized ``ModelProto`` with the same nodes as the one that the engine was built from.
            path: The file that it came from; external data are read from its folder only.

        Returns:
            Whether every weight of the engine that has a name was found.
        """
        loaded = load_model(model, path, self._fail)
        return loaded is not None and self._refit(*loaded)

    def refit_from_file(self, model: str) -> bool:
        """Hands over the constants of a model's file."""
        data = read_model_file(to_text(str(model)), self._fail)
        return data is not None and self.refit_from_bytes(data, str(model))

    def load_model_proto(self, model: bytes | bytearray | memoryview, path: str | None = None) -> bool:
        """Keeps a model for `refit_model_proto`."""
        self._pending = load_model(model, path, self._fail)
        self._given.clear()
        return self._pending is not None

    def load_initializer(self, name: str, data: int, size: int) -> bool:
        """Gives an initializer of the model that is kept its bytes, which are copied."""
        label, address, count = to_text(name), to_integer(data), to_integer(size)
        if self._pending is None or address == 0 or count < 0:
            self._fail(ErrorCode.INVALID_VALUE, f"no model is kept that has an initializer {label!r}", None)
            return False
        self._given[label] = ctypes.string_at(address, count)
        return True

    def refit_model_proto(self) -> bool:
        """Hands over the constants of the model that is kept."""
        if self._pending is None:
            self._fail(ErrorCode.INVALID_VALUE, "load_model_proto has kept no model", None)
            return False
        pending, self._pending = self._pending, None
        return self._refit(*pending)

    def _refit(self, model: ModelProto, folder: Path | None) -> bool:
        wanted = set(self._refitter.get_all_weights())
        try:
            for constant in _constants(model.graph, folder, self._given, 0):
                if constant.name in wanted:
                    self._hand_over(constant)
                    wanted.discard(constant.name)
        except Exception as error:
            code, reason = code_and_reason(error)
            self._fail(ErrorCode.REFIT_FAILED if isinstance(error, NetworkError) else code, reason, error)
            return False
        if wanted:
            some = ", ".join(sorted(wanted)[:5])
            self._fail(ErrorCode.REFIT_FAILED, f"the model has no constants {some}", None)
        return not wanted

    def _hand_over(self, constant: Initializer) -> None:
        with strict():
            if not self._refitter.set_named_weights(constant.name, constant.weights()):
                raise Unsupported(f"the engine refuses the weights {constant.name!r}", ErrorCode.REFIT_FAILED)
        self._kept.append(constant)

    @property
    def num_errors(self) -> int:
        """The number of errors since `clear_errors`."""
        return len(self._errors)

    def get_error(self, index: int) -> ParserError | None:
        """An error; None if there is none of that index."""
        position = to_integer(index)
        return self._errors[position] if 0 <= position < len(self._errors) else None

    def clear_errors(self) -> None:
        """Forgets all errors."""
        self._errors.clear()

    def _fail(self, code: ErrorCode, reason: str, cause: BaseException | None) -> None:
        error = ParserError(code, reason, cause=cause)
        self._errors.append(error)
        self._reporter.error("OnnxParserRefitter", str(error))


def _constants(graph: GraphProto, folder: Path | None, given: Any, depth: int) -> Iterator[Initializer]:
    """The initializers and Constant nodes of a graph and of the graphs inside of its nodes."""
    if depth > 64:
        raise Unsupported("graphs are nested too deeply", ErrorCode.INVALID_GRAPH)
    for proto in graph.initializer:
        yield read_initializer(proto, folder, given)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constant = read_initializer(attribute.t, None, {})
                constant.name = constant.name or node.name
                yield constant
            if attribute.type == attribute.GRAPH:
                yield from _constants(attribute.g, folder, given, depth + 1)
