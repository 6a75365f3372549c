"""The walk through a model: names and scopes, local functions, graphs inside of nodes, plugins of the application."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trt_portable.dims import MAX_RANK
from trt_portable.enums import DataType, ErrorCode, PluginFieldType, TensorRTPhase
from trt_portable.errors import strict
from trt_portable.network.layer import NAME_LIMIT, ITensor
from trt_portable.network.network import INetworkDefinition
from trt_portable.onnx_parser.diagnostics import ParserError, Unsupported, code_and_reason
from trt_portable.onnx_parser.initializers import TYPES, UINT8, ConstantReader, Initializer, dtype_of
from trt_portable.onnx_parser.registry import Converter, UseDefinition, find_converter
from trt_portable.onnx_parser.writer import NetworkWriter, NodeFacts, Operand
from trt_portable.plugin.interfaces import PluginField, PluginFieldCollection, get_plugin_registry

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


MAX_DEPTH: Final = 64
"""Graphs and functions inside of each other."""
MAX_NODES: Final = 1_000_000
"""Nodes in all, those of a function counted each time that it is called."""
MAX_OPERANDS: Final = 8_000_000
"""Inputs of nodes in all, counted so."""
_FUNCTIONS: Final = 100_000
"""Nodes of functions, counted so, that any model may have; more of them are at most `_CALLS` for each node in it."""
_CALLS: Final = 16
_FUNCTION_BYTES: Final = 1 << 30
"""Bytes of nodes of functions, counted so."""
NEWEST_OPSET: Final = 24
"""Operators of newer opsets are read as this one defines them where ONNX has not changed them since."""

_MORE_TYPES_ONLY: Final = frozenset(
    [
        *("Cast", "CastLike", "Compress", "Constant", "ConstantOfShape", "DequantizeLinear", "Einsum", "Flatten"),
        *("Identity", "If", "Loop", "OneHot", "Pad", "QuantizeLinear", "Range", "ReduceLogSum", "ReduceLogSumExp"),
        *("Reshape", "ReverseSequence", "Scan", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze", "DepthToSpace"),
    ]
)
"""Operators whose newer definitions differ in the types that they take, and not in their meaning."""

_BEYOND_BYTES: Final = frozenset(["Add", "BitwiseNot", "Mul", "Sub"])
"""Operators that make of bytes, which are int32 in a network, what is none; the lowest eight bits are what ONNX has."""

_DOMAINS: Final = {"ai.onnx": ""}


class Scope:
    """The values of one graph by name; those of the graphs around it are seen too.

    Args:
        parent: The scope around; None for the model's graph and for functions.
        enter: Makes what is inside of a value from around; by default nothing.
    """

    def __init__(self, parent: Scope | None = None, enter: Callable[[ITensor], ITensor] | None = None) -> None:
        self._parent = parent
        self._enter = enter
        self._values: dict[str, Operand] = {}
        self._entered: dict[int, ITensor] = {}

    def __setitem__(self, name: str, value: Operand) -> None:
        self._values[name] = value

    def find(self, name: str) -> Operand | None:
        """The value of a name; None if nothing has it."""
        found = self._values.get(name)
        if found is not None or self._parent is None:
            return found
        outer = self._parent.find(name)
        if self._enter is None or not isinstance(outer, ITensor):
            return outer
        if id(outer) not in self._entered:
            self._entered[id(outer)] = self._enter(outer)
        return self._entered[id(outer)]

    def __getitem__(self, name: str) -> Operand:
        found = self.find(name)
        if found is None:
            raise Unsupported(f"nothing makes the value {name!r}", ErrorCode.INVALID_GRAPH)
        return found


class GraphImporter:
    """Turns a model into layers of a network.

    Args:
        network: Receives them.
        model: The model.
        folder: Where its external data may lie.
        given: Bytes of initializers that the application loaded itself.
        warn: Takes what a user should know although it is no error.
        keep_going: Whether nodes after a refused one are tried as well, on inputs in place of what it makes.
    """

    def __init__(
        self,
        network: INetworkDefinition,
        model: ModelProto,
        folder: Path | None = None,
        given: Mapping[str, bytes | memoryview] | None = None,
        warn: Callable[[str], None] = lambda _: None,
        keep_going: bool = False,
    ) -> None:
        self.network = network
        self.errors: list[ParserError] = []
        self.refused: set[int] = set()
        self.made: dict[str, list[ITensor | None]] = {}
        self.writer = ImportingWriter(network, warn, self)
        self._model = model
        self._files = ConstantReader(folder, given)
        self._constants = ConstantReader()
        self._keep_going = keep_going
        self._functions = {(f.domain, f.name, f.overload): _Function(f) for f in model.functions}
        self._opsets = {_domain(entry.domain): entry.version for entry in model.opset_import}
        self._depth = 0
        self._nodes = self._operands = 0
        self._stack: list[str] = []
        self._innermost: tuple[str, str] = ("", "")
        self._types: dict[str, ValueInfoProto] | None = None

    def run(self) -> bool:
        """Imports the model's graph; False if anything was refused."""
        with strict():
            try:
                self._check_model()
                self._run()
            except Exception as error:
                self._note(error, -1)
        return not self.errors

    def _check_model(self) -> None:
        if not self._opsets:
            raise Unsupported("the model does not say which opset it uses", ErrorCode.INVALID_GRAPH)
        if not self._model.HasField("graph"):
            raise Unsupported("the model has no graph", ErrorCode.INVALID_GRAPH)
        for entry in chain(self._model.opset_import, *(one.opset_import for one in self._model.functions)):
            if not 0 <= entry.version < 1 << 31:
                raise Unsupported(
                    f"the model uses opset {entry.version} of the domain {_domain(entry.domain) or 'ai.onnx'!r}, "
                    "which is the number of none",
                    ErrorCode.INVALID_GRAPH,
                )
        if self._functions:
            self._check_functions()

    def _check_functions(self) -> None:
        """Refuses functions that call others so often that the model would be far larger than its file.

        Whoever goes through a model calls each of them where it is called: this parser, and ONNX's own inference of
        shapes, which nothing bounds.

        Raises:
            Unsupported: They do, or one calls itself.
        """
        sizes = _Sizes({key: function.proto for key, function in self._functions.items()})
        found = sizes.of(self._model.graph.node)
        num_bytes = found.num_bytes + found.given * sizes.largest_given
        if found.nodes > max(_FUNCTIONS, _CALLS * sizes.own) or num_bytes > self._model.ByteSize() + _FUNCTION_BYTES:
            raise Unsupported(
                f"functions make {found.nodes:,} nodes of {num_bytes:,} bytes out of the {sizes.own:,} in the model",
                ErrorCode.UNSUPPORTED_GRAPH,
            )

    def _run(self) -> None:
        graph, scope = self._model.graph, Scope()
        if self.network.num_layers == 0:
            self.network.name = graph.name or self.network.name
        self._read_initializers(graph, scope)
        for value in graph.input:
            if scope.find(value.name) is None:
                scope[value.name] = self._add_input(value)
        for index, node in enumerate(graph.node):
            self._innermost = (node.name, node.op_type)
            try:
                self._import_node(node, scope, self._opsets, index)
            except Exception as error:
                self._note(error, index)
                if not self._keep_going:
                    return
                self.refused.add(index)
                self._stack.clear()
                self._depth = 0
                self._replace_outputs(node, scope)
        if not self.errors:
            self._mark_outputs(graph, scope)

    def _note(self, error: Exception, index: int) -> None:
        code, reason = code_and_reason(error)
        name, operator = self._innermost
        self.errors.append(ParserError(code, reason, index, name, operator, self._stack, error))

    # --- the ends of the graph -------------------------------------------------------------------

    def _read_initializers(self, graph: GraphProto, scope: Scope) -> None:
        if graph.sparse_initializer:
            raise Unsupported("sparse initializers are not supported", ErrorCode.UNSUPPORTED_GRAPH)
        for proto in graph.initializer:
            scope[proto.name] = self._files.read(proto, is_repeated=bool(self._stack))

    def read_constant(self, proto: TensorProto) -> Initializer:
        """Reads a constant that an attribute of a node holds, beside which no file lies."""
        return self._constants.read(proto, is_repeated=bool(self._stack))

    def _add_input(self, value: ValueInfoProto) -> ITensor:
        self._innermost = ("", "")
        if value.type.WhichOneof("value") != "tensor_type":
            raise Unsupported(
                f"the input {value.name!r} is no tensor: sequences, maps and optional values are not supported",
                ErrorCode.UNSUPPORTED_GRAPH,
            )
        kind = value.type.tensor_type
        if not kind.HasField("shape"):
            raise Unsupported(f"the rank of the input {value.name!r} is not known", ErrorCode.UNSUPPORTED_GRAPH)
        if len(kind.shape.dim) > MAX_RANK:
            raise Unsupported(
                f"the input {value.name!r} has rank {len(kind.shape.dim)}; {MAX_RANK} is the most",
                ErrorCode.UNSUPPORTED_GRAPH,
            )
        dtype = dtype_of(kind.elem_type, f"the input {value.name!r}")
        extents = [dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1 for dim in kind.shape.dim]
        tensor = self.network.add_input(value.name, dtype, [max(extent, -1) for extent in extents])
        if tensor is None:
            raise Unsupported(f"the network refused the input {value.name!r}", ErrorCode.INVALID_GRAPH)
        for axis, dim in enumerate(kind.shape.dim):
            if dim.WhichOneof("value") == "dim_param" and dim.dim_param:
                tensor.set_dimension_name(axis, dim.dim_param)
        return tensor

    def _mark_outputs(self, graph: GraphProto, scope: Scope) -> None:
        self._innermost = ("", "")
        taken: set[int] = set()
        names = {value.name: 0 for value in (*graph.input, *graph.output)}
        for value in graph.input:
            names[value.name] += 1
        for value in graph.output:
            self.writer.node = NodeFacts(value.name, "output", 0, 1)
            tensor = self._as_declared(self.writer.tensor(scope[value.name]), value)
            if tensor.is_network_input or tensor.is_network_output or id(tensor) in taken:
                tensor = self.writer.output(self.network.add_identity(tensor))
            taken.add(id(tensor))
            tensor.name = _free_name(value.name, names)
            self.network.mark_output(tensor)

    def _as_declared(self, tensor: ITensor, value: ValueInfoProto) -> ITensor:
        """An output in the type that the model declares, where that is one of the ends of networks only."""
        is_byte = value.type.tensor_type.elem_type == UINT8 and value.type.WhichOneof("value") == "tensor_type"
        if not is_byte or tensor.dtype is not DataType.INT32:
            return tensor
        wide = self.writer.cast(tensor, DataType.FLOAT)
        return self.writer.output(self.network.add_cast(wide, DataType.UINT8))

    # --- nodes -----------------------------------------------------------------------------------

    def _import_node(self, node: NodeProto, scope: Scope, opsets: Mapping[str, int], index: int) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise Unsupported(f"the model has more than {MAX_NODES:,} nodes", ErrorCode.UNSUPPORTED_GRAPH)
        self._operands += len(node.input)
        if self._operands > MAX_OPERANDS:
            raise Unsupported(f"nodes of the model have more than {MAX_OPERANDS:,} inputs", ErrorCode.UNSUPPORTED_GRAPH)
        if len(node.name) >= NAME_LIMIT:  # of calls inside of each other, each node has all of them in its own
            raise Unsupported(f"the name of a node has {len(node.name):,} characters", ErrorCode.INVALID_NODE)
        domain = _domain(node.domain)
        name = node.name or f"{node.op_type}_{index}"
        if self._stack:
            name = "/".join((*self._stack, name))
        function = self._functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            self._call(function, node, scope, name)
            return
        opset = opsets.get(domain)
        if opset is None:
            if domain == "" or find_converter(domain, node.op_type, 1) is None:
                raise Unsupported(
                    f"the model imports no opset of the domain {domain or 'ai.onnx'!r}", ErrorCode.INVALID_NODE
                )
            opset = 1
        converter = find_converter(domain, node.op_type, opset)
        if converter is None or (opset > NEWEST_OPSET and _is_newer(node.op_type, domain, opset)):
            self._expand(node, scope, domain, opset, name)
            return
        try:
            results = self._convert(converter, node, scope, opsets, NodeFacts(name, node.op_type, opset))
            self._bind(node, scope, self._within_bytes(node, domain, opset, scope, results))
        except UseDefinition:
            self._expand(node, scope, domain, opset, name)

    def _convert(
        self, converter: Converter, node: NodeProto, scope: Scope, opsets: Mapping[str, int], facts: NodeFacts
    ) -> Sequence[Operand | None]:
        _require_types(node, facts.opset, converter)
        facts.attributes = {attribute.name: _value_of(attribute) for attribute in node.attribute}
        facts.num_outputs, facts.wanted = len(node.output), tuple(bool(name) for name in node.output)
        inputs = [scope[name] if name else None for name in node.input]
        converter.check(node.op_type, len(inputs), facts.attributes)
        self.writer.node, self.writer.scope, self.writer.opsets = facts, scope, opsets
        arguments = [
            value if value is None or converter.takes_initializer(place) else self.writer.tensor(value)
            for place, value in enumerate(inputs)
        ]
        for place, value in enumerate(arguments):
            if value is None and not converter.may_be_missing(place):
                raise Unsupported(f"input {place} of {node.op_type} is missing", ErrorCode.INVALID_NODE)
        results = converter.function(self.writer, *arguments, **facts.attributes)
        return results if isinstance(results, (tuple, list)) else (results,)

    def _within_bytes(
        self, node: NodeProto, domain: str, opset: int, scope: Scope, results: Sequence[Operand | None]
    ) -> Sequence[Operand | None]:
        """Results that have the type of operands which are bytes, held as int32, as bytes."""
        places = [place for place, name in enumerate(node.input) if name and self.writer.is_byte(scope.find(name))]
        schema = _schema(node.op_type, opset, domain) if places else None
        if schema is None:
            return results
        kinds = {schema.inputs[min(place, len(schema.inputs) - 1)].type_str for place in places}
        found = list(results)
        for place, value in enumerate(results):
            end = schema.outputs[min(place, len(schema.outputs) - 1)]
            has_type = end.is_homogeneous and end.type_str in kinds  # what graphs make is of types of its own
            if isinstance(value, ITensor) and value.dtype is DataType.INT32 and has_type:
                leaves = node.op_type in _BEYOND_BYTES
                found[place] = self.writer.cast(value, DataType.UINT8) if leaves else self.writer.mark_byte(value)
        return found

    def _bind(self, node: NodeProto, scope: Scope, results: Sequence[Operand | None]) -> None:
        made: list[ITensor | None] = []
        for place, name in enumerate(node.output):
            value = results[place] if place < len(results) else None
            if not name:
                made.append(None)
                continue
            if value is None:
                raise Unsupported(f"output {place} of {node.op_type} is not supported", ErrorCode.UNSUPPORTED_NODE)
            if isinstance(value, ITensor):
                value._refresh()
                _ = value._rank  # raises where the layer was refused after all
                if value._producer is not None and value._name is None and not self._stack:
                    value.name = name
            made.append(value if isinstance(value, ITensor) else None)
            scope[name] = value
        if node.name and not self._stack and self._depth == 0:
            self.made[node.name] = made

    # --- functions -------------------------------------------------------------------------------

    @contextmanager
    def _deeper(self, what: str) -> Iterator[None]:
        if self._depth >= MAX_DEPTH:
            raise Unsupported(f"{what} is nested more than {MAX_DEPTH} deep", ErrorCode.INVALID_GRAPH)
        self._depth += 1
        yield
        self._depth -= 1  # left as it is when something is raised: the place of the error is told by it

    def _call(self, function: _Function, node: NodeProto, scope: Scope, name: str) -> None:
        """Inlines a function: its inputs are the node's, attributes that it refers to are replaced."""
        proto = function.proto
        if len(node.input) > len(proto.input) or len(node.output) > len(proto.output):
            raise Unsupported(f"{node.op_type} has more ends than its function", ErrorCode.INVALID_NODE)
        inner = Scope()
        given = {parameter: value for parameter, value in zip(proto.input, node.input, strict=False) if value}
        for parameter, argument in given.items():
            inner[parameter] = scope[argument]
        attributes = ChainMap({attribute.name: attribute for attribute in node.attribute}, function.attributes)
        with self._deeper(f"the function {proto.name!r}"):
            self._stack.append(node.name or proto.name)
            for index, child in enumerate(proto.node):
                self._innermost = (child.name, child.op_type)
                resolved = _resolved(child, attributes, function.parameters, given)
                self._import_node(resolved, inner, function.opsets or self._opsets, index)
            self._stack.pop()
        self.writer.node = NodeFacts(name, node.op_type, 0, len(node.output))
        self._bind(node, scope, [inner.find(result) for result in proto.output[: len(node.output)]])

    def _expand(self, node: NodeProto, scope: Scope, domain: str, opset: int, name: str) -> None:
        """Inlines the function by which ONNX itself defines an operator that has no converter."""
        body = _definition(node, domain, opset, self._input_types(node, scope))
        if body is None:
            self.writer.node = NodeFacts(
                name, node.op_type, opset, len(node.output), (), {a.name: _value_of(a) for a in node.attribute}
            )
            inputs = [scope[value] for value in node.input if value]
            self._bind(node, scope, _import_as_plugin(self.writer, inputs, domain))
            return
        self._call(_Function(body), node, scope, name)

    def _input_types(self, node: NodeProto, scope: Scope) -> list[bytes]:
        from onnx import helper

        numbers = {dtype: number for number, dtype in TYPES.items()}
        found = []
        for name in node.input:
            value = scope.find(name) if name else None
            if value is None:
                found.append(b"")
            elif isinstance(value, Initializer):
                found.append(helper.make_tensor_type_proto(value.elem_type, value.shape).SerializeToString())
            else:
                extents = [None if extent < 0 else extent for extent in value.shape]
                found.append(helper.make_tensor_type_proto(numbers[value.dtype], extents).SerializeToString())
        return found

    # --- graphs inside of nodes ------------------------------------------------------------------

    def import_body(
        self,
        graph: GraphProto,
        inputs: Sequence[Operand],
        scope: Scope,
        opsets: Mapping[str, int],
        enter: Callable[[ITensor], ITensor] | None = None,
    ) -> list[Operand]:
        """Imports the graph of an If, a Loop or a Scan.

        Args:
            graph: The graph.
            inputs: What its inputs are.
            scope: The scope of the node.
            opsets: The opsets of the node.
            enter: Makes what is inside of a value from around.

        Returns:
            Its outputs.
        """
        if len(graph.input) != len(inputs):
            raise Unsupported(
                f"the graph {graph.name!r} has {len(graph.input)} inputs, not {len(inputs)}", ErrorCode.INVALID_GRAPH
            )
        inner = Scope(scope, enter)
        self._read_initializers(graph, inner)
        for value, tensor in zip(graph.input, inputs, strict=True):
            inner[value.name] = tensor
        outer = self.writer.node
        with self._deeper(f"the graph {graph.name!r}"):
            for index, node in enumerate(graph.node):
                self._innermost = (node.name, node.op_type)
                self._import_node(node, inner, opsets, index)
        self.writer.node = outer
        self._innermost = (outer.name, outer.operator)
        return [inner[value.name] for value in graph.output]

    # --- going on after a refusal ----------------------------------------------------------------

    def _replace_outputs(self, node: NodeProto, scope: Scope) -> None:
        """Puts inputs of the network in place of what a refused node makes, where its type is known."""
        if self._types is None:
            self._types = _inferred_types(self._model)
        for name in node.output:
            value = self._types.get(name)
            if not name or value is None or scope.find(name) is not None:
                continue
            try:
                scope[name] = self._add_input(value)
            except Exception:  # what depends on it is refused in its turn
                continue


