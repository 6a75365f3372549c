"""What the engine of a block depends on, as texts and digests: known before anything is converted or built.

Nodes are numbered in the order of the graph, and symbols in the order in which they appear, so that neither their names
nor the names of the block matter. Names of inputs count: they are the names of the engine's bindings.

Built-in converters are identified by the sources of this package. A converter of others is identified by its
distribution's version and by the sources of the package that defines it. One whose behaviour also follows from values
that it closes over has an identity only where these are plain numbers and texts.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import torch
from torch import fx

from trt_converters.call import BindingError, bind_arguments
from trt_converters.context import Fraction, fraction_of
from trt_converters.converter import BUILTIN, Converter, ConverterFunction
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_converters.support import ConverterSupport
from trt_core import CompilationSettings, operator_name
from trt_core.attributes import read_attribute
from trt_core.control_flow import bodies_of
from trt_core.dtypes import dtype_name
from trt_core.errors import Uncacheable
from trt_core.files.opening import opened, require_content
from trt_core.internals import OpOverload
from trt_core.process_groups import group_of, is_collective
from trt_core.provenance import node_location
from trt_core.sizes.expressions import extent_of
from trt_core.sizes.ranges import ShapeRanges
from trt_core.weight_recipes import bytes_of
from trt_core.wording import kind_of

DescribeConstant = Callable[[fx.Node, torch.Tensor], str]
"""Says what a constant of a graph is: a digest of its content, or where it comes from."""


def describe_block(
    block: fx.GraphModule,
    settings: CompilationSettings,
    ranges: ShapeRanges,
    describe_constant: DescribeConstant,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> dict[str, str]:
    """Returns what building a block depends on, less the settings and the machine.

    Args:
        block: A graph module whose placeholders and results are tensors, with metadata.
        settings: What to compile with.
        ranges: Ranges of the symbolic dimensions.
        describe_constant: Called once for each node that reads a tensor of the block.
        registry: Where converters are looked up.

    Returns:
        Texts by component: `graph`, `inputs`, `profile`, `constants`, and `converter.*` for each package.

    Raises:
        Uncacheable: Something in the block has no stable description.
    """
    describer = _GraphDescriber(block, describe_constant, with_names=settings.debug)
    lines = [describer.describe(node) for node in block.graph.nodes]
    inputs = [
        [node.name, *describer.tensor(node.meta["val"], node)] for node in block.graph.nodes if node.op == "placeholder"
    ]
    profiles = [
        {
            "inputs": [
                [list(item.bounds(extent)) for extent in node.meta["val"].shape]
                for node in block.graph.nodes
                if node.op == "placeholder"
            ],
            "symbols": {number: list(item.symbols.get(name, ())) for name, number in describer.symbols.items()},
        }
        for item in ranges.each()
    ]
    operators = Counter(operator_name(node.target) for node in _calls(block))
    return {
        "graph": digest_of(_json(lines).encode()),
        "graph.operators": ", ".join(f"{name} x{count}" for name, count in sorted(operators.items())),
        "inputs": _json(inputs),
        "profile": _json(profiles),
        "constants": digest_of(_json(describer.constants).encode()),
        **{f"converter.{name}": text for name, text in identify_converters(block, settings, registry).items()},
    }


class _GraphDescriber:
    """Describes nodes by JSON values that do not depend on names."""

    def __init__(self, block: fx.GraphModule, describe_constant: DescribeConstant, *, with_names: bool) -> None:
        self.constants: list[Any] = []
        self.symbols: dict[str, str] = {}
        self._block = block
        self._describe_constant = describe_constant
        self._with_names = with_names
        self._numbers: dict[fx.Node, int] = {}

    def describe(self, node: fx.Node) -> list[Any]:
        """Describes a node: what it does, with what, and what comes of it.

        Raises:
            Uncacheable: Something about it has no description that holds in another process.
        """
        self._numbers[node] = len(self._numbers)
        # with `debug` the names of layers and where they come from are part of what the engine can tell
        named = [node.name, node_location(node)] if self._with_names else []
        if node.op == "placeholder":
            return ["input", self.value(node.meta.get("val"), node), *named]
        if node.op == "get_attr":
            return ["constant", self._constant(node), *named]
        if node.op == "output":
            return ["output", self.literal(node.args[0], node)]
        if node.op != "call_function":
            raise Uncacheable(f"{node.op} nodes have no stable description", node.name)
        return [
            "call",
            operator_name(node.target),
            self._arguments(node),
            self.value(node.meta.get("val"), node),
            *named,
        ]

    def _arguments(self, node: fx.Node) -> Any:
        if isinstance(node.target, OpOverload):
            try:
                bound = bind_arguments(node)
            except BindingError as error:
                raise Uncacheable(str(error), node.name) from error
            return [*([name, self.literal(value, node)] for name, value in bound.items()), *_ranks(node)]
        return [self.literal(node.args, node), self.literal(node.kwargs, node)]

    def _constant(self, node: fx.Node) -> Any:
        value = read_attribute(self._block, str(node.target))
        if isinstance(value, fx.GraphModule):  # what a branch or a loop runs
            outer, self._block = self._block, value
            lines = [self.describe(inner) for inner in value.graph.nodes]
            self._block = outer
            return ["graph", lines]
        if not isinstance(value, torch.Tensor):
            raise Uncacheable(f"the attribute {node.target} is {kind_of(value)}", node.name)
        self.constants.append([*self.tensor(value, node), self._describe_constant(node, value)])
        return len(self.constants) - 1

    def tensor(self, value: Any, node: fx.Node) -> list[Any]:
        """Describes type and shape of a tensor.

        Raises:
            Uncacheable: The value is no tensor.
        """
        if not isinstance(value, torch.Tensor):
            raise Uncacheable(f"{node.name} is no tensor but {kind_of(value)}", node.name)
        return [dtype_name(value.dtype), [self._extent(extent) for extent in value.shape]]

    def value(self, value: Any, node: fx.Node) -> Any:
        """Describes the metadata of a node."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value, node)
        if isinstance(value, (list, tuple)):
            return [self.value(item, node) for item in value]
        return self.literal(value, node)

    def literal(self, value: Any, node: fx.Node) -> Any:
        """Describes an argument: each kind of value in a way of its own, so that 1, 1.0 and True differ.

        Raises:
            Uncacheable: The value is of a kind without a description.
        """
        if isinstance(value, fx.Node):
            return ["node", self._numbers[value]]
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return ["int", str(int(value))]
        if isinstance(value, float):
            return ["float", "nan" if math.isnan(value) else value.hex()]
        if isinstance(value, complex):
            return ["complex", value.real.hex(), value.imag.hex()]
        if isinstance(value, torch.SymInt):
            return ["size", self._extent(value)]
        fraction = fraction_of(value) if isinstance(value, torch.SymFloat) else None
        if fraction is not None:
            return ["fraction", self._fraction(fraction)]
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
            return [type(value).__name__, str(value)]
        if isinstance(value, (list, tuple)):
            return ["list", [self.literal(item, node) for item in value]]
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return ["dict", {name: self.literal(item, node) for name, item in value.items()}]
        raise Uncacheable(f"an argument is {kind_of(value)}", node.name)

    def _extent(self, value: int | torch.SymInt) -> Any:
        if isinstance(value, int):
            return int(value)
        return self._rename(extent_of(value)) if extent_of(value) is not None else self._unbacked(value)

    def _rename(self, extent: Any) -> Any:
        if isinstance(extent, str):
            return self.symbols.setdefault(extent, f"s{len(self.symbols)}")
        if isinstance(extent, list):
            return [extent[0], *(self._rename(operand) for operand in extent[1:])]
        return extent

    def _fraction(self, fraction: Fraction) -> Any:
        if isinstance(fraction, float):
            return fraction.hex()
        operation, *operands = fraction
        if operation == "SIZE":
            return [operation, self._rename(operands[0])]
        return [operation, *map(self._fraction, operands)]

    def _unbacked(self, value: torch.SymInt) -> Any:
        text = str(value.node.expr)
        for symbol in sorted(map(str, value.node.expr.free_symbols), key=len, reverse=True):
            text = text.replace(symbol, f"<{self._rename(symbol)}>")
        return ["data", text]


