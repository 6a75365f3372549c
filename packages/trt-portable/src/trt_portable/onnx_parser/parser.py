"""`OnnxParser`: a model in ONNX's format becomes layers of a network; `OnnxParserRefitter`: weights of an engine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trt_core.files.opening import opened
from trt_portable.builder.config import IBuilderConfig
from trt_portable.enums import ErrorCode, OnnxParserFlag
from trt_portable.errors import NetworkError, strict
from trt_portable.network.network import INetworkDefinition
from trt_portable.onnx_parser.diagnostics import ParserError, Unsupported, code_and_reason, require_onnx
from trt_portable.onnx_parser.graph_walk import GraphImporter
from trt_portable.onnx_parser.initializers import ConstantReader, Initializer
from trt_portable.onnx_parser.registry import find_converter, supported_operators
from trt_portable.plugin.interfaces import NodeIndices
from trt_portable.pybind import ContextManaged, Sealed, Setting, instance_of, to_integer, to_text
from trt_portable.reporting import ILogger, Reporter
from trt_portable.runtime.refitter import Refitter

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

    from trt_portable.network.layer import ITensor


_LARGEST_FILE: Final = (1 << 31) - 1
"""Bytes of a model itself; what is larger keeps its weights in files beside it."""


class _ModelReader(ContextManaged, Sealed):
    """What reading a model into a network and into a refitter share: the model that is kept, its bytes, and errors.

    Attributes:
        _kept_model: What `load_model_proto` read, and the folder of its external data.
        _given: Bytes of initializers by name.
    """

    _reporter: Reporter
    _errors: list[ParserError]
    _kept_model: tuple[ModelProto, Path | None] | None
    _given: dict[str, bytes | memoryview]

    def _start(self, reporter: Reporter) -> None:
        require_onnx()
        self._reporter = reporter
        self._errors = []
        self._kept_model = None
        self._given = {}

    def load_model_proto(self, model: bytes | bytearray | memoryview, path: str | None = None) -> bool:
        """Keeps a model for what reads it later, so that `load_initializer` can add what it does not hold itself."""
        self._kept_model = self._load(model, path)
        self._given.clear()
        return self._kept_model is not None

    def load_initializer(self, name: str, data: int, size: int) -> bool:
        """Gives an initializer of the model that `load_model_proto` keeps its bytes.

        Args:
            name: Its name.
            data: The address of the bytes, which are copied.
            size: How many there are.
        """
        label, address, count = to_text(name), to_integer(data), to_integer(size)
        if count < 0 or address == 0 or not self._expects(label):
            self._fail(ErrorCode.INVALID_VALUE, f"no model is kept that has an initializer {label!r}")
            return False
        self._given[label] = ctypes.string_at(address, count)
        return True

    def _expects(self, name: str) -> bool:
        """Whether bytes of an initializer are of use."""
        return self._kept_model is not None

    def _taken(self) -> tuple[ModelProto, Path | None] | None:
        """The model that is kept, which it is no longer; None, with an error, if there is none."""
        kept, self._kept_model = self._kept_model, None
        if kept is None:
            self._fail(ErrorCode.INVALID_VALUE, "load_model_proto has kept no model")
        return kept

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

    def _note(self, error: ParserError) -> None:
        self._errors.append(error)
        self._reporter.error(type(self).__name__, str(error))

    def _fail(self, code: ErrorCode, reason: str, cause: BaseException | None = None) -> None:
        self._note(ParserError(code, reason, cause=cause))

    def _load(self, model: Any, path: str | None) -> tuple[ModelProto, Path | None] | None:
        """A model from its bytes, and the folder of its external data; None, with an error, where it is none."""
        from onnx import ModelProto

        view = memoryview(model)
        if view.nbytes > _LARGEST_FILE:
            reason = f"the model has {view.nbytes:,} bytes; 2 GiB is the most"
            self._fail(ErrorCode.MODEL_DESERIALIZE_FAILED, reason)
            return None
        proto = ModelProto()
        try:
            proto.ParseFromString(view.tobytes())
        except Exception as error:  # the class that it has is of another package
            reason = f"the bytes are no model in ONNX's format: {error}"
            self._fail(ErrorCode.MODEL_DESERIALIZE_FAILED, reason, error)
            return None
        damaged = _damaged_text(proto)
        if damaged is not None:
            self._fail(ErrorCode.MODEL_DESERIALIZE_FAILED, damaged)
            return None
        return proto, None if path is None else Path(path).absolute().parent

    def _read_file(self, path: str) -> bytes | None:
        """The bytes of a model's file; None, with an error, where they cannot be read."""
        try:
            file = Path(path)
            if not file.is_file():
                raise Unsupported(f"{path!r} is no file", ErrorCode.MODEL_DESERIALIZE_FAILED)
            if file.stat().st_size > _LARGEST_FILE:
                raise Unsupported(f"{path!r} has more than 2 GiB", ErrorCode.MODEL_DESERIALIZE_FAILED)
            with opened(file) as stream:
                return stream.read()
        except (OSError, Unsupported) as error:
            code, reason = code_and_reason(error)
            self._fail(ErrorCode.MODEL_DESERIALIZE_FAILED if isinstance(error, OSError) else code, reason, error)
            return None


