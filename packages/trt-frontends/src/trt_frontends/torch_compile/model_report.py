"""The report of a whole model under `torch.compile`: its graphs, what ended each, what was built and why."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx, nn

from trt_core import InputError
from trt_core.reports import DataReport
from trt_core.wording import counted, kind_of
from trt_frontends.torch_compile.compiled_graph import BuildReport, CompiledGraph
from trt_partition import PartitionReport, modules_in

_GRAPHS: Final = "_trt_captured_graphs"
_MOST_FRAMES: Final = 32


@dataclass(frozen=True)
class GraphReport:
    """One graph that Dynamo captured.

    Attributes:
        builds: What was built for it, in order; the last is in use. Empty before the first call.
        ended_by: Why Dynamo ended the graph where it does; empty at the end of the model's code.
        where: `file:line` of the code that ended it.
        in_pytorch: Why the graph as a whole runs in PyTorch; empty where engines run it.
    """

    builds: tuple[BuildReport, ...]
    ended_by: str
    where: str
    in_pytorch: str


@dataclass(frozen=True, repr=False)
class ModelReport(DataReport):
    """All graphs of a model, in the order in which they were captured.

    Attributes:
        graphs: The graphs. Code that was captured again, for other types or sizes, is there again.
        left_out: What keeps code of the model from being captured, and what to do; where PyTorch does not even ask
            the backend.
    """

    graphs: tuple[GraphReport, ...]
    left_out: tuple[str, ...] = ()

    @property
    def graph_breaks(self) -> tuple[GraphReport, ...]:
        """The graphs that ended before the model's code did."""
        return tuple(graph for graph in self.graphs if graph.ended_by)

    @property
    def engines(self) -> int:
        """Number of engines that are in use."""
        return sum(len(report.engines) for report in self._in_use())

    @property
    def coverage(self) -> float:
        """Share of the operators of all graphs that can run in engines; 1.0 where there are none."""
        total = sum(report.total_operators for report in self._in_use())
        supported = sum(round(report.coverage * report.total_operators) for report in self._in_use())
        return supported / total if total else 1.0

    def to_text(self) -> str:
        """Returns the report as text: a line for each graph, then the partition report of each."""
        lines = [
            f"{counted(len(self.graphs), 'graph')}, {counted(self.engines, 'engine')}, {self.coverage:.2%} coverage"
        ]
        if not self.graphs:
            lines = [
                "no graph was captured: the model was not called, or PyTorch runs all of its code outside of graphs"
            ]
        lines += [f"Left out: {what}" for what in self.left_out]
        for number, graph in enumerate(self.graphs, start=1):
            lines.append(f"Graph {number}: {_summary(graph)}")
            if graph.ended_by:
                lines.append(f"  ended by a graph break at {graph.where}: {graph.ended_by}")
        for number, graph in enumerate(self.graphs, start=1):
            if graph.builds and graph.builds[-1].partition is not None:
                lines += ["", f"Graph {number}", graph.builds[-1].partition.to_text()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values; partition reports as `PartitionReport.to_json` writes them."""
        graphs = [
            {
                "ended_by": graph.ended_by,
                "where": graph.where,
                "in_pytorch": graph.in_pytorch,
                "builds": [
                    {"reason": build.reason, "partition": build.partition and json.loads(build.partition.to_json())}
                    for build in graph.builds
                ],
            }
            for graph in self.graphs
        ]
        return {"format": 1, "graphs": graphs, "left_out": list(self.left_out)}

    def _in_use(self) -> list[PartitionReport]:
        latest = [graph.builds[-1].partition for graph in self.graphs if graph.builds]
        return [report for report in latest if report is not None]


@dataclass
class CapturedGraph:
    """What the backend remembers of a graph.

    Attributes:
        ended_by, where, in_pytorch: As in `GraphReport`.
        compiled: What runs it; None where PyTorch does.
        is_dropped: Whether Dynamo captures the code again instead of using the graph.
        has_recurrent_layers: Whether recurrent layers were captured with the rest.
        modules: What the modules in it are called, and those in the graphs that were captured before it, if noted.
        code: Of what it was captured, as `name_of_code` calls it; empty where nobody knows.
    """

    ended_by: str
    where: str
    in_pytorch: str = ""
    compiled: CompiledGraph | None = field(default=None, repr=False)
    is_dropped: bool = False
    has_recurrent_layers: bool = False
    modules: frozenset[str] = field(default=frozenset(), repr=False)
    code: str = ""

    def end(self) -> str:
        """Returns where and why Dynamo ended the graph, ` at model.py:3: Call to ...`; "" for the end of the code."""
        reason, _, _ = self.ended_by.partition("\n")
        return f"{f' at {self.where}' if self.where else ''}: {reason}" if reason else ""

    def report(self) -> GraphReport:
        """Returns what is known by now."""
        builds = tuple(self.compiled.history) if self.compiled is not None else ()
        return GraphReport(builds, self.ended_by, self.where, self.in_pytorch)


class CapturedGraphs(list[CapturedGraph]):
    """The graphs of one model. A copy of the model, and one read from a file, is captured anew, so theirs are none."""

    def __deepcopy__(self, _: Any) -> CapturedGraphs:
        return CapturedGraphs()

    def __reduce__(self) -> tuple[type[CapturedGraphs], tuple[()]]:
        return CapturedGraphs, ()


class GraphKeeper:
    """A backend that keeps the graphs of one model itself, without PyTorch's wrapper between."""


def model_report(optimized: Any) -> ModelReport:
    """Returns the report of what `torch.compile` returned, or of a module that was compiled in place.

    Args:
        optimized: What `optimize` or `torch.compile(..., backend="torch_tensorrt")` returned, or a module whose
            `compile` method was called with that backend.

    Raises:
        InputError: It was not compiled, or by another backend.

    Example:
        >>> import torch
        >>> optimized = torch.compile(torch.nn.Linear(4, 4).eval(), backend="torch_tensorrt")
        >>> with torch.no_grad():
        ...     _ = optimized(torch.ones(2, 4))
        >>> len(model_report(optimized).graphs)
        1
    """
    wrapper = _backend_of(optimized)
    if wrapper is None:
        raise InputError(
            f"there is no report of {kind_of(optimized)} that torch.compile did not return",
            hint='give what torch.compile(..., backend="torch_tensorrt") returned',
        )
    graphs: Sequence[CapturedGraph] = getattr(wrapper, _GRAPHS, ())
    takes_all = isinstance(wrapper, GraphKeeper) or any(graph.has_recurrent_layers for graph in graphs)
    return ModelReport(
        tuple(graph.report() for graph in graphs if not graph.is_dropped),
        () if takes_all else _recurrent_layers_left_out(getattr(optimized, "_orig_mod", optimized)),
    )


def remember_graph(gm: fx.GraphModule, *, notes_modules: bool = False) -> CapturedGraph:
    """Notes a graph that Dynamo hands to the backend with the `torch.compile` that it belongs to.

    Args:
        gm: The graph as the backend got it; called by the backend, since PyTorch says only on the stack who asks.
        notes_modules: Whether somebody will ask what its modules are called.
    """
    reason = getattr(gm, "compile_subgraph_reason", None)
    is_break = bool(getattr(reason, "graph_break", False))
    stack = list(getattr(reason, "user_stack", ()) or ())
    where = f"{stack[-1].filename}:{stack[-1].lineno}" if is_break and stack else ""
    text = str(getattr(reason, "reason", "")).strip() if is_break else ""
    from trt_frontends.internals import dynamo_config  # costly to import

    graph = CapturedGraph(text, where, has_recurrent_layers=dynamo_config.allow_rnn)
    graph.code = name_of_code(captured_frame().get("code"))
    wrapper = _calling_wrapper()
    graph.modules = modules_in(gm) if notes_modules else frozenset()
    if wrapper is not None:
        known = wrapper.__dict__.setdefault(_GRAPHS, CapturedGraphs())
        graph.modules = graph.modules.union(*(before.modules for before in known[-1:]))
        known.append(graph)
    return graph


def captured_frame() -> dict[str, Any]:
    """Returns what Dynamo knows of the frame that it is capturing in this thread; nothing where it is not capturing.

    It hands that to nobody, so that it is read from the stack: `code`, `cache_size` and `compiler_fn` among others.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_globals.get("__name__") == "torch._dynamo.convert_frame":
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def name_of_code(code: Any) -> str:
    """Returns what code is called on every rank, `model.py:12`: that of the whole function where it is the rest of one.

    Args:
        code: A code object, or None for one that nobody knows.
    """
    if code is None:
        return ""
    from trt_frontends.internals import ContinueExecutionCache  # costly to import

    rest = ContinueExecutionCache.generated_code_metadata.get(code)
    whole = code if rest is None else rest.code
    return f"{os.path.basename(whole.co_filename)}:{whole.co_firstlineno}"


def _calling_wrapper() -> Any:
    frame: Any = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        if _is_wrapper(owner):
            return owner
        frame = frame.f_back
    return None


def _backend_of(optimized: Any) -> Any:
    """Returns PyTorch's wrapper of the backend behind a compiled callable, None when there is none."""
    context = getattr(optimized, "dynamo_ctx", None)
    if context is not None:
        return _unwrap(context.callback)
    call = getattr(optimized, "_compiled_call_impl", None) or optimized
    for cell in getattr(call, "__closure__", None) or ():
        found = _unwrap(getattr(cell.cell_contents, "callback", None))
        if found is not None:
            return found
    return None


def _unwrap(callback: Any) -> Any:
    while callback is not None and not _is_wrapper(callback):
        callback = getattr(callback, "_torchdynamo_orig_backend", None)
    return callback


def is_ours(callback: Any, backend: Any) -> bool:
    """Whether code is captured for our backend, which PyTorch may have wrapped."""
    wrapper = _unwrap(callback)
    return isinstance(wrapper, GraphKeeper) or (
        wrapper is not None and getattr(wrapper, "compiler_fn", None) is backend
    )


def _is_wrapper(owner: Any) -> bool:
    return type(owner).__name__ == "_TorchCompileWrapper" or isinstance(owner, GraphKeeper)


def _recurrent_layers_left_out(model: Any) -> tuple[str, ...]:
    """Says which layers Dynamo leaves alone, with the code that calls them; nothing where it was told not to."""
    from trt_frontends.internals import dynamo_config  # costly to import

    if dynamo_config.allow_rnn or not isinstance(model, nn.Module):
        return ()
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.RNNBase)]
    return tuple(
        f"nn.{type(layer).__name__} {name or 'itself'}, and code that calls it: Dynamo captures none of it. Compile "
        "with trt_frontends.optimize(model), or set torch._dynamo.config.allow_rnn = True before the first call"
        for name, layer in layers
    )


def _summary(graph: GraphReport) -> str:
    if graph.in_pytorch:
        return f"runs in PyTorch: {graph.in_pytorch}"
    if not graph.builds:
        return "not called yet"
    report = graph.builds[-1].partition
    reasons = "; ".join(build.reason for build in graph.builds)
    built = f"built {len(graph.builds)} times ({reasons})" if len(graph.builds) > 1 else "built once"
    if report is None:
        return f"runs in PyTorch, {built}"
    engines = counted(len(report.engines), "engine")
    return f"{engines}, {report.coverage:.2%} coverage of {counted(report.total_operators, 'operator')}, {built}"
