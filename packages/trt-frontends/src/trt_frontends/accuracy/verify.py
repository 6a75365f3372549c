"""Compares a compiled model with eager PyTorch, and both with float64 where that is affordable; the report of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import torch
from torch import nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import ExecutionError, InputError, TrtError, logger, operator_name, provider_identity
from trt_core.dtypes import dtype_name
from trt_core.internals import pytree
from trt_core.reports import DataReport
from trt_core.settings_reader import warn_caller
from trt_core.wording import printable
from trt_frontends.accuracy.subject import (
    Model,
    Subject,
    eager_only,
    engine_values,
    errors_by_node,
    is_wrapped,
    require_no_engines,
    run_engines,
    without_wrapper,
)
from trt_frontends.capture import device_of, require_weights
from trt_frontends.comparison.output_error import (
    HISTOGRAM_LOW,
    NUMERIC,
    OutputError,
    as_tensor,
    measure_error,
    run_wide,
    worst_of,
)
from trt_frontends.comparison.sample_inputs import SampleInputs, read_inputs, sample_inputs
from trt_frontends.compiled_module import CompiledModule
from trt_frontends.entry_point import entry_point, outside_autocast
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.pipeline import CALIBRATION, BuiltModel, Progress, no_progress, settings_in, settings_to_build
from trt_frontends.stages import build
from trt_partition.report.partition_report import page_template

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords


@dataclass(frozen=True)
class OutputAccuracy:
    """How far one output of the compiled model is from eager's.

    Attributes:
        name: Where the output stands in the result, such as `[0]` or `['logits']`; empty for a single tensor.
        dtype: Its type.
        error: Compiled against eager, over all inputs.
        worst_input: Name of the inputs with the largest error.
        compiled_from_exact, eager_from_exact: `OutputError.scaled` of compiled and of eager against eager in float64;
            None where float64 was not affordable.
    """

    DERIVED: ClassVar = ("nearer",)

    name: str
    dtype: str
    error: OutputError
    worst_input: str
    compiled_from_exact: float | None = None
    eager_from_exact: float | None = None

    @property
    def nearer(self) -> str:
        """Which of the two is nearer to the exact result: `compiled`, `eager`, `equal`, or empty when unknown."""
        if self.compiled_from_exact is None or self.eager_from_exact is None:
            return ""
        if math.isclose(self.compiled_from_exact, self.eager_from_exact, rel_tol=0.05, abs_tol=1e-15):
            return "equal"
        return "compiled" if self.compiled_from_exact < self.eager_from_exact else "eager"


@dataclass(frozen=True)
class DepthError:
    """How far a node of an engine is from PyTorch's value of it.

    Attributes:
        node: Name of the node.
        operator: What it computes.
        engine: Name of the engine that it is in.
        accumulated: Scaled error when the engine starts from PyTorch's inputs.
    """

    node: str
    operator: str
    engine: str
    accumulated: float


@dataclass(frozen=True, repr=False)
class AccuracyReport(DataReport):
    """How far a compiled model is from eager PyTorch.

    Attributes:
        model: Name of the model.
        provider: What built and ran the engines.
        tolerance: Largest scaled error that passes.
        inputs: Names of the inputs that were compared.
        outputs: One entry for each tensor that the model returns.
        depth: Errors inside the engines, in the order of the graph; empty unless asked for.
        skipped_exact: Why nothing was compared with float64; empty when it was.
    """

    DERIVED: ClassVar = ("passed", "worst")

    model: str
    provider: str
    tolerance: float
    inputs: tuple[str, ...]
    outputs: tuple[OutputAccuracy, ...]
    depth: tuple[DepthError, ...] = ()
    skipped_exact: str = ""

    @property
    def worst(self) -> float:
        """The largest scaled error of any output."""
        return max((output.error.scaled for output in self.outputs), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether every output is within the tolerance."""
        return self.worst <= self.tolerance

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        lines = [
            f"{self.model}: {'within' if self.passed else 'BEYOND'} tolerance, "
            f"worst error {self.worst:.3g} of the largest magnitude, allowed {self.tolerance:.3g}",
            f"{len(self.inputs)} inputs ({', '.join(self.inputs)}), {self.provider}",
        ]
        for output in self.outputs:
            error = output.error
            lines += [
                "",
                f"output{output.name} ({output.dtype}), worst on {output.worst_input}",
                f"  absolute  max {error.max_abs:.3e}  mean {error.mean_abs:.3e}",
                f"  relative  max {error.max_rel:.3e}  mean {error.mean_rel:.3e}  scaled {error.scaled:.3e}",
                f"  cosine {error.cosine:.9f}  signal to noise {error.snr_db:.1f} dB",
            ]
            if any(error.nans) or any(error.infinities):
                lines.append(
                    f"  NaN {error.nans[0]} (eager {error.nans[1]}), "
                    f"infinite {error.infinities[0]} (eager {error.infinities[1]})"
                )
            if output.nearer:
                lines.append(
                    f"  from float64: compiled {output.compiled_from_exact:.3e}, eager {output.eager_from_exact:.3e}"
                    + (f"; {output.nearer} is nearer" if output.nearer != "equal" else "; equally near")
                )
        if self.skipped_exact:
            lines += ["", f"not compared with float64: {self.skipped_exact}"]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Returns the report as one HTML page with plots; it loads nothing."""
        return render_html(self)


# As HTML -------------------------------------------------------------------------------------------------------------


WIDTH: Final = 640
HEIGHT: Final = 180
_FLOOR: Final = 1e-12


def render_html(report: AccuracyReport) -> str:
    """Returns a report as an HTML page."""
    page = page_template("trt_frontends.accuracy", "accuracy.html.j2").render(
        report=report,
        bars=[_bars(output.error.histogram) for output in report.outputs],
        curve=_curve(report),
        width=WIDTH,
        height=HEIGHT,
        number="{:.3g}".format,
    )
    return printable(page)


def _bars(histogram: tuple[int, ...]) -> list[dict[str, Any]]:
    """Bars of a histogram of absolute errors: counts on a logarithmic scale."""
    highest = math.log10(max(histogram) + 1) or 1.0
    step = WIDTH / len(histogram)
    bars = []
    for index, count in enumerate(histogram):
        tall = HEIGHT * math.log10(count + 1) / highest
        label = "exact" if index == 0 else f"1e{HISTOGRAM_LOW + index - 1}"
        bars.append(
            {"x": index * step, "y": HEIGHT - tall, "width": step * 0.85, "tall": tall, "label": label, "count": count}
        )
    return bars


def _curve(report: AccuracyReport) -> dict[str, Any] | None:
    """The error along the depth of the engines, on a logarithmic scale."""
    if not report.depth:
        return None
    values = [min(max(point.accumulated, _FLOOR), 1e4) for point in report.depth]
    logs = [math.log10(value) for value in values]
    low, high = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
    step = WIDTH / max(len(logs) - 1, 1)
    points = [
        {
            "x": index * step,
            "y": HEIGHT * (high - value) / (high - low),
            "title": f"{point.node} ({point.operator}) in {point.engine}: {point.accumulated:.3g}",
        }
        for index, (value, point) in enumerate(zip(logs, report.depth, strict=True))
    ]
    return {"points": points, "low": low, "high": high}


TOLERANCES: Final = {
    torch.float64: 1e-4,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
"""Scaled error that passes, by the narrowest type that is computed in: some hundred roundings of it."""


@outside_autocast
def verify(
    model: Model,
    compiled: Callable[..., Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    inputs: Iterable[Any] | None = None,
    tolerance: float | None = None,
    samples: int = 4,
    seed: int = 0,
    exact: bool = True,
    depth: bool = False,
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> AccuracyReport:
    """Compares a compiled model with eager PyTorch on many inputs.

    Args:
        model: The model in eager PyTorch, or an exported program of it. Parts that `torch.compile` has compiled run in
            eager PyTorch.
        compiled: What `compile` or `torch.compile` made of it; by default the model where that is a module compiled by
            `torch.compile`, else it is compiled here.
        arg_inputs, kwarg_inputs: Tensors or `Input`s, as `compile` takes them. Random inputs are drawn from their
            domains, and dynamic dimensions are tried at their smallest, tuned and largest sizes. An exported program
            brings its own example inputs.
        inputs: Inputs to compare on, in place of random ones: tuples of positional inputs, dicts of keyword inputs, or
            pairs of both.
        tolerance: Largest error that passes, relative to the largest magnitude of an output; by default by type.
        samples: How many random inputs are tried, beside the edges of the domain.
        seed: Seed of the first.
        exact: Whether to compare both with float64, which costs a run in float64 for each input.
        depth: Whether to compare the values inside the engines too, which builds every engine once more.
        progress: Told what is being done.
        registry: Where converters are looked up, when `compiled` is left out, and for `depth`.
        settings: Compilation settings, when `compiled` is left out, and for `depth`. Those of `compiled` that name
            types decide what passes by default.

    Returns:
        The report; `report.passed` says whether every output is within the tolerance.

    Raises:
        InputError: There are no inputs, the two return results of different structure, shape or type, or the model
            has no weights, or engines and `compiled` is left out.
        ExecutionError: One of the two fails on an input.
        SettingsError: A setting cannot be read, or is `dryrun`.
        TrtError: What compiling raises.

    Warns:
        UserWarning: A setting was given that `compiled` leaves nothing to do for.

    Example:
        >>> report = verify(nn.Linear(3, 2).eval(), arg_inputs=(torch.randn(4, 3),), samples=1)
        >>> report.passed, report.inputs
        (True, ('as given', 'seed 0', 'all lowest', 'all highest'))
    """
    if compiled is None and is_wrapped(model):
        compiled = cast(nn.Module, model)
    if compiled is None:
        require_no_engines(model)
    _require_settings(settings, is_compiled=compiled is not None, depth=depth)
    model = without_wrapper(model)
    require_weights(model)
    subject = Subject(model, arg_inputs, kwarg_inputs, registry, settings, progress)
    cases = cases_of(subject, inputs, samples, seed)
    require_tolerance(tolerance)
    built: BuiltModel | None = None
    if compiled is None:
        built, compiled = _compile(subject)
    comparison = _Comparison(subject.eager, compiled, exact=exact)
    with torch.no_grad():
        for done, case in enumerate(cases):
            progress("comparing with eager", done, len(cases))
            comparison.add(case)
    errors_inside: tuple[DepthError, ...] = ()
    if depth:
        progress("comparing inside of engines", 0, 1)
        errors_inside = errors_along_depth(built or subject.lower().build(), cases[0])
    return AccuracyReport(
        model=subject.name,
        provider=provider_identity(),
        tolerance=tolerance_of(settings, comparison.expected) if tolerance is None else tolerance,
        inputs=tuple(case.name for case in cases),
        outputs=comparison.outputs(),
        depth=errors_inside,
        skipped_exact=comparison.skipped_exact,
    )


def _require_settings(given: Mapping[str, Any], *, is_compiled: bool, depth: bool) -> None:
    settings_to_build(given)
    idle = sorted(given.keys() - _OF_TYPES - {"settings", CALIBRATION}) if is_compiled and not depth else ()
    if idle:
        warn_caller(
            f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect: what is compared is compiled already"
        )


_OF_TYPES: Final = frozenset({"precision", "enabled_precisions", "enable_autocast", "autocast_dtype", "max_error"})
"""Settings that `tolerance_of` reads."""


@entry_point
def _compile(subject: Subject) -> tuple[BuiltModel, CompiledModule]:
    captured = subject.capture(needs_weights=True)
    built = build(captured)
    return built, built.wrap(captured.reader(built.lowered.graph.graph))


class _Comparison:
    """Runs both on one input after the other, and keeps the errors."""

    def __init__(self, eager: Callable[..., Any], compiled: Callable[..., Any], *, exact: bool) -> None:
        self.skipped_exact = "" if exact else "not asked for"
        self.expected: list[torch.Tensor] = []
        self._eager, self._compiled = eager, compiled
        self._names: list[str] = []
        self._errors: list[list[OutputError]] = []
        self._from_exact: list[list[tuple[float, float]]] = []
        self._cases: list[str] = []

    def add(self, case: SampleInputs) -> None:
        with eager_only():
            wanted = run_case(case, self._eager, "the model")
        result = run_case(case, self._compiled, "the compiled model")
        _require_alike(case, result, wanted)
        (names, expected), found = _compared(wanted), _compared(result)[1]
        if not self._cases:
            self._names, self.expected = names, expected
            self._errors = [[] for _ in names]
            self._from_exact = [[] for _ in names]
        self._cases.append(case.name)
        wide = self._run_wide(case, len(names))
        for index, (left, right) in enumerate(zip(found, expected, strict=True)):
            self._errors[index].append(measure_error(left, right))
            if wide is not None:
                truth = wide[index]
                pair = measure_error(left, truth).scaled, measure_error(right, truth).scaled
                self._from_exact[index].append(pair)

    def outputs(self) -> tuple[OutputAccuracy, ...]:
        """Returns what came of each output."""
        return tuple(self._output(index) for index in range(len(self._names)))

    def _output(self, index: int) -> OutputAccuracy:
        errors = self._errors[index]
        worst = max(range(len(errors)), key=lambda case: (errors[case].scaled, errors[case].max_abs))
        pairs = self._from_exact[index]
        complete = len(pairs) == len(errors)
        return OutputAccuracy(
            name=self._names[index],
            dtype=dtype_name(self.expected[index].dtype),
            error=worst_of(errors),
            worst_input=self._cases[worst],
            compiled_from_exact=max(pair[0] for pair in pairs) if complete else None,
            eager_from_exact=max(pair[1] for pair in pairs) if complete else None,
        )

    def _run_wide(self, case: SampleInputs, count: int) -> list[torch.Tensor] | None:
        if self.skipped_exact:
            return None
        try:
            with eager_only():
                _, results = _compared(case.call(self._eager, through=run_wide))
        except Exception as error:  # whatever a kernel, or the model itself, has against float64
            self.skipped_exact = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return None
        if len(results) != count:
            self.skipped_exact = "the model returns something else in float64"
            return None
        return results


def cases_of(subject: Subject, inputs: Iterable[Any] | None, samples: int, seed: int) -> list[SampleInputs]:
    """Returns the inputs that a model is compared on; see `verify`.

    Raises:
        InputError: There are none, or they cannot be read.
    """
    model = subject.model
    examples = ExampleInputs.read(None, subject.arg_inputs, subject.kwarg_inputs)
    if examples is None and isinstance(model, torch.export.ExportedProgram) and model.example_inputs is not None:
        args, kwargs = model.example_inputs
        examples = ExampleInputs(tuple(args), dict(kwargs))
    if samples < 0:
        raise InputError(f"samples={samples} is no number of inputs", hint="give 0 or more")
    if inputs is not None:
        return list(read_inputs(inputs))
    if examples is None:
        raise InputError("there are no inputs to compare on", hint="give arg_inputs, or inputs=[...]")
    return list(sample_inputs(examples, device_of(model, examples).torch_device, samples, seed))


def tolerance_of(given: Mapping[str, Any], outputs: Sequence[torch.Tensor]) -> float:
    """Returns the scaled error that passes by default: that of the narrowest type that is computed in.

    Args:
        given: Compilation settings.
        outputs: What eager returns.
    """
    settings = settings_in(given)
    computed = {tensor.dtype for tensor in outputs} | {settings.precision}
    if settings.enable_autocast:
        computed.add(settings.autocast_dtype)
    by_type = max((TOLERANCES[dtype] for dtype in computed if dtype in TOLERANCES), default=0.0)
    return max(by_type, settings.max_error or 0.0)


def require_tolerance(tolerance: Any) -> None:
    """Refuses what no error can be compared with.

    Raises:
        InputError: It is neither None nor a number of at least 0.
    """
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and tolerance >= 0):
        raise InputError(
            f"tolerance={tolerance!r} is no error that may pass",
            hint="give a number of at least 0, relative to the largest magnitude of an output",
        )


def run_case(case: SampleInputs, function: Callable[..., Any], name: str) -> Any:
    """Returns what a model makes of inputs.

    Raises:
        ExecutionError: It fails.
    """
    try:
        return case.call(function)
    except TrtError:
        raise
    except Exception as error:
        raise ExecutionError(
            f"{name} fails on what it is compared on",
            where=f"inputs {case.name!r}",
            why=f"{type(error).__name__}: {error}",
            hint="check the inputs, and see the error that this one was raised from",
        ) from error


def _compared(result: Any) -> tuple[list[str], list[torch.Tensor]]:
    """Names and values of what is compared in a result: its tensors, and its numbers as tensors without axes."""
    leaves, _ = pytree.tree_flatten_with_path(result)
    found = [(pytree.keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, NUMERIC)]
    return [name for name, _ in found], [as_tensor(leaf) for _, leaf in found]


def _require_alike(case: SampleInputs, found: Any, expected: Any) -> None:
    """Refuses results of other kinds, in the order of their leaves; values of tensors and numbers are for figures."""
    left, right = pytree.tree_leaves(found), pytree.tree_flatten_with_path(expected)[0]
    if len(left) != len(right):
        raise InputError(
            f"the compiled model returns {len(left)} values, eager {len(right)}",
            where=f"inputs {case.name!r}",
            hint="give the model that was compiled",
        )
    for one, (path, other) in zip(left, right, strict=True):
        if _kind(one) != _kind(other):
            raise InputError(
                f"output{pytree.keystr(path)} is {_kind(one)}, eager's is {_kind(other)}",
                where=f"inputs {case.name!r}",
                hint="give the model that was compiled",
            )


def _kind(leaf: Any) -> str:
    """What two leaves must have in common; all of it where there is nothing to measure."""
    if isinstance(leaf, torch.Tensor):
        return f"{dtype_name(leaf.dtype)}{tuple(leaf.shape)}"
    if isinstance(leaf, NUMERIC):
        return f"of type {type(leaf).__name__}"
    return repr(leaf) if leaf is None or isinstance(leaf, (str, bytes)) else f"of type {type(leaf).__name__}"


# Errors inside the engines -------------------------------------------------------------------------------------------


def errors_along_depth(built: BuiltModel, case: SampleInputs) -> tuple[DepthError, ...]:
    """Returns the error of every node that runs in an engine, in the order of the graph.

    Each engine starts from the inputs that PyTorch gives it, so errors add up within an engine and not beyond it. All
    values are outputs then, so the provider may fuse less than it does in the engine that is used.
    """
    found = []
    for engine in run_engines(built, case):
        nodes = engine.operators
        try:
            errors = errors_by_node(engine_values(built, engine, nodes), engine.values)
        except TrtError as error:
            logger.warning("the values inside %s cannot be compared: %s", engine.name, error.what)
            continue
        found += [
            DepthError(node.name, operator_name(node.target), engine.name, errors[node.name].scaled) for node in nodes
        ]
    return tuple(found)
