"""The one pipeline: export, capture, lower, decide, split, build, wrap.

Each stage is an object with what is known by then, and with methods that lead to the next:

- `export_model` gives an `ExportedModel`, the program as PyTorch captured it, which `quantize` edits;
- `capture_model` goes on to a `CapturedModel`, whose operators convert and whose types are still its own;
- `CapturedModel.lower` gives a `LoweredModel`, where a graph that was lowered elsewhere enters;
- `LoweredModel.plan` decides what runs where, `report` says it, and `split` cuts the graph into blocks;
- `LoweredModel.build` gives a `BuiltModel` with the engines of the blocks;
- `BuiltModel.wrap` gives what users call.

Whoever needs less leaves earlier, so nothing can disagree with what `compile` does. `stages.lower` and `stages.build`
go from a captured model to the others with the choice of precision between, where that is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, ConverterSupport, preserve_predicate, require_registry
from trt_core import (
    BuildError,
    CompilationSettings,
    ConversionError,
    Device,
    Input,
    InputError,
    PartitionError,
    Provider,
    Reason,
    SettingsError,
    Verdict,
    current_provider,
    logger,
    read_settings,
)
from trt_core.internals import pytree
from trt_core.paused_collection import paused_collection
from trt_core.provenance import source_line
from trt_core.settings_reader import warn_caller
from trt_core.sizes.conditions import Condition, require_varying
from trt_core.sizes.guards import conditions_of
from trt_core.sizes.ranges import ShapeRanges
from trt_core.temporary import undone
from trt_core.wording import counted
from trt_frontends.capture import (
    capture_opened,
    device_of,
    keyword_inputs,
    parameter_names,
    require_types,
    require_walkable,
    require_weights,
    with_device,
)
from trt_frontends.compiled_module import CompiledModule, take_snapshot
from trt_frontends.custom_engine_cache import CustomCache
from trt_frontends.engine_source import EngineSource
from trt_frontends.example_inputs import ExampleInputs, dimension_names, map_as_export_nests, require_names_of
from trt_frontends.result_memory import Owners, ResultViews, keep_layouts, reshape_in_pytorch
from trt_frontends.smallest_sizes import ResultForms, conditions_of_structure, drop_assumptions, forms_of_results
from trt_frontends.stored_layers import open_shards
from trt_lowering import DecomposedGraph, PrecisionRules, begin_lowering, sizes_left_open, tracing_lock
from trt_lowering.contract import Observer
from trt_partition import (
    PartitionPlan,
    PartitionReport,
    make_plan,
    make_report,
    require_known_modules,
    require_report_path,
    split_into_blocks,
    write_report,
)
from trt_runtime import LoadedProgram
from trt_runtime.module import engine_modules
from trt_runtime.program.graph_signature import reader_of, signature_of
from trt_runtime.program.input_reader import InputReader, homes_of
from trt_runtime.program.model_facts import ModelFacts, attributes_of

if TYPE_CHECKING:
    from trt_frontends.precision.exclusions import Calibration


@contextlib.contextmanager
def visible_log(settings: CompilationSettings) -> Iterator[None]:
    """With `debug`, shows the log of the compilation on stderr, also where logging was never set up."""
    with log_shown(logging.DEBUG) if settings.debug else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def log_shown(level: int) -> Iterator[None]:
    """Logs what has a level or is worse inside a block, on stderr where logging was never set up."""
    before = logger.level
    handler = None if logger.hasHandlers() else logging.StreamHandler()

    def undo() -> None:
        logger.setLevel(before)
        if handler is not None:
            logger.removeHandler(handler)

    with undone(undo):
        if handler is not None:
            handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
            logger.addHandler(handler)
        logger.setLevel(level)
        yield


CALIBRATION: Final = "autocast_calibration_dataloader"
"""The one keyword of `compile` that goes with its settings and is none: inputs are no plain values."""


def log_phase(done: str, what: str, begin: float) -> None:
    """Logs that a phase of compiling, which began at a time of `time.perf_counter`, is done, and what it made."""
    logger.info("%s: %s, %.2f s", done, what, time.perf_counter() - begin)


def _operators_in(graph: fx.Graph) -> int:
    return sum(node.op == "call_function" and node.target is not operator.getitem for node in graph.nodes)


Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps of it are done, and how many there are."""


