"""Models in ONNX's format: compiled like modules, and explained node by node.

The provider's own parser reads them, TensorRT's or that of trt-portable, and the whole model is one engine.
"""

from __future__ import annotations

import inspect
import json
import keyword
import math
import operator
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, BuiltEngine
from trt_converters.block_key import digest_of, digest_of_parts
from trt_converters.build import TimingCacheFile, build_network, new_builder, new_network
from trt_core import (
    CompilationSettings,
    ExportError,
    Input,
    InputError,
    Provider,
    SettingsError,
    current_provider,
    device_scope,
    provider_identity,
    trt,
)
from trt_core.dtypes import from_trt
from trt_core.errors import PlanError, Uncacheable
from trt_core.files.opening import read_file
from trt_core.files.typed import BadField, part_of
from trt_core.internals import FakeTensorMode, pytree
from trt_core.log import forget_errors, logger, provider_logger, take_errors, unlogged
from trt_core.reports import DataReport
from trt_core.sizes.expressions import extent_of
from trt_core.wording import counted, did_you_mean, printable
from trt_frontends.compiled_module import CompiledModule
from trt_frontends.custom_engine_cache import BaseEngineCache, CustomCache
from trt_frontends.engine_source import EngineSource, Interface, engine_module
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.pipeline import (
    CapturedModel,
    Progress,
    capture_model,
    dynamic_shapes_of,
    log_phase,
    no_progress,
    require_uncompiled,
    settings_in,
    settings_to_build,
    visible_log,
)
from trt_frontends.single_engine import SingleEngine, require_nothing_beside
from trt_runtime import TRTModule
from trt_runtime.program.fields import is_input_name
from trt_runtime.program.model_facts import ModelFacts, ResultTitle

ENGINE: Final = "engine"
"""The name of the one engine of a compiled ONNX model."""

_LARGEST_MODEL: Final = (1 << 31) - 1
"""Bytes of a file in ONNX's format, weights in other files left out; protocol buffers are no longer."""


def is_onnx_path(model: Any) -> bool:
    """Whether something is the path of a model in ONNX's format."""
    return isinstance(model, (str, os.PathLike)) and str(model).endswith(".onnx")


@dataclass(frozen=True)
class OnnxNode:
    """A node of a model.

    Attributes:
        index: Its place in the model's graph.
        name: Its name; empty if it has none.
        operator: Its operator.
        supported: Whether it can be part of an engine.
        code: The parser's error code if it cannot; else empty.
        reason: What stands against it.
    """

    index: int
    name: str
    operator: str
    supported: bool
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, repr=False)
class OnnxReport(DataReport):
    """Which nodes of a model can be part of an engine, and why the others cannot.

    Attributes:
        model: The file.
        nodes: All nodes, in the model's order.
        errors: What stands against the model as a whole, each a code and a reason.
    """

    DERIVED: ClassVar = ("coverage",)

    model: str
    nodes: tuple[OnnxNode, ...]
    errors: tuple[str, ...] = ()

    @property
    def coverage(self) -> float:
        """The share of nodes that are supported, 0 to 1; 0 where the model as a whole is refused."""
        if self.errors:
            return 0.0
        return sum(node.supported for node in self.nodes) / max(len(self.nodes), 1)

    def to_text(self) -> str:
        """The report as lines of text: a summary, the operators, then every node that is refused."""
        supported = sum(node.supported for node in self.nodes)
        lines = [f"{self.model}: {supported} of {len(self.nodes)} nodes can be in an engine ({self.coverage:.1%})"]
        counts: dict[str, list[int]] = {}
        for node in self.nodes:
            entry = counts.setdefault(node.operator, [0, 0])
            entry[0] += 1
            entry[1] += node.supported
        lines += [
            f"  {name}: {total}" if total == good else f"  {name}: {total}, {total - good} refused"
            for name, (total, good) in sorted(counts.items())
        ]
        lines += [f"refused as a whole: {error}" for error in self.errors]
        for node in self.nodes:
            if not node.supported:
                label = f" {node.name!r}" if node.name else ""
                why = f": {node.code}: {node.reason}" if node.code else ""  # else what stands against the whole does
                lines.append(f"node {node.index}{label}, {node.operator}{why}")
        return printable("\n".join(lines)) + "\n"