_UNREAD: Final = ("doc_string", "metadata_props", "producer_name", "producer_version", "quantization_annotation")
"""Fields of messages that tell nothing of what a model computes."""


def _damaged_text(model: ModelProto) -> str | None:
    """What is wrong with the first name in a model that is no text; None where all are.

    Protocol buffers give such a name as bytes, and only when it is asked for.
    """
    pending: list[Any] = [model]
    while pending:
        message = pending.pop()
        for field, value in message.ListFields():
            if field.name in _UNREAD or field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
                continue
            parts = value if field.is_repeated else [value]
            if field.type == field.TYPE_MESSAGE:
                pending.extend(parts)
                continue
            broken = next((part for part in parts if isinstance(part, bytes)), None)
            if broken is not None:
                return (
                    f"{message.DESCRIPTOR.name}.{field.name} is {broken[:80]!r}, which is no text in UTF-8; write the "
                    "model again with another name"
                )
    return None


class OnnxParser(_ModelReader):
    """Reads a model in ONNX's format into a network.

    What it has to say about a model is in its errors (`num_errors`, `get_error`), and in the logger.

    Args:
        network: Receives the layers; it must be empty.
        logger: Receives errors and warnings.

    Raises:
        TypeError: An argument of the wrong class.
        MissingPackage: The `onnx` package is not installed.
    """

    flags = Setting(to_integer, 1 << int(OnnxParserFlag.NATIVE_INSTANCENORM), "Bits ``1 << int(OnnxParserFlag)``.")

    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        instance_of(INetworkDefinition, network, "network")
        instance_of(ILogger, logger, "logger")
        self._start(Reporter(logger, network._reporter))
        self._network = network
        self._subgraphs: list[tuple[list[int], bool]] = []
        self._made: dict[str, list[ITensor | None]] = {}
        self._expected: frozenset[str] = frozenset()

    # --- parsing ---------------------------------------------------------------------------------

    def load_model_proto(self, model: bytes | bytearray | memoryview, path: str | None = None) -> bool:
        """Keeps a model for what reads it later, so that `load_initializer` can add what it does not hold itself."""
        loaded = super().load_model_proto(model, path)
        initializers = [] if self._kept_model is None else self._kept_model[0].graph.initializer
        self._expected = frozenset(proto.name for proto in initializers)
        return loaded

    def parse(self, model: bytes | bytearray | memoryview, path: str | None = None) -> bool:
        """Reads a model from memory.

        Args:
            model: A serialized ``ModelProto``.
            path: The file that it came from; external data are read from its folder only.

        Returns:
            Whether the network has the whole model; else the errors tell why not.
        """
        loaded = self._load(model, path)
        return loaded is not None and self._import(*loaded)

    def parse_from_file(self, model: str) -> bool:
        """Reads a model from a file, external data from the file's folder."""
        data = self._read_file(to_text(str(model)))
        return data is not None and self.parse(data, str(model))

    def parse_model_proto(self) -> bool:
        """Reads the model that `load_model_proto` keeps."""
        kept = self._taken()
        return kept is not None and self._import(*kept)

    def _expects(self, name: str) -> bool:
        return self._kept_model is not None and name in self._expected

    def _import(self, model: ModelProto, folder: Path | None) -> bool:
        if self._network.num_layers or self._network.num_inputs:
            self._fail(ErrorCode.INVALID_VALUE, "the network is not empty")
            return False
        importer = GraphImporter(self._network, model, folder, self._given, self._reporter.warning)
        importer.run()
        self._made = importer.made
        for error in importer.errors:
            self._note(error)
        return not importer.errors

    # --- support ---------------------------------------------------------------------------------

    def supports_model_v2(self, model: bytes | bytearray | memoryview, path: str | None = None) -> bool:
        """Tries every node of a model on its own, whatever became of those before it.

        The reasons are in the errors; `num_subgraphs` and what belongs to it tell which nodes lie together.

        Returns:
            Whether the whole model is supported.
        """
        self._subgraphs = []
        loaded = self._load(model, path)
        if loaded is None:
            return False
        scratch = INetworkDefinition(self._reporter.child())
        importer = GraphImporter(scratch, *loaded, warn=self._reporter.warning, keep_going=True)
        importer.run()
        for error in importer.errors:
            self._note(error)
        whole = [error for error in importer.errors if error.node() < 0]
        self._subgraphs = _runs(len(loaded[0].graph.node), importer.refused, bool(whole))
        return not importer.errors

    def supports_operator(self, op_name: str) -> bool:
        """Whether an operator of ONNX has a converter; a node may still be refused for its types or attributes."""
        name = to_text(op_name)
        return name in supported_operators() or find_converter("", name, 1 << 30) is not None

    @property
    def num_subgraphs(self) -> int:
        """How many runs of nodes, supported and not, the model of the last `supports_model_v2` has."""
        return len(self._subgraphs)

    def is_subgraph_supported(self, index: int) -> bool:
        """Whether the nodes of a run are supported.

        Raises:
            IndexError: There is no such run.
        """
        return self._subgraphs[to_integer(index)][1]

    def get_subgraph_nodes(self, index: int) -> NodeIndices:
        """The indices of the nodes of a run.

        Raises:
            IndexError: There is no such run.
        """
        return NodeIndices(self._subgraphs[to_integer(index)][0])

    # --- what was found --------------------------------------------------------------------------

    def get_layer_output_tensor(self, name: str, i: int) -> ITensor | None:
        """An output of a node of the model, by the node's name; None if it has none."""
        outputs, index = self._made.get(to_text(name), []), to_integer(i)
        return outputs[index] if 0 <= index < len(outputs) else None

    def get_used_vc_plugin_libraries(self) -> list[str]:
        """Libraries of plugins that a version-compatible engine needs: none."""
        return []

    # --- options ---------------------------------------------------------------------------------

    def set_flag(self, flag: OnnxParserFlag) -> None:
        """Sets a flag; none changes what the parser does here."""
        self.flags |= 1 << int(instance_of(OnnxParserFlag, flag, "flag"))

    def clear_flag(self, flag: OnnxParserFlag) -> None:
        """Clears a flag."""
        self.flags &= ~(1 << int(instance_of(OnnxParserFlag, flag, "flag")))

    def get_flag(self, flag: OnnxParserFlag) -> bool:
        """Whether a flag is set."""
        return bool(self.flags >> int(instance_of(OnnxParserFlag, flag, "flag")) & 1)

    def set_builder_config(self, builder_config: IBuilderConfig) -> bool:
        """Tells what the network will be built with; it decides nothing here."""
        instance_of(IBuilderConfig, builder_config, "builder_config")
        return True