class ImportingWriter(NetworkWriter):
    """A writer that knows the graph around the node, for nodes that have graphs of their own.

    Args:
        network: The network that grows.
        warn: Takes what a user should know although it is no error.
        importer: Imports the graphs inside of nodes.
    """

    def __init__(self, network: INetworkDefinition, warn: Callable[[str], None], importer: GraphImporter) -> None:
        super().__init__(network, warn)
        self._importer = importer
        self.scope = Scope()
        self.opsets: Mapping[str, int] = {}

    def read_constant(self, proto: TensorProto) -> Initializer:
        """Reads a constant that an attribute of the node holds.

        Raises:
            Unsupported: It is broken.
        """
        return self._importer.read_constant(proto)

    def body(
        self, graph: GraphProto, inputs: Sequence[Operand], enter: Callable[[ITensor], ITensor] | None = None
    ) -> list[Operand]:
        """The outputs of a graph of the node."""
        scope, opsets = self.scope, self.opsets
        outputs = self._importer.import_body(graph, inputs, scope, opsets, enter)
        self.scope, self.opsets = scope, opsets
        return outputs


class _Function:
    """A function of a model, or one of ONNX, and what each call of it asks for.

    Attributes:
        proto: The function.
        parameters: Names of its inputs.
        attributes: Attributes that have a value where a call gives none.
        opsets: The opsets of its nodes by domain; none where they are the model's.
    """

    def __init__(self, proto: FunctionProto) -> None:
        self.proto = proto
        self.parameters = frozenset(proto.input)
        self.attributes = {attribute.name: attribute for attribute in proto.attribute_proto}
        self.opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import}