GiveUp = Callable[[fx.GraphModule], Mapping[int, torch.Tensor]]
"""Called with a lowered graph, or what was built of it: see `compiled_module.offload`."""


def no_progress(what: str, done: int, total: int) -> None:
    """Ignores progress."""


# Capture -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapturedModel:
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
        dimensions: What the user calls sizes that vary, by symbol.
        engine_cache: The user's own engine cache.
        forms: How results lie where sizes are 1; None where nothing is built.
    """

    module: nn.Module | torch.export.ExportedProgram
    decomposed: DecomposedGraph
    ranges: ShapeRanges
    conditions: tuple[Condition, ...]
    registry: ConverterRegistry
    progress: Progress
    examples: ExampleInputs | None
    calibration_data: Iterable[Any] | None
    dimensions: Mapping[str, str] = field(default_factory=dict)
    engine_cache: CustomCache | None = None
    forms: ResultForms | None = None

    @property
    def facts(self) -> ModelFacts:
        """What is known of the model beside what it computes."""
        return ModelFacts(self.dimensions, attributes=attributes_of(self.module))

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
        from trt_frontends.precision.exclusions import Calibration  # measuring is seldom asked for

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

    def with_settings(self, settings: CompilationSettings) -> CapturedModel:
        """Returns a twin that computes in the types that other settings ask for; they may differ in that only."""
        return dataclasses.replace(self, decomposed=self.decomposed.with_settings(settings))

    def lower(self, rules: PrecisionRules | None = None) -> LoweredModel:
        """Lowers the rest of the way; nothing is left to be done with this object.

        Args:
            rules: What stays in float32; by default what the settings keep there. They know nothing of `max_error`:
                `stages.lower` does.

        Raises:
            InputError: See `rules`.
            LoweringError: A pass broke its contract.
            SettingsError: `torch_executed_modules` names a module that the model does not have.
        """
        with visible_log(self.settings):
            graph = self.decomposed.finish(self.rules() if rules is None else rules)
        require_known_modules(graph, self.settings)
        cache = self.engine_cache
        return LoweredModel(
            graph, self.settings, self.ranges, self.registry, self.progress, forms=self.forms, engine_cache=cache
        )


@dataclass(frozen=True)
class ExportedModel:
    """A model as PyTorch captured it, in which nothing of ours has changed anything.

    Attributes:
        module: What was captured; of a module whose weights are spread over processes, this one's part.
        program: What capturing it gave.
        examples: What it was captured for; None where nothing was given.
        settings: Compilation settings, with the device that the model is on.
    """

    module: nn.Module | torch.export.ExportedProgram
    program: torch.export.ExportedProgram
    examples: ExampleInputs | None
    settings: CompilationSettings


def export_model(
    module: nn.Module | torch.export.ExportedProgram,
    examples: ExampleInputs | None,
    given: Mapping[str, Any],
    progress: Progress = no_progress,
    *,
    needs_weights: bool = False,
    settle_sizes: bool = True,
) -> ExportedModel:
    """Captures a model as it is; see `capture_model` for other arguments, and for what is raised.

    Args:
        module: The model.
        examples: What it is captured for.
        given: Settings as the user gave them.
        progress: Told what is being done.
        needs_weights: Refuse a model without weights, or for a device that is not there.
        settle_sizes: Find out at which sizes of 1 the program is not the model, where weights are needed.
    """
    if isinstance(module, (CompiledModule, LoadedProgram)):  # a part that is compiled stays so
        require_uncompiled(module)
    settings = settings_in(given)
    _refuse_settings_of_graphs(settings)
    if isinstance(settings.dryrun, str):
        require_report_path(settings.dryrun)
    require_walkable(module)
    module, examples = open_shards(module, examples)
    settings = with_device(settings, given, device_of(module, examples))
    _require_graphs(settings)
    is_built = needs_weights and not settings.dryrun
    if is_built:
        _require_device(settings.device)
    with visible_log(settings):
        progress("capturing", 0, 1)
        begin = time.perf_counter()
        module, program = capture_opened(module, examples, settle_sizes=is_built and settle_sizes)
        log_phase("captured", counted(_operators_in(program.graph), "operator"), begin)
        require_types(program, module, examples)
        if is_built:
            require_weights(program)
    return ExportedModel(module, program, examples, settings)


def require_uncompiled(module: nn.Module) -> None:
    """Refuses a model that runs engines, itself or in a part.

    Raises:
        InputError: It does.
    """
    if engine_modules(module):
        raise InputError(
            "the model is compiled already",
            why="it runs engines, which say no more of their operators",
            hint="give the model that it was compiled from; what is compiled can be saved, moved and refitted as it is",
        )


def capture_model(
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
) -> CapturedModel:
    """Captures a model, and lowers it as far as values do not matter.

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
    require_registry(registry)
    exported = export_model(
        module, ExampleInputs.read(inputs, arg_inputs, kwarg_inputs), given, progress, needs_weights=needs_weights
    )
    module, program, examples, settings = exported.module, exported.program, exported.examples, exported.settings
    with visible_log(settings):
        progress("lowering", 0, 1)
        begin = time.perf_counter()
        preserve = preserve_predicate(settings, registry)
        decomposed = begin_lowering(program, settings, preserve=preserve, observe=observe)
        log_phase("lowered", counted(_operators_in(decomposed.graph.graph), "operator"), begin)
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
    conditions = conditions_of(
        decomposed.graph.graph, ranges, program, assume=as_asked and program is not module, more=structure
    )
    if flat is not None and (program is module or as_asked):
        signature = signature_of(decomposed.graph.graph, ranges)
        if program is module:
            require_names_of(signature, flat)
        else:
            require_varying(conditions, ranges.symbols, homes_of(signature))
    if examples is None and program.example_inputs is not None:
        args, kwargs = program.example_inputs
        examples = ExampleInputs(tuple(args), dict(kwargs))
    return CapturedModel(
        module,
        decomposed,
        ranges,
        conditions,
        registry,
        progress,
        examples,
        given.get(CALIBRATION),
        {} if flat is None else dimension_names(decomposed.graph.graph, flat),
        forms=forms_of_results(program, ranges) if needs_weights else None,
    )


