"""Runs one case in this process: makes the model, compiles it, compares it with eager."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

import trt_frontends
from tools.zoo.comparison import Mismatch, agrees, error
from tools.zoo.entry import Case, Entry, Route, Shapes
from tools.zoo.inputs import fixed, typed
from tools.zoo.record import Outcome, Record
from tools.zoo.settle import settle
from trt_core import ExportError, Input, InputError
from trt_core.errors import TrtError
from trt_frontends.capture import capture
from trt_frontends.example_inputs import ExampleInputs

Values = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]
Reports = Sequence[Any]

SEED = 0

SIZES: Final = {Shapes.STATIC: ("opt",), Shapes.DYNAMIC: ("opt", "min", "max")}
"""The sizes of the calls of a case, in order."""

_TURNS_ON_GPUS: Final = 3

AFFORDABLE_SECONDS = 5.0
"""A model whose forward pass takes longer is not run in float64 as well."""


class CaptureFailure(Exception):
    """The model cannot be exported for its inputs; the cause says why."""


def check(entry: Entry, case: Case, device: str = "cpu", dtype: torch.dtype | None = None) -> Record:
    """Runs a case; whatever goes wrong is in the record.

    Args:
        entry: The model and its inputs.
        case: How it gets to engines.
        device: Where it runs. On a GPU every size is called three times: kernels are started, recorded, repeated.
        dtype: What its floats are; those of the entry by default.
    """
    if entry.excluded:
        return Record.of(case, Outcome.EXCLUDED, why=entry.excluded)
    if case.shapes is Shapes.DYNAMIC and entry.fixed_shapes:
        return Record.of(case, Outcome.EXCLUDED, why=entry.fixed_shapes)
    torch.manual_seed(SEED)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = settle(entry.make()).to(device, dtype)
        specs = _specs(entry, case.shapes, dtype)
        turns = 1 if device == "cpu" else _TURNS_ON_GPUS
        samples = [_values(specs, which, device) for which in SIZES[case.shapes]] * turns
        expected, own = _reference(model, samples)
        if own is None and dtype is not None:
            own = torch.finfo(dtype).eps
        start = time.perf_counter()
        try:
            compiled, reports_of = _compile(model, specs, case, samples[0])
            seconds = time.perf_counter() - start
            found = [call(compiled, values) for values in samples]
            reports = reports_of()
        except Exception as failure:  # whatever it is, it is what became of the case
            seconds = time.perf_counter() - start
            why = _not_captured(failure, model, specs, case, samples)
            outcome = Outcome.NOT_CAPTURED if why else Outcome.FAILED
            return Record.of(case, outcome, why=why or _short(failure), seconds=seconds)
        facts: dict[str, Any] = {"own_error": own, "seconds": seconds, **_facts(reports)}
        try:
            facts["error"] = max(error(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
        except Mismatch as mismatch:
            return Record.of(case, Outcome.WRONG, why=str(mismatch), **facts)
        outcome = _judge(facts)
        if outcome is Outcome.WRONG and (why := _captured_wrong(model, case, samples[0], expected[0], found[0])):
            return Record.of(case, Outcome.NOT_CAPTURED, why=why, **facts)
    return Record.of(case, outcome, **facts)


def _captured(model: nn.Module, case: Case, values: Values) -> Callable[..., Any]:
    """What PyTorch captures of the model, to be run by PyTorch; an exported program is one of fixed shapes."""
    if case.route is Route.TORCH_COMPILE:
        torch.compiler.reset()
        return torch.compile(model, backend="eager", dynamic=case.shapes is Shapes.DYNAMIC)
    args, kwargs = values
    return torch.export.export(model, args, kwargs, strict=False).module()


def _captured_wrong(model: nn.Module, case: Case, values: Values, expected: Any, ours: Any) -> str:
    """Says so where what PyTorch captures does not agree with the model, and the compiler's results are those of it."""
    captured = call(_captured(model, case, values), values)
    if agrees(error(captured, expected), None) or not agrees(error(ours, captured), None):
        return ""
    what = 'torch.compile(backend="eager")' if case.route is Route.TORCH_COMPILE else "torch.export"
    return f"what {what} captures gives other results than the model does"