class _Size(NamedTuple):
    """What nodes are once their functions were called: nodes, bytes, and attributes that calls give."""

    nodes: int
    num_bytes: int
    given: int


class _Sizes:
    """Counts what nodes are with all functions called, without calling them.

    Args:
        functions: The functions of a model by domain, name and overload.

    Attributes:
        own: Nodes that were looked at, each once.
        largest_given: Bytes of the largest node that calls a function.
    """

    def __init__(self, functions: Mapping[tuple[str, str, str], FunctionProto]) -> None:
        self._functions = functions
        self._known: dict[int, _Size] = {}
        self._open: set[int] = set()
        self.own = self.largest_given = 0

    def of(self, nodes: Iterable[NodeProto]) -> _Size:
        """Counts nodes, and what they call and hold.

        Raises:
            Unsupported: A function calls itself, or is nested too deeply.
        """
        found = []
        for node in nodes:
            self.own += 1
            found.append(_Size(1, node.ByteSize(), sum(bool(one.ref_attr_name) for one in node.attribute)))
            found += [self.of(graph.node) for graph in _graphs_of(node)]
            called = self._functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
            if called is not None:
                self.largest_given = max(self.largest_given, node.ByteSize())
                found.append(self._of_function(called))
        return _Size(*map(sum, zip(*found, strict=True))) if found else _Size(0, 0, 0)

    def _of_function(self, function: FunctionProto) -> _Size:
        key = id(function)
        if key in self._open or len(self._open) >= MAX_DEPTH:
            raise Unsupported(
                f"the function {function.name!r} calls itself, or is nested more than {MAX_DEPTH} deep",
                ErrorCode.INVALID_GRAPH,
            )
        if key not in self._known:
            self._open.add(key)
            self._known[key] = self.of(function.node)
            self._open.discard(key)
        return self._known[key]