def settings_in(given: Mapping[str, Any]) -> CompilationSettings:
    """Reads the settings among the keywords that `compile` takes.

    Raises:
        SettingsError: A setting cannot be read.
    """
    return read_settings({name: value for name, value in given.items() if name != CALIBRATION})


def settings_to_build(given: Mapping[str, Any]) -> CompilationSettings:
    """Reads the settings among such keywords where engines are asked for, of which a dry run has none.

    Raises:
        SettingsError: A setting cannot be read, or `dryrun` is set.
    """
    settings = settings_in(given)
    if settings.dryrun:
        raise SettingsError(
            f"dryrun={settings.dryrun!r} builds no engines, which are what is asked for here",
            hint="explain, and compile with dryrun, report what would run where; leave it out here",
        )
    return settings


def _refuse_settings_of_graphs(settings: CompilationSettings) -> None:
    """The counterpart of `backend.refuse_settings_of_whole_models`."""
    if settings.gradients == "pytorch":
        raise SettingsError(
            'gradients="pytorch" is for torch.compile',
            why="a compiled model computes no gradients: it has engines in place of the graph that PyTorch would run",
            hint='write torch.compile(model, backend="torch_tensorrt", options={"gradients": "pytorch"}), or leave it '
            "out",
        )
    idle = []
    if settings.torch_fallback != "eager":
        why = "what stays in PyTorch runs operator by operator, as it does in a saved program"
        idle.append((f'torch_fallback="{settings.torch_fallback}"', why))
    if not settings.check_weights:
        idle.append(("check_weights=False", "a compiled model has the weights of its time, and looks at no others"))
    for what, why in idle:
        warn_caller(f"{what} has no effect outside torch.compile: {why}")


