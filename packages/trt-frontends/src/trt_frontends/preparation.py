"""From what `compile` was called with to a graph that is ready to be partitioned.

It takes two steps. `begin` captures the model and lowers it as far as its values do not matter; what computes in which
type is decided on that; `Preparation.finish` lowers the rest.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, preserve_predicate, require_registry
from trt_core import CompilationSettings, Input, SettingsError, read_settings
from trt_core.ranges import ShapeRanges
from trt_core.settings_reader import level_of_caller
from trt_frontends.capture import capture, device_of, keyword_inputs, parameter_names, with_device
from trt_frontends.device_check import require_device
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.input_names import require_names_of
from trt_frontends.pipeline import Compilation, Progress, no_progress
from trt_frontends.smallest_sizes import conditions_of_structure, drop_assumptions
from trt_frontends.visible_log import visible_log
from trt_frontends.weightless import require_weights
from trt_lowering import DecomposedGraph, PrecisionRules, begin_lowering
from trt_lowering.contract import Observer
from trt_partition import require_known_modules, require_report_path
from trt_runtime.program.exported_guards import conditions_of
from trt_runtime.program.graph_signature import reader_of, signature_of

if TYPE_CHECKING:
    from trt_frontends.precision.calibration import Calibration
    from trt_runtime.program.conditions import Condition
    from trt_runtime.program.input_reader import InputReader

CALIBRATION: Final = "autocast_calibration_dataloader"
"""The one keyword of `compile` that goes with its settings and is none: inputs are no plain values."""


@dataclass(frozen=True)
class Preparation:
    """A captured model whose types are still its own.

    Attributes:
        module: What was captured.
        decomposed: Its graph.
        ranges: Ranges of the symbolic dimensions.
        conditions: What the model asks of sizes beyond their ranges.
        registry: Where converters are looked up.
        progress: Told what is being done.
        examples: Inputs that the model was captured with; None where they are unknown.
        calibration_data: Inputs that the user wants precision decided on.
    """

    module: nn.Module | torch.export.ExportedProgram
    decomposed: DecomposedGraph
    ranges: ShapeRanges
    conditions: tuple[Condition, ...]
    registry: ConverterRegistry
    progress: Progress
    examples: ExampleInputs | None
    calibration_data: Iterable[Any] | None

    @property
    def settings(self) -> CompilationSettings:
        """What to compile with."""
        return self.decomposed.settings

    def reader(self, graph: fx.Graph) -> InputReader:
        """Returns what checks the inputs of a call, and brings them into the flat order of the graph.

        Args:
            graph: The graph of this model at any stage of lowering.
        """
        return reader_of(graph, self.ranges, self.conditions, parameter_names(self.module))

    def calibration(self) -> Calibration:
        """Returns the inputs that precision is decided on."""
        from trt_frontends.precision.calibration import Calibration  # measuring is seldom asked for

        reader = self.reader(self.decomposed.graph.graph)
        return Calibration(self.examples, self.calibration_data, reader, self.settings.device.torch_device)

    def rules(self) -> PrecisionRules:
        """Returns what the settings keep in float32; whatever has to be measured for that is.

        Raises:
            InputError: Something has to be measured, and the inputs for it cannot be used.
        """
        if self.settings.autocast_max_output_threshold is None:
            return PrecisionRules.of(self.settings)
        from trt_frontends.precision.exclusions import exclusions

        return exclusions(self.decomposed, lambda: self.calibration().flat())

    def with_settings(self, settings: CompilationSettings) -> Preparation:
        """Returns a twin that computes in the types that other settings ask for; they may differ in that only."""
        return dataclasses.replace(self, decomposed=self.decomposed.with_settings(settings))

    def finish(self, rules: PrecisionRules | None = None) -> Compilation:
        """Lowers the rest of the way; nothing is left to be done with this object.

        Args:
            rules: What stays in float32; by default what the settings keep there. They know nothing of `max_error`.

        Raises:
            InputError: See `rules`.
            LoweringError: A pass broke its contract.
            SettingsError: `torch_executed_modules` names a module that the model does not have.
        """
        with visible_log(self.settings):
            graph = self.decomposed.finish(self.rules() if rules is None else rules)
        require_known_modules(graph, self.settings)
        return Compilation(graph, self.settings, self.ranges, self.registry, self.progress)


def begin(
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
) -> Preparation:
    """Captures, and lowers as far as values do not matter.

    Args:
        module, inputs, arg_inputs, kwarg_inputs: See `compile`.
        given: Settings as the user gave them, with `autocast_calibration_dataloader` where it was given.
        progress: Told what is being done.
        registry: Where converters are looked up.
        needs_weights: Refuse a model without weights, unless the settings ask for a dry run.
        observe: Sees the graph after every lowering pass.

    Raises:
        ExportError: The module cannot be exported.
        InputError: The inputs cannot be read, or do not fit the model; or the model has no weights.
        PartitionError: The report cannot be saved where `dryrun` says.
        SettingsError: A setting cannot be read, or is one of `torch.compile`.

    Warns:
        UserWarning: A setting has no effect outside `torch.compile`.
    """
    settings = settings_in(given)
    require_registry(registry)
    _refuse_settings_of_graphs(settings)
    if isinstance(settings.dryrun, str):
        require_report_path(settings.dryrun)
    examples = ExampleInputs.read(inputs, arg_inputs, kwarg_inputs)
    settings = with_device(settings, given, device_of(module, examples))
    if needs_weights and not settings.dryrun:
        require_device(settings.device)
    with visible_log(settings):
        progress("capturing", 0, 1)
        program = capture(module, examples, settle_sizes=needs_weights and not settings.dryrun)
        if needs_weights and not settings.dryrun:
            require_weights(program)
        progress("lowering", 0, 1)
        preserve = preserve_predicate(settings, registry)
        decomposed = begin_lowering(program, settings, preserve=preserve, observe=observe)
    if decomposed.unmatched_exclusions:
        from trt_frontends.precision.exclusions import warn_of_unmatched

        warn_of_unmatched(decomposed)
    flat = None if examples is None else examples.in_order_of(keyword_inputs(program))
    ranges = ShapeRanges.from_placeholders(decomposed.graph, flat, program.range_constraints)
    _require_one_profile(ranges, settings)
    as_asked = any(isinstance(leaf, Input) for leaf in flat or ())
    structure: Sequence[Any] = ()
    if program is module:
        structure = conditions_of_structure(program, ranges) if needs_weights else ()
    elif needs_weights:
        drop_assumptions(decomposed.graph.graph, ranges)  # those of decompositions
    conditions = conditions_of(decomposed.graph.graph, ranges, program, as_asked=as_asked, more=structure)
    if program is module and flat is not None:
        require_names_of(signature_of(decomposed.graph.graph, ranges), flat)
    if examples is None and program.example_inputs is not None:
        args, kwargs = program.example_inputs
        examples = ExampleInputs(tuple(args), dict(kwargs))
    return Preparation(module, decomposed, ranges, conditions, registry, progress, examples, given.get(CALIBRATION))


def settings_in(given: Mapping[str, Any]) -> CompilationSettings:
    """Reads the settings among the keywords that `compile` takes.

    Raises:
        SettingsError: A setting cannot be read.
    """
    return read_settings({name: value for name, value in given.items() if name != CALIBRATION})


def _refuse_settings_of_graphs(settings: CompilationSettings) -> None:
    """The counterpart of `backend.refuse_settings_of_whole_models`."""
    if settings.gradients == "pytorch":
        raise SettingsError(
            'gradients="pytorch" is for torch.compile',
            why="a compiled model computes no gradients: it has engines in place of the graph that PyTorch would run",
            hint='write torch.compile(model, backend="torch_tensorrt", options={"gradients": "pytorch"}), or leave it '
            "out",
        )
    if settings.torch_fallback != "eager":
        warnings.warn(
            f'torch_fallback="{settings.torch_fallback}" has no effect outside torch.compile: '
            "what stays in PyTorch runs operator by operator, as it does in a saved program",
            UserWarning,
            stacklevel=level_of_caller(),
        )


def _require_one_profile(ranges: ShapeRanges, settings: CompilationSettings) -> None:
    if settings.refit and ranges.profiles:
        raise SettingsError(
            "refit goes with one optimization profile",
            why=f"the inputs have {len(ranges.profiles)}, and TensorRT refits engines of one profile only",
            hint="give each input one range, or leave refit out",
        )