def _graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type in (attribute.GRAPH, attribute.GRAPHS):
            yield from (attribute.g, *attribute.graphs)


def _domain(domain: str) -> str:
    return _DOMAINS.get(domain, domain)


def _require_types(node: NodeProto, opset: int, converter: Converter) -> None:
    """Refuses attributes of other types than ONNX says that they have, or their converter where ONNX says nothing.

    Raises:
        Unsupported: One has another type.
    """
    from onnx import AttributeProto

    schema = _schema(node.op_type, opset, _domain(node.domain)) if node.attribute else None
    known = {} if schema is None else schema.attributes
    for attribute in node.attribute:
        name = attribute.name
        wanted = known[name].type.name if name in known else converter.types.get(name) if schema is None else None
        found = AttributeProto.AttributeType.Name(attribute.type)
        if wanted is not None and not attribute.ref_attr_name and found not in (wanted, "UNDEFINED"):
            raise Unsupported(
                f"attribute {attribute.name!r} of {node.op_type} is of type {found}, not {wanted}",
                ErrorCode.INVALID_NODE,
            )


def _value_of(attribute: AttributeProto) -> Any:
    from onnx import helper

    if attribute.ref_attr_name:
        raise Unsupported(
            f"attribute {attribute.name!r} refers to {attribute.ref_attr_name!r} outside of a function",
            ErrorCode.INVALID_NODE,
        )
    try:
        value = helper.get_attribute_value(attribute)
    except ValueError as error:
        raise Unsupported(f"attribute {attribute.name!r}: {error}", ErrorCode.INVALID_NODE) from error
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if attribute.type == attribute.STRINGS:
        return [text.decode("utf-8", "replace") for text in value]
    return list(value) if attribute.type in (attribute.INTS, attribute.FLOATS) else value