def _require_device(device: Device) -> None:
    """Checks that a device is there, before anything is captured or built for it."""
    if device.is_cpu:
        return
    if device.is_dla and current_provider() is Provider.PORTABLE:
        raise SettingsError(
            f"device={device} cannot be built for",
            why="the provider in use is trt_portable, which knows no deep learning accelerator",
            hint="use TensorRT on a board that has one, or build for its GPU",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.gpu_id >= count:
        raise SettingsError(
            f"device={device} is not here",
            why=f"PyTorch {torch.__version__} sees {count or 'no'} CUDA device{'' if count == 1 else 's'}",
            hint='give device="cpu", or run where the GPU is; explain and dryrun need no device',
        )


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


# Lowered, decided, split -------------------------------------------------------------------------------------------


@dataclass
class LoweredModel:
    """One lowered graph on its way to engines.

    Attributes:
        graph: The lowered graph; see the design notes for its form. Never changed.
        settings: What to compile with.
        ranges: Ranges of the symbolic dimensions.
        registry: Where converters are looked up.
        progress: Told what is being done.
        excluded: Nodes (by name) that run in PyTorch, and why; those that fail to build join them.
        owners: Where results have to lie as for eager calls, exactly, in which memory they lay before lowering.
        forms: How results lie where sizes are 1.
        is_block: Whether results are dense: the graph is a block of a model that was split before, or an engine of its
            own.
        engine_cache: The user's own engine cache.
    """

    graph: fx.GraphModule
    settings: CompilationSettings
    ranges: ShapeRanges
    registry: ConverterRegistry = field(default_factory=lambda: DYNAMO_CONVERTERS)
    progress: Progress = no_progress
    excluded: dict[str, Verdict] = field(default_factory=dict)
    owners: Owners | None = None
    forms: ResultForms | None = None
    is_block: bool = False
    engine_cache: CustomCache | None = None
    _source: EngineSource | None = field(default=None, repr=False)

    @paused_collection()
    def plan(self) -> PartitionPlan:
        """Decides which nodes run in engines.

        Raises:
            IncompleteCompilationError: `require_full_compilation` is set and some nodes cannot.
        """
        support = ConverterSupport(self.settings, self.registry, self.excluded, self.ranges)
        return make_plan(self.graph, support, self.settings)

    @paused_collection()
    def report(self, plan: PartitionPlan | None = None) -> PartitionReport:
        """Returns the partition report; nothing is built."""
        origin = ConverterSupport(self.settings, self.registry).origin
        return make_report(self.graph, plan or self.plan(), self.settings, self.ranges, origin)

    @paused_collection()
    def split(self, plan: PartitionPlan) -> BuiltModel:
        """Cuts the graph into blocks whose results lie in memory as those of the captured program do.

        Returns:
            The model before any engine is built; PyTorch runs all of its blocks.
        """
        engines = [block.name for block in plan.engines]
        views = ResultViews.of(self.graph.graph, self.owners, self.forms)
        with views.returned(self.graph.graph):
            module = split_into_blocks(self.graph, plan)
        if not self.is_block and preserve_predicate(self.settings, self.registry)(torch.ops.aten.permute.default):
            keep_layouts(module, engines)
        reshape_in_pytorch(module, engines)
        views.restore(module, self.graph, engines)
        called = {str(node.target) for node in module.graph.find_nodes(op="call_module")}
        blocks = {name: _graph_module(module, name) for name in engines if name in called}
        return BuiltModel(self, plan, module, blocks)

    def build(self, give_up: GiveUp | None = None) -> BuiltModel:
        """Decides, splits, and builds every engine.

        A node that fails to convert, and a block that fails to build, go to PyTorch: the graph is partitioned again
        without them, and engines that are built already are kept.

        Args:
            give_up: Moves the model's weights off the device before anything is built.

        Raises:
            BuildError: An engine cannot be built, and `pass_through_build_failures` is set.
            IncompleteCompilationError: `require_full_compilation` is set and some nodes cannot run in an engine.
            PartitionError: The partitioner put nodes into an engine that had failed to build.
        """
        engines: dict[tuple[str, ...], nn.Module] = {}
        twins = None if give_up is None else give_up(self.graph)
        self._source = EngineSource(self.settings, self.registry, self.graph, self.engine_cache, twins)
        begin = time.perf_counter()
        while True:
            built = self.split(self.plan())
            log_phase("decided", f"{counted(len(built.blocks), 'engine')} to build", begin)
            failure = self._build_engines(built, engines)
            if failure is None:
                break
            self._exclude(failure)
        report = self.report(built.plan)
        held = sum(engine.operators for engine in report.engines) / max(report.total_operators, 1)
        log_phase("built", f"{counted(len(report.engines), 'engine')} with {held:.0%} of the operators", begin)
        announce(report, self.settings)
        built.module.meta["partition_report"] = report
        built.module.meta["dynamic_shapes"] = dynamic_shapes_of(self.graph, self.ranges)
        built.module.meta["shape_ranges"] = self.ranges
        return built

    def leave_in_pytorch(self) -> BuiltModel:
        """Returns the model without engines, as a dry run does, and announces its report."""
        plan = self.plan()
        report = self.report(plan)
        announce(report, self.settings)
        self.graph.meta["partition_report"] = report
        return BuiltModel(self, plan, self.graph, {})

    def engine(self, block: fx.GraphModule, name: str) -> nn.Module:
        """Returns the engine of a block, from the engine cache where that is in use and has it.

        Args:
            block: One of the blocks of this model, or a part of one.
            name: What to call the engine.

        Raises:
            ConversionError: A node of the block cannot be converted.
            BuildError: The provider refuses the block.
        """
        with tracing_lock(), sizes_left_open(block):  # trt-portable traces what it builds
            return self.source.engine(block, self.ranges, name)

    @property
    def source(self) -> EngineSource:
        """Where engines come from.

        Raises:
            CacheError: The directory of the engine cache is not private, or cannot be used.
        """
        if self._source is None:
            self._source = EngineSource(self.settings, self.registry, self.graph, self.engine_cache)
        return self._source

    def _build_engines(self, built: BuiltModel, engines: dict[tuple[str, ...], nn.Module]) -> dict[str, Verdict] | None:
        """Builds the engines of blocks that have none; returns what to leave out where one cannot be built."""
        blocks = [block for block in built.plan.engines if block.name in built.blocks]
        for done, block in enumerate(blocks):
            self.progress("building engines", done, len(blocks))
            child = built.blocks[block.name]
            engine = engines.get(block.nodes)
            if engine is None:
                try:
                    engine = self.engine(child, block.name)
                except ConversionError as error:
                    return self._exclude_node(error, child)
                except BuildError as error:
                    return self._exclude_block(error, block.name, block.nodes)
                engines[block.nodes] = engine
            built.put(block.name, engine)
        self.progress("building engines", len(blocks), len(blocks))
        return None

    def _exclude(self, refusals: dict[str, Verdict]) -> None:
        """Notes what the next attempt leaves to PyTorch; an attempt that teaches nothing would be repeated for ever."""
        new = {name: verdict for name, verdict in refusals.items() if name not in self.excluded}
        if not new:
            raise PartitionError(
                "nodes that failed to build were put into an engine again",
                where=", ".join(refusals) or "no node",
                hint="the partitioner must leave nodes with a refusing verdict to PyTorch",
            )
        self.excluded.update(new)

    def _exclude_node(self, error: ConversionError, block: fx.GraphModule) -> dict[str, Verdict]:
        if self.settings.pass_through_build_failures:
            raise error
        name = error.node_name
        nodes = {node.name: node for node in self.graph.graph.nodes}
        if name not in nodes or nodes[name].op != "call_function" or name in self.excluded:
            # the failure belongs to the block, not to one of its nodes
            return self._exclude_block(error, block._get_name(), [node.name for node in block.graph.nodes])
        logger.warning("%s runs in PyTorch: %s", name, error.why)
        return {name: Verdict.refuse(Reason.CONVERSION_FAILED, error.why, source_line(nodes[name]))}

    def _exclude_block(self, error: Exception, name: str, nodes: Sequence[str]) -> dict[str, Verdict]:
        if self.settings.pass_through_build_failures:
            raise error
        why = getattr(error, "why", "") or str(error)
        logger.warning("%s runs in PyTorch: %s", name, why)
        verdict = Verdict.refuse(Reason.BUILD_FAILED, why)
        return {node: verdict for node in nodes if node not in self.excluded}


def announce(report: PartitionReport, settings: CompilationSettings) -> None:
    """Prints or saves a report when `dryrun` asks for it; else it goes to the logger at DEBUG."""
    write_report(report, settings.dryrun)


# Built -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuiltModel:
    """A model that is split into blocks.

    Attributes:
        lowered: What it was split from.
        plan: What runs where.
        module: Calls the blocks; it is called like the lowered graph.
        blocks: The blocks for engines as PyTorch runs them, by name.
        engines: Those engines that are built, by name; `module` runs them.
    """

    lowered: LoweredModel
    plan: PartitionPlan
    module: fx.GraphModule
    blocks: dict[str, fx.GraphModule]
    engines: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def plugins(self) -> tuple[str, ...]:
        """Plugins that the engines need, by name, as they and the converters of their operators say."""
        targets = {
            node.target
            for block in self.blocks.values()
            for module in block.modules()
            if isinstance(module, fx.GraphModule)
            for node in module.graph.nodes
            if node.op == "call_function"
        }
        found = (self.lowered.registry.get(target) for target in targets)
        said = {converter.plugin for converter in found if converter is not None and converter.plugin}
        held = {
            name for engine in self.engines.values() for each in engine_modules(engine) for name in each.header.plugins
        }
        return tuple(sorted(said | held))

    def put(self, name: str, engine: nn.Module) -> None:
        """Lets an engine run in the place of a block."""
        self.engines[name] = engine
        self.module.set_submodule(name, engine)

    @contextlib.contextmanager
    def running(self, pieces: Mapping[str, nn.Module]) -> Iterator[None]:
        """Lets others run in the place of blocks for a while: the blocks themselves, or engines of parts of them."""
        before = {name: self.module.get_submodule(name) for name in pieces}
        try:
            for name, piece in pieces.items():
                self.module.set_submodule(name, piece)
            yield
        finally:
            for name, child in before.items():
                self.module.set_submodule(name, child)

    def wrap(self, reader: InputReader) -> CompiledModule:
        """Returns what users call. Its weights are those of this time.

        Args:
            reader: What checks the inputs of calls.

        Raises:
            ExecutionError: `use_cuda_graphs` is set, and calls cannot be recorded.
        """
        settings = self.lowered.settings
        is_built = self.module is not self.lowered.graph
        if is_built:
            take_snapshot(self.module, self.lowered.graph)
        graphs_on = settings.device.torch_device if settings.use_cuda_graphs and is_built else None
        return CompiledModule(self.module, self.module.graph, reader, graphs_on)


def _graph_module(module: fx.GraphModule, name: str) -> fx.GraphModule:
    child = module.get_submodule(name)
    assert isinstance(child, fx.GraphModule)
    return child


def dynamic_shapes_of(graph: fx.GraphModule, ranges: ShapeRanges) -> dict[str, Any] | None:
    """Returns the dynamic dimensions of a graph's inputs as `torch.export.export` takes them, None when all are fixed.

    Args:
        graph: A graph that is called like its model.
        ranges: Ranges of the symbolic dimensions.
    """
    info = getattr(graph.graph._codegen, "pytree_info", None)
    if info is None:
        return None
    values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
    if not any(_dynamic_dims(value, ranges) for value in values):
        return None
    given = pytree.tree_unflatten(values, info.in_spec)
    args, kwargs = map_as_export_nests(lambda value: _dynamic_dims(value, ranges), given)
    names = [name for name in info.orig_args if name not in kwargs]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _dynamic_dims(value: Any, ranges: ShapeRanges) -> dict[int, Any] | None:
    if not isinstance(value, torch.Tensor):
        return None
    found: dict[int, Any] = {}
    for axis, extent in enumerate(value.shape):
        if isinstance(extent, torch.SymInt):
            low, _, high = ranges.bounds(extent)
            found[axis] = torch.export.Dim.DYNAMIC(min=low, max=high)
    return found or None
