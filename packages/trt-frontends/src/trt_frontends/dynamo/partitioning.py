"""Partitioning: how much of a graph the converters support, and parts of a graph for several compilers."""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, ConverterSupport, require_registry
from trt_core import (
    SUPPORTED,
    CompilationSettings,
    IncompleteCompilationError,
    InputError,
    OperatorSupport,
    Reason,
    Verdict,
    operator_name,
    read_settings,
)
from trt_core.attributes import owner_of, read_attribute
from trt_core.operators import canonical_operators
from trt_core.wording import did_you_mean
from trt_frontends.torch_tensorrt import names_of
from trt_partition import BlockKind, make_plan, make_report, split_into_blocks
from trt_partition import get_graph_converter_support as count_supported


def get_graph_converter_support(
    gm: fx.GraphModule,
    torch_executed_ops: Collection[Any] | None = None,
    *,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> tuple[int, int]:
    """Returns how many operators of a graph the converters support, and how many there are.

    Args:
        gm: A graph with metadata, such as `exported_program.module()` or a lowered one.
        torch_executed_ops: Operators to count as unsupported.
        registry: Where converters are looked up.

    Raises:
        SettingsError: An operator is unknown, or the registry is none.
    """
    require_registry(registry)
    settings = read_settings(torch_executed_ops=torch_executed_ops or set())
    return count_supported(_without_guards(gm), ConverterSupport(settings, registry), settings)


_ENGINES: Final = "tensorrt"
"""The backend whose parts become engines: its converters are asked, too."""


@dataclass(frozen=True)
class BackendSupport:
    """Which operators each backend takes, by its name, the first ones before the others.

    Attributes:
        operators: Names of operators, `torch.ops.aten.relu.default`.
        parts: Names of the parts of each backend in the graph, in order; those of PyTorch under `""`.
    """

    operators: Mapping[str, frozenset[str]]
    parts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Listed:
    names: frozenset[str]
    inner: OperatorSupport | None

    def verdict(self, node: fx.Node) -> Verdict:
        if node.target is operator.getitem:
            return SUPPORTED
        if operator_name(node.target) not in self.names:
            return Verdict.refuse(Reason.NO_CONVERTER, "the backend does not list the operator")
        return SUPPORTED if self.inner is None else self.inner.verdict(node)


def hierarchical_adjacency_partition(
    gm: fx.GraphModule,
    verbose: bool = False,
    min_block_size: int = 5,
    torch_executed_ops: Collection[Any] = (),
    backend_support_map: Mapping[str, Collection[Any]] | None = None,
    backend_priority: Sequence[str] | None = None,
    require_full_compilation: bool = False,
    skip_fusion: bool = False,
    *,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> tuple[fx.GraphModule, BackendSupport]:
    """Splits a graph into parts for several compilers: a node goes to the first one that takes it.

    Args:
        gm: A flat graph with metadata, such as `exported_program.module()`.
        verbose: Print the split graph.
        min_block_size: Least number of operators of a part; what is smaller goes to the next backend.
        torch_executed_ops: Operators that stay in PyTorch.
        backend_support_map: Operators of each backend. Of `"tensorrt"` they are also looked up in the registry.
        backend_priority: Backends, the first choice first; by default in the order of the map.
        require_full_compilation: Whether nothing may stay in PyTorch.
        skip_fusion: No effect: nothing is merged that a backend does not take.
        registry: Where converters are looked up.

    Returns:
        The split graph, whose parts are children called `_run_on_acc_<backend>_<number>` and `_run_on_gpu_<number>`,
        and what was supported.

    Raises:
        InputError: A backend has no operators.
        IncompleteCompilationError: `require_full_compilation` is set, and nodes stay in PyTorch.
        SettingsError: An operator of `torch_executed_ops` is unknown.

    Example:
        >>> program = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),))
        >>> operators = {"inductor": {"torch.ops.aten.relu.default"}, "tensorrt": {"torch.ops.aten.linear.default"}}
        >>> split, support = hierarchical_adjacency_partition(
        ...     program.module(), min_block_size=1, backend_support_map=operators
        ... )
        >>> [name for name, _ in split.named_children() if name.startswith("_run_on")]
        ['_run_on_acc_tensorrt_0', '_run_on_acc_inductor_1']
    """
    require_registry(registry)
    given = {_ENGINES: list(registry)} if backend_support_map is None else backend_support_map
    priority = list(given) if backend_priority is None else list(backend_priority)
    for name in priority:
        if name not in given:
            raise InputError(f"backend_support_map has no operators for {name!r}", hint=did_you_mean(name, given))
    settings = read_settings(min_block_size=min_block_size, torch_executed_ops=torch_executed_ops)
    names = {name: canonical_operators(given[name], "backend_support_map") for name in priority}
    supports: list[tuple[str, OperatorSupport]] = [
        (name, _Listed(names[name], ConverterSupport(settings, registry) if name == _ENGINES else None))
        for name in priority
    ]
    writer = _PartWriter(settings)
    flat = _without_guards(gm)
    writer.graph.output(writer.write(flat, None, supports))
    writer.graph.set_codegen(copy.copy(gm.graph._codegen))
    result = fx.GraphModule(writer.owner, writer.graph, class_name=type(gm).__name__)
    result.graph.lint()
    if verbose:
        print(result)  # noqa: T201 - what scripts ask for
    if require_full_compilation and writer.parts.get(""):
        raise IncompleteCompilationError(
            f"{len(writer.parts[''])} parts of the graph stay in PyTorch",
            hint="leave require_full_compilation out, or give their operators to a backend",
        )
    return result, BackendSupport(names, {name: tuple(found) for name, found in writer.parts.items()})


class _PartWriter:
    """Writes a graph of parts: what one backend leaves over is divided again, for the next one."""

    def __init__(self, settings: CompilationSettings) -> None:
        self.graph = fx.Graph()
        self.owner = nn.Module()
        self.parts: dict[str, list[str]] = {}
        self._settings = settings
        self._count = 0

    def write(
        self, gm: fx.GraphModule, inputs: Sequence[Any] | None, supports: Sequence[tuple[str, OperatorSupport]]
    ) -> Any:
        """Writes a graph; returns what it returns. Without inputs, its placeholders are those of the whole."""
        (backend, support), *others = supports
        plan = make_plan(gm, support, self._settings)
        kinds = {block.name: block.kind for block in plan.blocks}
        split = split_into_blocks(gm, plan)
        values: dict[fx.Node, Any] = {}
        given = iter(inputs or ())
        for node in split.graph.nodes:
            if node.op == "placeholder":
                values[node] = self.graph.node_copy(node) if inputs is None else next(given)
            elif node.op == "call_module":
                child = split.get_submodule(str(node.target))
                assert isinstance(child, fx.GraphModule)
                arguments = fx.map_arg(node.args, values.__getitem__)
                if kinds[str(node.target)] is BlockKind.ENGINE or not others:
                    is_engine = kinds[str(node.target)] is BlockKind.ENGINE
                    values[node] = self._call(child, backend if is_engine else "", arguments, node)
                else:
                    values[node] = self.write(child, arguments, others)
            elif node.op == "output":
                return fx.map_arg(node.args[0], values.__getitem__)
            elif node.target is operator.getitem and isinstance(values.get(node.args[0]), (tuple, list)):
                values[node] = values[node.args[0]][node.args[1]]
            else:
                if node.op == "get_attr":
                    self._share(split, str(node.target))
                values[node] = self.graph.node_copy(node, values.__getitem__)
        return None

    def _call(self, part: fx.GraphModule, backend: str, arguments: Sequence[Any], caller: fx.Node) -> fx.Node:
        name = f"_run_on_acc_{backend}_{self._count}" if backend else f"_run_on_gpu_{self._count}"
        self._count += 1
        self.parts.setdefault(backend, []).append(name)
        self.owner.add_module(name, part)
        call = self.graph.call_module(name, tuple(arguments))
        call.meta = dict(caller.meta)
        return call

    def _share(self, source: fx.GraphModule, target: str) -> None:
        owner, name = owner_of(self.owner, target)
        setattr(owner, name, read_attribute(source, target))


def _without_guards(gm: fx.GraphModule) -> fx.GraphModule:
    """`ExportedProgram.module()` adds a call that checks its inputs, which is no operator of the model."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op != "call_module" or node.users:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(gm, graph)


__all__ = [
    "BackendSupport",
    "get_graph_converter_support",
    "hierarchical_adjacency_partition",
    "make_plan",
    "make_report",
    "split_into_blocks",
]

__getattr__, __dir__ = names_of(__name__)