def _resolved(
    node: NodeProto, attributes: Mapping[str, AttributeProto], parameters: Collection[str], given: Collection[str]
) -> NodeProto:
    """A node of a function with the attributes of the call, and without inputs that the call leaves out."""
    from onnx import NodeProto

    resolved = NodeProto()
    resolved.CopyFrom(node)
    for place, name in enumerate(resolved.input):
        if name in parameters and name not in given:
            resolved.input[place] = ""
    while resolved.input and not resolved.input[-1]:
        resolved.input.pop()
    _resolve_attributes(resolved, attributes, 0)
    return resolved


def _resolve_attributes(node: NodeProto, attributes: Mapping[str, AttributeProto], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Unsupported("graphs are nested too deeply", ErrorCode.INVALID_GRAPH)
    for graph in _graphs_of(node):
        for child in graph.node:
            _resolve_attributes(child, attributes, depth + 1)
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = attributes.get(attribute.ref_attr_name)
            if value is None:
                continue  # the operator's default holds
            name = attribute.name
            attribute.CopyFrom(value)
            attribute.name = name
        kept.append(attribute)
    copies = [type(attribute).FromString(attribute.SerializeToString()) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend(copies)


def _schema(name: str, opset: int, domain: str) -> Any:
    """What ONNX says of an operator; None where it knows none of that name."""
    import onnx

    try:
        return onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _definition(node: NodeProto, domain: str, opset: int, types: Sequence[bytes]) -> FunctionProto | None:
    """The function by which ONNX defines an operator; None if it is none, or a primitive one."""
    import onnx

    schema = _schema(node.op_type, opset, domain)
    if schema is None:
        return None
    if schema.has_context_dependent_function:
        versions = [
            v for v in schema.context_dependent_function_opset_versions if v <= max(opset, schema.since_version)
        ]
        if not versions:
            versions = list(schema.context_dependent_function_opset_versions)
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions), node.SerializeToString(), list(types)
        )
        body: FunctionProto | None = onnx.FunctionProto.FromString(data) if data else None
    else:
        body = schema.function_body if schema.has_function else None
    if body is None or not body.node:
        return None
    if not body.opset_import:
        body.opset_import.append(onnx.helper.make_opsetid(domain, opset))
    return body