def explain_onnx(path: str | os.PathLike[str]) -> OnnxReport:
    """Tries every node of a model on its own; builds nothing.

    Raises:
        InputError: There is no such file, it is no model, or its weights are not where the model says.
    """
    file = _existing(path)
    parser = _parser(new_network(trt.Builder(provider_logger())))
    try:
        data = read_file(str(file), _LARGEST_MODEL)
    except PlanError as unread:
        raise InputError(f"{path} is no model in ONNX's format", why=unread.why or unread.what) from unread
    parser.supports_model_v2(data, str(file))
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    names = _nodes_of(data)
    by_node = {error.node(): error for error in errors if error.node() >= 0}
    refused = {
        int(node)
        for index in range(parser.num_subgraphs)
        if not parser.is_subgraph_supported(index)
        for node in parser.get_subgraph_nodes(index)
    }
    nodes = []
    for index, (name, kind) in enumerate(names):
        error = by_node.get(index)
        code, reason = ("", "") if error is None else (error.code().name, error.desc())
        nodes.append(OnnxNode(index, name, kind, index not in refused, code, reason))
    whole = tuple(f"{error.code().name}: {error.desc()}" for error in errors if error.node() < 0)
    if whole and not names:
        raise InputError(f"{path} is no model in ONNX's format", why=whole[0])
    return OnnxReport(str(path), tuple(nodes), whole)


def _nodes_of(data: bytes) -> list[tuple[str, str]]:
    """The name and operator of every node of a model; none of what is no model."""
    try:
        import onnx

        nodes = onnx.ModelProto.FromString(data).graph.node
        return [(_as_text(node.name), _as_text(node.op_type)) for node in nodes]
    except Exception:  # the parser has told what is wrong
        return []