def _runs(count: int, refused: set[int], all_refused: bool) -> list[tuple[list[int], bool]]:
    """Neighbouring nodes that are all supported, or all not."""
    runs: list[tuple[list[int], bool]] = []
    for index in range(count):
        supported = index not in refused and not all_refused
        if not runs or runs[-1][1] is not supported:
            runs.append(([], supported))
        runs[-1][0].append(index)
    return runs


def get_nv_onnx_parser_version() -> int:
    """The version of the parser's interface."""
    return 100


class OnnxParserRefitter(_ModelReader):
    """Hands the constants of a model to a `Refitter`, by their names; `refit_cuda_engine` is still to be called.

    Args:
        refitter: Of an engine whose network an `OnnxParser` made.
        logger: Receives errors.

    Raises:
        TypeError: An argument of the wrong class.
        MissingPackage: The `onnx` package is not installed.
    """

    def __init__(self, refitter: Refitter, logger: ILogger) -> None:
        instance_of(Refitter, refitter, "refitter")
        instance_of(ILogger, logger, "logger")
        self._start(Reporter(logger))
        self._refitter = refitter
        self._kept: list[Initializer] = []

    def refit_from_bytes(self, model: bytes | bytearray | memoryview, path: str | None = None) -> bool:
        """Hands over the constants of a model in memory.

        Args:
            model: A serialized ``ModelProto`` with the same nodes as the one that the engine was built from.
            path: The file that it came from; external data are read from its folder only.

        Returns:
            Whether every weight of the engine that has a name was found.
        """
        loaded = self._load(model, path)
        return loaded is not None and self._refit(*loaded)

    def refit_from_file(self, model: str) -> bool:
        """Hands over the constants of a model's file."""
        data = self._read_file(to_text(str(model)))
        return data is not None and self.refit_from_bytes(data, str(model))

    def refit_model_proto(self) -> bool:
        """Hands over the constants of the model that is kept."""
        kept = self._taken()
        return kept is not None and self._refit(*kept)

    def _refit(self, model: ModelProto, folder: Path | None) -> bool:
        wanted = set(self._refitter.get_all_weights())
        unnamed = {f"{layer} {role.name}" for layer, role in zip(*self._refitter.get_all(), strict=True)}
        try:
            for constant in _constants(model.graph, ConstantReader(folder, self._given), 0):
                if constant.name in wanted:
                    self._hand_over(constant)
                    wanted.discard(constant.name)
        except Exception as error:
            code, reason = code_and_reason(error)
            self._fail(ErrorCode.REFIT_FAILED if isinstance(error, NetworkError) else code, reason, error)
            return False
        missing = wanted - unnamed  # the others are numbers of the parser's own, which no model has
        if missing:
            some = ", ".join(sorted(missing)[:5])
            self._fail(ErrorCode.REFIT_FAILED, f"the model has no constants {some}")
        return not missing

    def _hand_over(self, constant: Initializer) -> None:
        with strict():
            if not self._refitter.set_named_weights(constant.name, constant.weights()):
                raise Unsupported(f"the engine refuses the weights {constant.name!r}", ErrorCode.REFIT_FAILED)
        self._kept.append(constant)


def _constants(graph: GraphProto, reader: ConstantReader, depth: int) -> Iterator[Initializer]:
    """The initializers and Constant nodes of a graph and of the graphs inside of its nodes."""
    if depth > 64:
        raise Unsupported("graphs are nested too deeply", ErrorCode.INVALID_GRAPH)
    for proto in graph.initializer:
        yield reader.read(proto)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                constant = ConstantReader().read(attribute.t)
                constant.name = constant.name or node.name
                yield constant
            if attribute.type == attribute.GRAPH:
                yield from _constants(attribute.g, reader, depth + 1)