def _not_captured(
    failure: Exception,
    model: nn.Module,
    specs: tuple[tuple[Input, ...], dict[str, Input]],
    case: Case,
    samples: Sequence[Values],
) -> str:
    """Says how PyTorch fails to capture a model, where it does; empty where the failure is the compiler's own.

    What an engine refuses is the compiler's own failure, unless what was captured fails in PyTorch as well.
    """
    if isinstance(failure, CaptureFailure):
        return _short(failure.__cause__ or failure)
    how = 'torch.compile(backend="eager")' if case.route is Route.TORCH_COMPILE else "the exported program"
    try:
        captured = (
            _captured(model, case, samples[0])
            if case.route is Route.TORCH_COMPILE
            else capture(model, ExampleInputs.read(None, *specs)).module()
        )
        for values in samples:
            call(captured, values)
    except Exception as second:
        return f"{how} fails too: {_short(second)}"
    return ""


def _judge(facts: Mapping[str, Any]) -> Outcome:
    if not agrees(facts["error"], facts["own_error"]):
        return Outcome.WRONG
    if not facts["engines"]:
        return Outcome.IN_TORCH
    return Outcome.PARTLY if facts["reasons"] else Outcome.WHOLE


def _specs(
    entry: Entry, shapes: Shapes, dtype: torch.dtype | None = None
) -> tuple[tuple[Input, ...], dict[str, Input]]:
    def convert(spec: Input) -> Input:
        given = typed(spec, dtype) if dtype is not None and spec.dtype.is_floating_point else spec
        return fixed(given) if shapes is Shapes.STATIC else copy.copy(given)

    return tuple(map(convert, entry.args)), {name: convert(spec) for name, spec in entry.kwargs.items()}


def _values(specs: tuple[tuple[Input, ...], dict[str, Input]], which: str, device: str = "cpu") -> Values:
    args, kwargs = specs
    return tuple(spec.example(which, device) for spec in args), {
        name: spec.example(which, device) for name, spec in kwargs.items()
    }


def sample_values(entry: Entry, which: str) -> Values:
    """Returns inputs of an entry at one of the sizes it varies over: `min`, `opt` or `max`."""
    return _values(_specs(entry, Shapes.DYNAMIC), which)


def call(function: Callable[..., Any], values: Values) -> Any:
    """Calls with copies of the inputs, and with the generator where every other call has it."""
    args, kwargs = pytree.tree_map(torch.clone, values)
    torch.manual_seed(SEED)
    return pytree.tree_map_only(torch.Tensor, torch.clone, function(*args, **kwargs))


def _reference(model: nn.Module, samples: Sequence[Values]) -> tuple[list[Any], float | None]:
    """Returns eager's results, and how far the first of them lies from eager's in float64."""
    start = time.perf_counter()
    expected = [call(model, values) for values in samples]
    if (time.perf_counter() - start) / len(samples) > AFFORDABLE_SECONDS:
        return expected, None
    try:
        double = pytree.tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, samples[0])
        return expected, error(expected[0], call(copy.deepcopy(model).double(), double))
    except Exception:  # models that make float32 tensors on the way, choices that rounding decides: not known
        return expected, None


def _compile(
    model: nn.Module, specs: tuple[tuple[Input, ...], dict[str, Input]], case: Case, values: Values
) -> tuple[Callable[..., Any], Callable[[], Reports]]:
    """Returns the compiled model, and what returns its reports."""
    if case.route is Route.COMPILE:
        try:
            compiled = trt_frontends.compile(model, arg_inputs=specs[0], kwarg_inputs=specs[1])
        except (ExportError, InputError) as failure:
            raise CaptureFailure from failure
        return compiled, lambda: [compiled.meta["partition_report"]]
    optimized = torch.compile(model, backend="torch_tensorrt", dynamic=case.shapes is Shapes.DYNAMIC)
    call(optimized, values)
    graphs = trt_frontends.model_report(optimized).graphs
    latest = [graph.builds[-1].partition for graph in graphs if graph.builds]
    return optimized, lambda: [report for report in latest if report is not None]


def _facts(reports: Reports) -> dict[str, Any]:
    nodes = [node for report in reports for node in report.nodes]
    outside = [node for report in reports for node in report.torch_nodes]
    reasons: dict[str, str] = {}
    for node in outside:
        message = f"{node.op.removeprefix('torch.ops.')}: {node.verdict.message}"
        reasons.setdefault(node.verdict.code, message)
    return {
        "graphs": len(reports),
        "operators": len(nodes),
        "engines": sum(len(report.engines) for report in reports),
        "coverage": round(1 - len(outside) / len(nodes), 4) if nodes else 0.0,
        "reasons": reasons,
    }


def _short(failure: BaseException, limit: int = 600) -> str:
    text = str(failure) if isinstance(failure, TrtError) else f"{type(failure).__name__}: {failure}"
    return " ".join(text.split())[:limit]