def _as_text(name: str | bytes) -> str:
    """A name, which is given as bytes where it is not UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def compile_onnx(
    path: str | os.PathLike[str],
    inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
    given: Mapping[str, Any],
    progress: Progress = no_progress,
    custom_engine_cache: BaseEngineCache | None = None,
) -> CompiledModule:
    """Compiles a model in ONNX's format into one engine.

    Args:
        path: The model's file; external data are read from its folder.
        inputs: What it is compiled for, in the order of the model's inputs: tensors or `Input`s. They may be left out
            where every extent is fixed in the model.
        kwarg_inputs: The same by name.
        given: Settings as the user gave them.
        progress, custom_engine_cache: See `compile`.

    Raises:
        InputError: There is no such file, nodes are not supported, or the inputs do not fit the model.
        SettingsError: A setting cannot be read, or says what becomes of a graph of PyTorch's.
        BuildError: The engine cannot be built.
    """
    start = time.perf_counter()
    file = _existing(path)
    _require_settings_of_engines(settings_in(given), str(path))
    progress("parsing", 0, 1)
    builder = new_builder(file.stem)
    network = new_network(builder)
    _parse(file, network)
    log_phase("parsed", counted(network.num_layers, "layer"), start)
    ends = [network.get_input(index) for index in range(network.num_inputs)]
    results = [network.get_output(index) for index in range(network.num_outputs)]
    names = _identifiers([end.name for end in ends])
    examples, titles, shown = _with_dimensions(ends, _examples(ends, names, inputs, kwarg_inputs))
    stand_in = _StandIn(names, len(results))
    with unlogged(logger.name):  # what becomes of a stand-in tells nothing of the model
        captured = capture_model(stand_in, None, examples, None, given, registry=DYNAMO_CONVERTERS)
    graph = captured.decomposed.graph
    _require_types(graph, ends, names)
    profiles = list(_profiles(captured, ends))
    metas = tuple(_result_metas(graph, results))
    inputs = tuple(node.meta["val"] for node in _placeholders(graph))
    interface = Interface(inputs, tuple(metas), returns_tuple=len(metas) != 1)
    cache = None if custom_engine_cache is None else CustomCache(custom_engine_cache)
    source = EngineSource(captured.settings, DYNAMO_CONVERTERS, graph, cache)

    def numbers_of_inputs() -> dict[str, list[list[int]] | None]:
        return {end.name: _numbers(end, value) for end, value in zip(ends, examples, strict=True)}

    def build(timings: TimingCacheFile | None) -> TRTModule:
        values = {name: numbers for name, numbers in numbers_of_inputs().items() if numbers is not None}
        with device_scope(captured.settings.device.torch_device):
            forget_errors()
            plan = build_network(
                builder, network, captured.settings, profiles, file.stem, values=values, timing_cache=timings
            )
        built = BuiltEngine(
            name=file.stem,
            plan=plan,
            input_names=tuple(end.name for end in ends),
            output_names=tuple(end.name for end in results),
            inputs=interface.inputs,
            outputs=metas,
            profiles=tuple(profiles),
            layers=network.num_layers,
            build_seconds=time.perf_counter() - start,
            provider=provider_identity(),
        )
        return engine_module(built, captured.settings, returns_tuple=interface.returns_tuple)

    def describe() -> dict[str, str]:
        return {
            **_content_of(file, network),
            "inputs": str([(node.name, str(node.meta["val"].shape)) for node in _placeholders(graph)]),
            "profiles": json.dumps(profiles),
            "values": json.dumps(numbers_of_inputs()),
        }

    progress("building engines", 0, 1)
    with visible_log(captured.settings):
        engine = source.whole_engine(describe, build, file.stem, interface)
        _put_engine(graph, engine, metas)
    progress("building engines", 1, 1)
    log_phase("built", f"1 engine of {network.num_layers} layers", start)
    compiled = CompiledModule(
        graph,
        graph.graph,
        captured.reader(graph.graph),
        captured.settings.device.torch_device if captured.settings.use_cuda_graphs else None,
    )
    compiled.meta["dynamic_shapes"] = dynamic_shapes_of(graph, captured.ranges)
    compiled.meta["shape_ranges"] = captured.ranges
    called = {symbol: titles.get(name, name) for symbol, name in captured.dimensions.items()}
    compiled.meta["model_facts"] = ModelFacts(called, titles=_titles_of(file, results, shown))
    return compiled


def _require_settings_of_engines(settings: CompilationSettings, path: str) -> None:
    """Refuses what says something of a graph of PyTorch's, of which a model in ONNX's format has none."""
    if settings.dryrun:
        raise SettingsError("dryrun is for models of PyTorch", hint=f"explain_onnx({path!r}) says what would run")
    usual = CompilationSettings()
    for name in _OF_GRAPHS:
        if getattr(settings, name) != getattr(usual, name):
            raise SettingsError(
                f"{name} is for models of PyTorch",
                where=path,
                why="all nodes of a model in ONNX's format go into one engine, and compute in the types that they have",
                hint="change the model before, or leave the setting out",
            )


_OF_GRAPHS: Final = (
    "precision",
    "enable_autocast",
    "max_error",
    "truncate_long_and_double",
    "torch_executed_ops",
    "torch_executed_modules",
    "check_indices",
    "enable_experimental_decompositions",
    "lowering_passes",
)


def inputs_of_types(path: str | os.PathLike[str], shapes: Mapping[str, Sequence[tuple[int, ...]]]) -> dict[str, Input]:
    """Inputs of a model by name: of given shapes, one or three (least, usual, greatest), and the model's types.

    Inputs that are not named have the shape that the model says.

    Raises:
        InputError: There is no such file or input, or a shape is neither given nor fixed in the model.
    """
    network = new_network(trt.Builder(provider_logger()))
    parser = _parser(network)
    parser.parse_from_file(str(_existing(path)))  # whatever it refuses, inputs come first
    ends = [network.get_input(index) for index in range(network.num_inputs)]
    unknown = shapes.keys() - {end.name for end in ends}
    if unknown:
        raise InputError(
            f"the model has no input {min(unknown)!r}", hint=did_you_mean(min(unknown), [e.name for e in ends])
        )
    found = {}
    for end in ends:
        given = shapes.get(end.name)
        if given is None:
            found[end.name] = _declared(end)
        elif len(given) == 1:
            found[end.name] = Input(given[0], dtype=_torch_type(end))
        else:
            low, best, high = given
            found[end.name] = Input(min_shape=low, opt_shape=best, max_shape=high, dtype=_torch_type(end))
    return found


def _parse(file: Path, network: Any) -> None:
    parser = _parser(network)
    forget_errors()
    if not parser.parse_from_file(str(file)):
        found = [parser.get_error(index) for index in range(parser.num_errors)]
        raise InputError(
            f"{file} cannot be an engine",
            why="; ".join(map(_described, found)) or take_errors(),
            hint=f"trtc explain {file} lists every node that is refused"
            if not found or any(error.node() >= 0 for error in found)
            else "see that the file is whole, and that the files of its weights lie where it says, beside it",
        )


def _existing(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file {path}", hint="give the path of an .onnx file")
    return file


def _parser(network: Any) -> Any:
    try:
        return trt.OnnxParser(network, trt.Logger(trt.Logger.INTERNAL_ERROR))  # what it refuses becomes our message
    except ImportError as error:
        raise InputError("models in ONNX's format need the onnx package", why=str(error)) from error


def _described(error: Any) -> str:
    where = "" if error.node() < 0 else f"node {error.node()} ({error.node_name() or error.node_operator()}): "
    return f"{where}{error.code().name}: {error.desc()}"


_NOT_PARAMETERS: Final = ("self", "torch")
"""Names that generated code has for something else."""
_LONGEST_NAME: Final = 200


def _identifiers(names: Sequence[str]) -> list[str]:
    """Names of inputs as Python's keywords have them: `input.1` becomes `input_1`, `class` becomes `class_`."""
    found: list[str] = []
    for name in names:
        plain = "".join(char if f"_{char}".isidentifier() else "_" for char in name[:_LONGEST_NAME]) or "input"
        plain = plain if plain.isidentifier() else f"_{plain}"
        plain = f"input{plain}" if plain.startswith("__") else plain
        while plain in found or plain in _NOT_PARAMETERS or not is_input_name(plain):
            plain += "_"
        found.append(plain)
    return found