def _ranks(node: fx.Node) -> list[Any]:
    """The ranks of a collective's process group: its name says nothing about them.

    Raises:
        Uncacheable: There is no such group in this process.
    """
    if not is_collective(node):
        return []
    group = group_of(node)
    if group is None:
        raise Uncacheable("a process group is unknown", node.name)
    return [["ranks", list(group.ranks)]]


def _calls(block: fx.GraphModule) -> Iterator[fx.Node]:
    """Yields the calls of a block, those inside of branches and loops included."""
    for node in block.graph.nodes:
        if node.op == "call_function":
            yield node
            for _, body in bodies_of(node):
                yield from _calls(body)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


_LITERALS = (bool, int, float, str, bytes, type(None))


def identify_converters(
    block: fx.GraphModule, settings: CompilationSettings, registry: ConverterRegistry
) -> dict[str, str]:
    """Returns what identifies the converters of a block, by package.

    Raises:
        Uncacheable: A converter has no identity that another process could recognize.
    """
    found = {BUILTIN: source_digest(str(Path(__file__).parent))}
    support = ConverterSupport(settings, registry)
    foreign: dict[str, set[str]] = {}
    for node in _calls(block):
        if all(one.is_builtin for one in registry.candidates(node.target)):
            continue
        converter = support.find(node)
        if converter is not None and not converter.is_builtin:
            foreign.setdefault(converter.origin, set()).add(_identify(converter))
    found.update((origin, "; ".join(sorted(parts))) for origin, parts in foreign.items())
    return found


