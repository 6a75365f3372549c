"""The entry points that compile, and that explain what compiling would do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, preserve_predicate
from trt_core import CompilationSettings, SettingsError, logger, read_settings
from trt_core.ranges import ShapeRanges
from trt_frontends.capture import capture, device_of, keyword_inputs, parameter_names, with_device
from trt_frontends.compiled_module import CompiledModule
from trt_frontends.device_check import require_device
from trt_frontends.entry_point import entry_point
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.input_guard import InputGuard
from trt_frontends.offload import offload
from trt_frontends.pipeline import Compilation, Progress, announce, no_progress
from trt_frontends.snapshot import take_snapshot
from trt_frontends.weightless import require_weights
from trt_lowering import DecomposedGraph, PrecisionRules, begin_lowering
from trt_lowering.contract import Observer
from trt_partition import PartitionReport, require_known_modules


@entry_point
def compile(
    module: nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    autocast_calibration_dataloader: Iterable[Any] | None = None,
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Any,
) -> CompiledModule:
    """Compiles a module, or an exported program, into engines.

    Args:
        module: What to compile. A module is exported first.
        inputs, arg_inputs: Positional inputs, tensors or `Input`s. For an exported program they may be left out;
            given, they decide the range and the optimum of its dynamic dimensions.
        kwarg_inputs: Inputs by keyword.
        autocast_calibration_dataloader: Inputs that precision is decided on, where a setting measures anything: tuples
            of positional inputs, dicts of keyword inputs, pairs of both, or tensors. By default the tensors among the
            inputs, and random ones like them.
        progress: Called with what is being done, and how much of it.
        registry: Where converters are looked up; a changed `DYNAMO_CONVERTERS.copy()` is for this compilation alone.
        settings: Compilation settings; see `CompilationSettings`.

    Returns:
        A module that is called like the model, and refuses inputs that it was not compiled for with an `InputError`.
        All its weights are those of the model at this time, also where PyTorch runs; what the model writes to, such as
        running statistics and caches, is the model's own, as for eager calls.
        `meta["partition_report"]` holds the `PartitionReport`. With `dryrun` nothing is built, and the module runs in
        PyTorch.

    Raises:
        ExportError: The module cannot be exported.
        InputError: The inputs cannot be read, or do not fit the model; or the model has no weights to build from.
        SettingsError: A setting cannot be read.
        IncompleteCompilationError: `require_full_compilation` is set and some nodes cannot run in an engine.
        BuildError: An engine cannot be built, and `pass_through_build_failures` is set.
        ExecutionError: `use_cuda_graphs` is set, and calls of the compiled model cannot be recorded.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> compiled = compile(model, arg_inputs=(torch.randn(2, 4),))
        >>> compiled.meta["partition_report"].coverage
        1.0
    """
    given = {**settings, _CALIBRATION: autocast_calibration_dataloader}
    compilation, graph = prepare(
        module, inputs, arg_inputs, kwarg_inputs, given, progress, registry, needs_weights=True
    )
    _require_graphs(compilation.settings)
    with visible_log(compilation.settings):
        if compilation.settings.dryrun:
            report = compilation.report()
            announce(report, compilation.settings)
            graph.meta["partition_report"] = report
            compiled = graph
        else:
            compiled = compilation.run()
            take_snapshot(compiled, graph)
    guard = InputGuard.of(graph.graph, compilation.ranges, parameter_names(module))
    result = CompiledModule(compiled, compiled.graph, guard, _graphs_on(compilation.settings))
    if compilation.settings.offload_module_to_cpu and not compilation.settings.dryrun:
        offload(module, result)
    return result


@entry_point
def explain(
    module: nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    autocast_calibration_dataloader: Iterable[Any] | None = None,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Any,
) -> PartitionReport:
    """Returns the report that compiling with the same arguments would give. Builds nothing, prints nothing.

    Args:
        module, inputs, arg_inputs, kwarg_inputs, autocast_calibration_dataloader, registry, settings: See `compile`.
            The module may lack weights: a model on the `meta` device, or made of fake tensors, is explained like the
            real one, in little memory.

    Raises:
        ExportError: The module cannot be exported.
        InputError: The inputs cannot be read, or do not fit the model.
        SettingsError: A setting cannot be read.

    Example:
        >>> report = explain(nn.ReLU(), arg_inputs=(torch.randn(2, 3),))
        >>> report.total_operators, report.supported_operators
        (1, 1)
    """
    # the obstacles are what the report is asked for, so they are no error here
    without_demands = {
        **settings,
        _CALIBRATION: autocast_calibration_dataloader,
        "require_full_compilation": False,
    }
    compilation, _ = prepare(module, inputs, arg_inputs, kwarg_inputs, without_demands, registry=registry)
    return compilation.report()


def prepare(
    module: nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[Any] | None,
    arg_inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
    given: Mapping[str, Any],
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    *,
    needs_weights: bool = False,
    observe: Observer | None = None,
) -> tuple[Compilation, fx.GraphModule]:
    """Captures and lowers; what compiling and explaining have in common.

    Args:
        module, inputs, arg_inputs, kwarg_inputs: See `compile`.
        given: Settings as the user gave them, with `autocast_calibration_dataloader` where it was given.
        progress: Told what is being done.
        registry: Where converters are looked up.
        needs_weights: Refuse a model without weights, unless the settings ask for a dry run.
        observe: Sees the graph after every lowering pass.

    Returns:
        The compilation, and the lowered graph that it is about.
    """
    settings = settings_in(given)
    examples = ExampleInputs.read(inputs, arg_inputs, kwarg_inputs)
    settings = with_device(settings, given, device_of(module, examples))
    if needs_weights and not settings.dryrun:
        require_device(settings.device)
    with visible_log(settings):
        progress("capturing", 0, 1)
        program = capture(module, examples)
        if needs_weights and not settings.dryrun:
            require_weights(program)
        progress("lowering", 0, 1)
        preserve = preserve_predicate(settings, registry)
        decomposed = begin_lowering(program, settings, preserve=preserve, observe=observe)
        flat = None if examples is None else examples.in_order_of(keyword_inputs(program))
        ranges = ShapeRanges.from_placeholders(decomposed.graph, flat, program.range_constraints)
        graph = decomposed.finish(_exclusions(decomposed, module, program, examples, given.get(_CALIBRATION), ranges))
    require_known_modules(graph, settings)
    _require_one_profile(ranges, settings)
    return Compilation(graph, settings, ranges, registry, progress), graph


_CALIBRATION: Final = "autocast_calibration_dataloader"


def settings_in(given: Mapping[str, Any]) -> CompilationSettings:
    """Reads the settings among the keywords that `compile` takes.

    Raises:
        SettingsError: A setting cannot be read.
    """
    return read_settings({name: value for name, value in given.items() if name != _CALIBRATION})


def _exclusions(
    decomposed: DecomposedGraph,
    module: nn.Module | torch.export.ExportedProgram,
    program: torch.export.ExportedProgram,
    examples: ExampleInputs | None,
    calibration: Iterable[Any] | None,
    ranges: ShapeRanges,
) -> PrecisionRules:
    """Returns what is to stay in float32; whatever has to be measured for that is."""
    from trt_frontends.precision.calibration import Calibration  # it runs models, which compiling seldom has to
    from trt_frontends.precision.exclusions import exclusions, warn_of_unmatched

    if examples is None and program.example_inputs is not None:
        args, kwargs = program.example_inputs
        examples = ExampleInputs(tuple(args), dict(kwargs))
    warn_of_unmatched(decomposed)
    guard = InputGuard.of(decomposed.graph.graph, ranges, parameter_names(module))
    device = decomposed.settings.device.torch_device
    return exclusions(decomposed, Calibration(examples, calibration, guard, device).flat)


def _require_graphs(settings: CompilationSettings) -> None:
    """Finds at the door that CUDA graphs are asked for where there can be none."""
    device = settings.device.torch_device
    if settings.use_cuda_graphs and device.type != "cuda":
        raise SettingsError(
            "use_cuda_graphs needs a CUDA device",
            why=f"the model is compiled for {device}",
            hint="move the model and its inputs to the GPU, or leave the setting out",
        )


def _require_one_profile(ranges: ShapeRanges, settings: CompilationSettings) -> None:
    if settings.refit and ranges.profiles:
        raise SettingsError(
            "refit goes with one optimization profile",
            why=f"the inputs have {len(ranges.profiles)}, and TensorRT refits engines of one profile only",
            hint="give each input one range, or leave refit out",
        )


def _graphs_on(settings: CompilationSettings) -> torch.device | None:
    return settings.device.torch_device if settings.use_cuda_graphs and not settings.dryrun else None


@contextlib.contextmanager
def visible_log(settings: CompilationSettings) -> Iterator[None]:
    """With `debug`, shows the log of the compilation on stderr, also where logging was never set up."""
    if not settings.debug:
        yield
        return
    level = logger.level
    handler = None if logger.hasHandlers() else logging.StreamHandler()
    if handler is not None:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            logger.removeHandler(handler)