# Capture -------------------------------------------------------------------------------------------------------------


class _StandIn(nn.Module):
    """A module that is called like the model, from which the graph around the engine is captured.

    Args:
        names: Of its inputs.
        count: The number of its outputs.
    """

    def __init__(self, names: Sequence[str], count: int) -> None:
        super().__init__()
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])

        def forward(*args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
            tensors = [*args, *kwargs.values()]
            results = [tensors[0].clone() if tensors else torch.zeros(1, device="cpu") for _ in range(count)]
            return results[0] if count == 1 else tuple(results)

        forward.__signature__ = signature  # type: ignore[attr-defined]
        self.forward = forward


def _examples(
    ends: Sequence[Any], names: Sequence[str], inputs: Sequence[Any] | None, keywords: Mapping[str, Any] | None
) -> list[Any]:
    """The inputs of the model in its order."""
    given = ExampleInputs.read(None, inputs, keywords)
    if given is None:
        return [_declared(end) for end in ends]
    labels = dict(zip([end.name for end in ends], names, strict=True))
    by_name = {labels.get(name, name): value for name, value in given.kwargs.items()}
    unknown = by_name.keys() - set(names)
    if unknown:
        raise InputError(
            f"the model has no input {min(unknown)!r}", hint=did_you_mean(min(unknown), [end.name for end in ends])
        )
    if twice := by_name.keys() & set(names[: len(given.args)]):
        raise InputError(f"input {min(twice)!r} is given twice", hint="give it by place or by name")
    values = list(given.args) + [by_name[name] for name in names[len(given.args) :] if name in by_name]
    if len(values) != len(ends) or len(given.args) + len(by_name) != len(ends):
        listed = ", ".join(f"{end.name} {tuple(end.shape)}" for end in ends) or "none"
        raise InputError(
            f"{len(given.args) + len(by_name)} inputs for a model that has {len(ends)}", why=f"its inputs are {listed}"
        )
    return values


def _declared(end: Any) -> Input:
    shape = tuple(end.shape)
    if -1 in shape:
        low, best, most = ("x".join(str(size if extent < 0 else extent) for extent in shape) for size in (1, 4, 8))
        raise InputError(
            f"input {end.name!r} has the shape {shape}, and the model does not say its range",
            hint="give inputs: tensors for fixed shapes, or Input(min_shape=..., opt_shape=..., max_shape=...); "
            f"trtc takes --shapes {end.name}={low}:{best}:{most}",
        )
    return Input(shape, dtype=_torch_type(end))


def _with_dimensions(ends: Sequence[Any], values: Sequence[Any]) -> tuple[list[Any], dict[str, str], dict[str, str]]:
    """The inputs, whose dimensions of one name in the model are one, and what the model calls them, by their names.

    Last what they are shown as, by what the model calls them.

    A dimension has the name that the user gave it in some input, else the model's, as an identifier.

    Raises:
        InputError: Dimensions of one name have extents that are never equal, or the user has several names for them.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for at, (end, value) in enumerate(zip(ends, values, strict=True)):
        for axis in range(min(len(end.shape), len(_extents_of(value)))):
            if end.get_dimension_name(axis):
                places.setdefault(end.get_dimension_name(axis), []).append((at, axis))
    found = [
        {axis: str(named) for axis, named in value.dimensions.items()} if isinstance(value, Input) else {}
        for value in values
    ]
    titles: dict[str, str] = {}
    shown: dict[str, str] = {}
    for label, spots in places.items():
        title = printable(label[:_LONGEST_NAME])
        _require_equal(title, [(ends[at].name, _extents_of(values[at])[axis]) for at, axis in spots])
        given = sorted({found[at][axis] for at, axis in spots if axis in found[at]})
        if len(given) > 1:
            raise InputError(
                f"the dimension {title!r} of the model is called {given[0]!r} and {given[1]!r}",
                why="dimensions of one name in a model are equal",
                hint="give it one name in all inputs, or none",
            )
        name = given[0] if given else _identifier(label, titles)
        if not given:
            titles[name] = title
        shown[label] = given[0] if given else title
        for at, axis in spots:
            if isinstance(values[at], Input) and axis in values[at].dynamic_axes:
                found[at][axis] = name
    named = [_renamed(value, names) if names else value for value, names in zip(values, found, strict=True)]
    return named, titles, shown


def _titles_of(file: Path, results: Sequence[Any], shown: Mapping[str, str]) -> tuple[ResultTitle, ...]:
    """What the model calls its results and their sizes; those that inputs have too are called as there."""
    labels: dict[str, tuple[str, ...]] = {}
    if any(-1 in tuple(end.shape) for end in results):
        try:
            import onnx

            ends = onnx.ModelProto.FromString(read_file(str(file), _LARGEST_MODEL)).graph.output
            labels = {
                _as_text(end.name): tuple(_as_text(dim.dim_param) for dim in end.type.tensor_type.shape.dim)
                for end in ends
            }
        except ImportError:  # TensorRT's parser needs none
            pass
    return tuple(
        ResultTitle(
            printable(end.name),
            tuple(shown.get(label, printable(label[:_LONGEST_NAME])) for label in labels.get(end.name, ())),
        )
        for end in results
    )


def _extents_of(value: Any) -> list[tuple[int, int]]:
    """The least and the greatest extent of each dimension of an input; none of what is no tensor."""
    if isinstance(value, Input):
        return list(zip(value.min_shape, value.max_shape, strict=True))
    return [(extent, extent) for extent in value.shape] if isinstance(value, torch.Tensor) else []


def _require_equal(title: str, extents: Sequence[tuple[str, tuple[int, int]]]) -> None:
    """Refuses a dimension that is fixed in one input, and something else in another; ranges are compared later."""
    first, known = extents[0]
    for name, extent in extents[1:]:
        if extent != known and (extent[0] == extent[1] or known[0] == known[1]):
            there, here = (str(low) if low == high else f"{low} to {high}" for low, high in (known, extent))
            raise InputError(
                f"the dimension {title!r} of the model is {there} in input {first!r}, and {here} in input {name!r}",
                why="dimensions of one name in a model are equal",
                hint="give inputs of the same extent, or of the same range",
            )


def _identifier(label: str, taken: Mapping[str, str]) -> str:
    """The name of a dimension as symbols have it: `batch size` becomes `batch_size`."""
    plain = re.sub(r"\W", "_", label[:_LONGEST_NAME], flags=re.ASCII)
    plain = f"_{plain}" if plain[0].isdigit() else plain
    while plain in taken or keyword.iskeyword(plain):
        plain += "_"
    return plain


def _renamed(value: Input, dimensions: Mapping[int, str]) -> Input:
    return Input(
        profiles=[(profile.min, profile.opt, profile.max) for profile in value.profiles],
        dtype=value.dtype,
        format=value.format,
        name=value.name,
        tensor_domain=value.tensor_domain,
        dimensions=dimensions,
    )


def _torch_type(end: Any) -> torch.dtype:
    try:
        return from_trt(end.dtype)
    except InputError as error:
        raise InputError(f"input or output {end.name!r} has a type that tensors lack", why=error.what) from error


def _placeholders(graph: fx.GraphModule) -> Iterator[fx.Node]:
    return (node for node in graph.graph.nodes if node.op == "placeholder")


def _require_types(graph: fx.GraphModule, ends: Sequence[Any], names: Sequence[str]) -> None:
    """Refuses inputs of other types and ranks than the model's."""
    for node, end, name in zip(_placeholders(graph), ends, names, strict=True):
        value = node.meta["val"]
        shape = tuple(end.shape)
        wrong = [
            axis for axis, (have, want) in enumerate(zip(value.shape, shape, strict=False)) if want not in (-1, have)
        ]
        if value.dtype is not _torch_type(end) or len(value.shape) != len(shape) or wrong:
            raise InputError(
                f"input {name!r} is {value.dtype} of shape {tuple(value.shape)}",
                why=f"the model takes {_torch_type(end)} of shape {shape}",
            )


# Building ------------------------------------------------------------------------------------------------------------


def _profiles(captured: CapturedModel, ends: Sequence[Any]) -> Iterator[dict[str, tuple[tuple[int, int, int], ...]]]:
    """The bounds of each extent of the inputs, by name; of each profile."""
    metas = [node.meta["val"] for node in _placeholders(captured.decomposed.graph)]
    for item in captured.ranges.each():
        yield {
            end.name: tuple(item.bounds(extent) for extent in meta.shape) for end, meta in zip(ends, metas, strict=True)
        }


def _numbers(end: Any, example: Any) -> list[list[int]] | None:
    """The least, usual and greatest values of an input that decides about shapes; None for other inputs."""
    if not end.is_shape_tensor:
        return None
    if isinstance(example, torch.Tensor):
        return [[int(number) for number in example.reshape(-1).tolist()]] * 3
    domain = example.tensor_domain
    if not isinstance(example, Input) or domain == Input((), dtype=example.dtype).tensor_domain:
        raise InputError(
            f"the values of input {end.name!r} decide about shapes, or how often a loop runs",
            hint="give a tensor with the values that the engine is for, or Input(shape, dtype=..., "
            "tensor_domain=(least, greatest + 1)) for a range of them",
        )
    low, high = math.ceil(domain[0]), math.ceil(domain[1]) - 1
    return [[value] * math.prod(example.max_shape) for value in (low, (low + high + 1) // 2, high)]


def _content_of(file: Path, network: Any) -> dict[str, str]:
    """Digests of a model and of the parts of files beside it that hold its weights.

    Raises:
        Uncacheable: The network has plugins, whose code is not described, or the files cannot be told.
    """
    if any(str(network.get_layer(index).type).rpartition(".")[2].startswith("PLUGIN") for index in range(len(network))):
        raise Uncacheable("the model has plugins, whose code nobody has described")
    data = read_file(str(file), _LARGEST_MODEL)
    try:
        import onnx
    except ImportError:
        raise Uncacheable("which files hold the model's weights is known with the onnx package only") from None
    parts: dict[str, set[tuple[int, int]]] = {}
    for tensor in _tensors_in(onnx.ModelProto.FromString(data)):
        named = {entry.key: entry.value for entry in tensor.external_data}
        if named:
            try:
                start, length = part_of(named)
            except BadField as error:
                raise Uncacheable(f"the model says wrongly where a weight lies: {error}") from error
            end = sys.maxsize if length is None else start + length
            parts.setdefault(named.get("location", ""), set()).add((start, end))
    found = {"onnx": digest_of(data)}
    root = file.parent.resolve()
    for name in sorted(parts):  # those of parts that nobody has parsed, too
        try:
            path = (root / name).resolve(strict=True)
            if os.path.isabs(name) or not path.is_relative_to(root):
                raise Uncacheable(f"the model names the file {name!r:.80}, outside of its folder")
            found[f"onnx.{name}"] = digest_of_parts(path, parts[name])
        except (OSError, ValueError) as error:
            raise Uncacheable(f"the file {name!r:.80} of the model cannot be read: {error}") from error
    return found


def _tensors_in(message: Any) -> Iterator[Any]:
    """The tensors in a message of ONNX's format, at any depth."""
    pending = [message]
    while pending:
        for field, value in pending.pop().ListFields():
            if field.message_type is None:
                continue
            parts = value if field.is_repeated else [value]
            if field.message_type.name == "TensorProto":
                yield from parts
            else:
                pending.extend(parts)


def _result_metas(graph: fx.GraphModule, results: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Fake tensors for the results; extents that are not fixed are symbols of their own, found in every run."""
    modes = [getattr(node.meta["val"], "fake_mode", None) for node in _placeholders(graph)]
    mode: Any = next((found for found in modes if found is not None and found.shape_env is not None), None)
    if mode is None:
        from trt_core.internals import ShapeEnv  # which only models without inputs need here

        mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        for end in results:
            shape = [extent if extent >= 0 else mode.shape_env.create_unbacked_symint() for extent in tuple(end.shape)]
            yield torch.empty(shape, dtype=_torch_type(end), device="cpu")


def _put_engine(graph: fx.GraphModule, engine: TRTModule, results: Sequence[torch.Tensor]) -> None:
    """Makes a call of the engine, which gives certain results, of what the stand-in left in the graph."""
    output = graph.graph.output_node()
    graph.add_submodule(ENGINE, engine)
    sources = list(_placeholders(graph))
    with graph.graph.inserting_before(output):
        call = graph.graph.call_module(ENGINE, tuple(sources))
        call.meta["val"] = results[0] if len(results) == 1 else tuple(results)
        made = [call]
        if len(results) > 1:
            made = [graph.graph.call_function(operator.getitem, (call, index)) for index in range(len(results))]
            for node, meta in zip(made, results, strict=True):
                node.meta["val"] = meta
    output.args = (made,) if isinstance(output.args[0], list) else (tuple(made),)
    for node in reversed(list(graph.graph.nodes)):
        if node.op not in ("placeholder", "output") and node is not call and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()


# Out -----------------------------------------------------------------------------------------------------------------


def export_onnx(
    model: nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> bytes:
    """The network that would become a model's engine, as a model in ONNX's format.

    It is what the engine computes, after lowering: operators that one layer runs are one or few nodes. ONNX Runtime,
    OpenVINO and Netron read it. Sizes that vary have the names that `Input(dimensions=...)` gives them.

    Args:
        model, arg_inputs, kwarg_inputs: See `compile`.
        settings: Compilation settings; those of precision decide about types. No engine is built, so that those of
            building count where one is built of the file.

    Returns:
        The bytes of an `.onnx` file.

    Raises:
        ExportError: The module cannot be exported, or a layer has no form in ONNX; the message names it.
        InputError: The inputs do not fit, the model writes to caches or returns what no engine computes (an input, a
            view of another result, a number), it is compiled already, or the provider is TensorRT, whose networks
            cannot be read.
        IncompleteCompilationError: Some operators cannot run in an engine.
        SettingsError: A setting cannot be read, or asks for what no network is.
    """
    if current_provider() is not Provider.PORTABLE:
        raise InputError("TensorRT does not show its networks", hint='call set_provider("portable") first')
    from trt_portable.onnx_export import ExportError as NoForm  # only where there are such
    from trt_portable.onnx_export import export_onnx as export_network

    keeper: SingleEngine | None = None
    chosen = settings_to_build(settings)
    if isinstance(model, (str, os.PathLike)):
        _require_settings_of_engines(chosen, str(model))
        network = new_network(trt.Builder(provider_logger()))
        _parse(_existing(model), network)
    else:
        if isinstance(model, nn.Module):
            require_uncompiled(model)
        given = {"min_block_size": 1, **settings, "require_full_compilation": True}
        captured = capture_model(model, None, arg_inputs, kwarg_inputs, given, needs_weights=True)
        keeper = SingleEngine.of(captured, type(model).__name__)
        require_nothing_beside(keeper.call.graph, 1)
        if written := sorted(keeper.interpreter.updates):
            raise InputError(
                "the model writes to its caches, and models in ONNX's format write to nothing",
                where=", ".join(written[:3]),
                hint="return what is written, or save the compiled model: save(compile(...), path)",
            )
        network = keeper.network
    try:
        exported = export_network(network)
    except NoForm as error:
        raise ExportError("the model cannot be written in ONNX's format", why=str(error)) from error
    if keeper is not None:
        _name_extents(exported.graph, keeper)
        _return_in_order(exported.graph, keeper.results())
    return bytes(exported.SerializeToString())


def _name_extents(graph: Any, keeper: SingleEngine) -> None:
    """Gives equal sizes of inputs and results one name: what the user calls them, or the first that one of them has."""
    taken = zip(keeper.interpreter.input_names, (node.meta["val"] for node in keeper.call.all_input_nodes), strict=True)
    made = zip(keeper.interpreter.output_names, pytree.tree_leaves(keeper.call.meta["val"]), strict=True)
    values, names = dict((*taken, *made)), dict(keeper.captured.dimensions)
    for end in (*graph.input, *graph.output):
        for dim, extent in zip(end.type.tensor_type.shape.dim, values[end.name].shape, strict=True):
            symbol = extent_of(extent)
            if isinstance(symbol, str) and dim.dim_param:
                dim.dim_param = names.setdefault(symbol, dim.dim_param)


def _return_in_order(graph: Any, names: Sequence[str]) -> None:
    """Has a graph return the model's results in their order; one that is returned again is a copy."""
    outputs = {output.name: output for output in graph.output}
    ordered = []
    for place, name in enumerate(names):
        output = type(outputs[name])()
        output.CopyFrom(outputs[name])
        if name in names[:place]:
            output.name = f"{name}:{place}"
            graph.node.add(op_type="Identity", input=[name], output=[output.name], name=output.name)
        ordered.append(output)
    del graph.output[:]
    graph.output.extend(ordered)