def _identify(converter: Converter) -> str:
    function = inspect.unwrap(converter.function)
    where = f"{converter.origin}: {converter.name}"
    kept = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    kept += getattr(function, "__defaults__", None) or ()
    kept += (getattr(function, "__kwdefaults__", None) or {}).values()
    if not all(isinstance(value, _LITERALS) for value in kept):
        raise Uncacheable("a converter closes over values that cannot be compared", where)
    code = _code_of(function)
    if not code:
        raise Uncacheable("a converter has no source file", where)
    return f"{function.__qualname__} {kept!r} fold={converter.fold} {code}"


def _code_of(function: ConverterFunction) -> str:
    """Identifies the package that a function is defined in, or its file where it lies in no package."""
    name = (getattr(function, "__module__", None) or "").partition(".")[0]
    package = sys.modules.get(name)
    if package is not None and getattr(package, "__path__", None) and package.__file__:
        return f"{_release_of(name)} {source_digest(str(Path(package.__file__).parent))}".strip()
    try:
        path = inspect.getsourcefile(function)
    except TypeError:
        path = None
    return "" if path is None or not Path(path).is_file() else file_digest(path)


@functools.cache
def _release_of(package: str) -> str:
    return " ".join(f"{name} {version(name)}" for name in sorted(set(packages_distributions().get(package, ()))))


_THREADS_FROM_BYTES = 1 << 20
_PIECE_BYTES = 8 << 20


def digest_of(data: Any) -> str:
    """Returns the BLAKE3 digest of bytes in hexadecimal.

    Args:
        data: Anything with the buffer protocol, contiguous.
    """
    from blake3 import blake3  # needed where engines are cached only

    size = memoryview(data).nbytes
    return blake3(data, max_threads=blake3.AUTO if size > _THREADS_FROM_BYTES else 1).hexdigest()


def digest_of_parts(path: str | os.PathLike[str], parts: Iterable[tuple[int, int]]) -> str:
    """Returns a digest of parts of a file, each byte of which is read once; a few MiB are held at a time.

    Args:
        path: A regular file.
        parts: Where they begin, and where they end at most.

    Raises:
        FileError: It is a folder, a pipe or a device, or holes but for little.
        OSError: It cannot be read.
    """
    from blake3 import blake3

    digest = blake3(max_threads=blake3.AUTO)
    piece = memoryview(bytearray(_PIECE_BYTES))
    with opened(path) as file:
        require_content(file)
        at = 0
        for start, end in sorted(parts):
            digest.update(b"%d %d " % (start, end))
            at = max(at, start)
            file.seek(at)
            while at < end and (size := file.readinto(piece[: end - at])):  # type: ignore[attr-defined]  # it is buffered
                digest.update(piece[:size])
                at += size
    return digest.hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    """Returns a digest of all numbers of a tensor; type and shape are not part of it.

    Nothing is remembered between calls: writes through `tensor.data` or numpy change no version counter, and an engine
    with the weights of yesterday is worse than hashing them again, at several gigabytes a second.

    Args:
        tensor: Any shape and type, on any device.

    Raises:
        Uncacheable: The tensor has no data of its own: it is fake, on the meta device, sparse or of a subclass.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        raise Uncacheable(f"a constant is {kind_of(tensor)} on {tensor.device} with layout {tensor.layout}")
    return digest_of(bytes_of(tensor))


@functools.cache
def source_digest(folder: str) -> str:
    """Returns a digest of all Python sources below a folder, once per process.

    Args:
        folder: Folder of a package.
    """
    root = Path(folder)
    lines = []
    for path in sorted(root.rglob("*.py")):
        lines.append(f"{path.relative_to(root).as_posix()} {digest_of(path.read_bytes())}")
    return digest_of("\n".join(lines).encode())[:32]


@functools.cache
def file_digest(path: str) -> str:
    """Returns a digest of a file's content, once per process."""
    return digest_of(Path(path).read_bytes())[:32]