def _is_newer(name: str, domain: str, opset: int) -> bool:
    """Whether an operator has changed since the opsets that converters follow, but for the types that it takes."""
    schema = None if name in _MORE_TYPES_ONLY else _schema(name, opset, domain)
    return schema is not None and schema.since_version > NEWEST_OPSET


_INFER: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
try:
    import resource
    seconds = int(sys.argv[2])
    for limit, most in ((resource.RLIMIT_AS, 8 << 30), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
except (ImportError, ValueError, OSError):
    pass
import onnx
data, follows = sys.stdin.buffer.read(), sys.argv[3] == "values"
try:
    if follows:
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        most = min(held + (256 << 20) + 8 * len(data), 8 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
except (NameError, ValueError, OSError):
    pass
graph = onnx.shape_inference.infer_shapes(data, data_prop=follows).graph
found = onnx.GraphProto(value_info=graph.value_info, output=graph.output)
sys.stdout.buffer.write(found.SerializeToString())
"""
_INFER_SECONDS: Final = 120
_TYPES_SECONDS: Final = 60
"""Of a processor, to infer types."""
_VALUES_SECONDS: Final = 4
"""Of a processor, to follow values that are sizes as well, for models of a few bytes.

ONNX goes through every element of a tensor then that such a model describes by its extents, and keeps them all: so
the memory that it may take ends that sooner, on a machine that is busy, too.
"""
_BYTES_IN_A_SECOND: Final = 1 << 20
"""Of larger models, which have longer."""


def _inferred_types(model: ModelProto) -> dict[str, ValueInfoProto]:
    """What ONNX's own shape inference finds out about the values of a model's graph.

    It runs in a process of its own: models can end it (a Split of more results than it says), or have it take memory
    without end. Where it does not get through by following values, it follows types alone.
    """
    import onnx

    inferred, data = model.graph, model.SerializeToString()
    for follows, seconds in (("values", _VALUES_SECONDS + len(data) // _BYTES_IN_A_SECOND), ("types", _TYPES_SECONDS)):
        command = [sys.executable, "-I", "-c", _INFER, json.dumps(sys.path), str(min(seconds, _TYPES_SECONDS)), follows]
        with suppress(Exception):  # whatever a broken model makes of it
            done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=_INFER_SECONDS)
            inferred = onnx.GraphProto.FromString(done.stdout)
            break
    return {value.name: value for value in (*inferred.value_info, *inferred.output)}


_IDENTITY: Final = ("plugin_version", "plugin_namespace")


def _import_as_plugin(net: NetworkWriter, inputs: Sequence[Operand], domain: str) -> list[ITensor]:
    """Adds the plugin that is registered under the name of the node's operator.

    The attributes ``plugin_version`` ("1") and ``plugin_namespace`` ("") choose it; the others are its fields.

    Raises:
        Unsupported: No creator has that name.
    """
    facts = net.node
    version = str(facts.attributes.get("plugin_version", "1"))
    namespace = str(facts.attributes.get("plugin_namespace", ""))
    creator = get_plugin_registry().get_creator(facts.operator, version, namespace)
    if creator is None:
        of = f" of the domain {domain!r}" if domain else ""
        raise Unsupported(
            f"there is no operator {facts.operator!r}{of}, opset {facts.opset}, no function, and no plugin "
            f"{facts.operator!r}, version {version!r}, in the namespace {namespace!r}"
        )
    fields = [_field(name, value) for name, value in facts.attributes.items() if name not in _IDENTITY]
    plugin = creator.create_plugin(facts.name, PluginFieldCollection(fields), TensorRTPhase.BUILD)
    if plugin is None:
        raise Unsupported(f"the creator of the plugin {facts.operator!r} made none", ErrorCode.INVALID_NODE)
    layer = net.layer(net.network.add_plugin_v3([net.tensor(value) for value in inputs], [], plugin))
    return [net.output_of(layer, index) for index in range(layer.num_outputs)]


def _free_name(name: str, names: dict[str, int]) -> str:
    """A name for an output: its own, or, where an input or an output before it has that, one that none has.

    Args:
        name: Its own.
        names: How many ends have each name so far; those of later ones are in it too.
    """
    found, count = name, names[name]
    while count and (found == name or found in names):
        found, count = f"{name}_output" if count == 1 else f"{name}_output_{count}", count + 1
    names[name] = max(count, 1)
    names.setdefault(found, 1)
    return found


def _field(name: str, value: Any) -> PluginField:
    if isinstance(value, str):
        return PluginField(name, np.frombuffer(value.encode(), np.int8).copy(), PluginFieldType.CHAR)
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return PluginField(name, array.astype(np.float32).reshape(-1), PluginFieldType.FLOAT32)
    if array.dtype.kind == "i":
        return PluginField(name, array.astype(np.int32).reshape(-1), PluginFieldType.INT32)
    raise Unsupported(f"attribute {name!r} cannot be a field of a plugin", ErrorCode.UNSUPPORTED_NODE_ATTR)
