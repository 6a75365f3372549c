"""`Builder`: makes networks, and plans out of them: validate, eliminate, fold, choose a tactic, serialize."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import torch

from trt_core.device import on_host, without_autocast
from trt_core.files import records
from trt_core.paused_collection import paused_collection
from trt_portable.application_interfaces import IStreamWriter, write_all
from trt_portable.builder.autotune.engine_tactic import choose_tactic
from trt_portable.builder.autotune.low_precision_choice import choose_low_precision_kernels
from trt_portable.builder.config import BuildCancelled, IBuilderConfig, Phase
from trt_portable.builder.passes.fold_constants import FoldConstants, fold_scales
from trt_portable.builder.passes.fuse_attention import RecognizeConstantMasks, fold_attention_factors
from trt_portable.builder.passes.fuse_neighbours import (
    FuseNeighbours,
    fuse_gelu,
    merge_products,
    merge_quantized_products,
)
from trt_portable.builder.passes.fuse_quantized import (
    choose_matrices,
    fuse_quantized_convolutions,
    fuse_quantized_products,
)
from trt_portable.builder.passes.recognize_recurrences import recognize_recurrences
from trt_portable.builder.passes.simplify_movement import SimplifyMovement
from trt_portable.device_choice import current_device
from trt_portable.dtypes import PACKED
from trt_portable.enums import (
    BuilderFlag,
    DataType,
    ErrorCodeTRT,
    HardwareCompatibilityLevel,
    LayerType,
    MemoryPoolType,
    TilingOptimizationLevel,
)
from trt_portable.errors import PortableError, Refusal, is_out_of_memory
from trt_portable.execution.program import Program
from trt_portable.execution.shapes import Made, load_shape_program, report_shapes
from trt_portable.formats import choose_format
from trt_portable.host_settings import HostSettings
from trt_portable.layers.collective import rehearsal
from trt_portable.memory import IHostMemory
from trt_portable.network.layer import META, ITensor
from trt_portable.network.network import INetworkDefinition
from trt_portable.network.serialization import TensorEntry, leaf_entries, network_to_json
from trt_portable.optimization_profile import IOptimizationProfile, Profile, Range
from trt_portable.plan.artifact import trust, write_artifacts
from trt_portable.plan.engine_info import (
    EngineInfo,
    IOTensor,
    RefitMode,
    Shape,
    WeightSlot,
    is_host_constant,
    write_engine,
)
from trt_portable.plan.extents import Expression, evaluate, expression_of, sizes_by_symbol
from trt_portable.plan.nodes import Node, PlanGraph, PlanPass
from trt_portable.plan.weight_table import WeightTable
from trt_portable.pybind import instance_of, to_integer
from trt_portable.reporting import ILogger, Reporter
from trt_portable.runtime.cuda_engine import ICudaEngine, load_engine

_NOT_REFITTABLE = frozenset({"POWER"})


def build_plan(network: INetworkDefinition, config: IBuilderConfig, reporter: Reporter) -> IHostMemory:
    """Builds a plan.

    Raises:
        Refusal: Network or settings break a rule.
        BuildCancelled: The progress monitor said so.
    """
    monitor = config.progress_monitor
    root = f"Build {network.name}"
    with Phase(monitor, root, None, 4) as phase, rehearsal(), network._as_built(config):
        found = first_refusal(network, config)
        if found is not None:
            subject, refusal = found
            raise Refusal(f"{subject}: {refusal.rule}", refusal.code)
        profiles = complete_profiles(network, config)
        structure, weights = network_to_json(network)
        phase.step()
        for name, why in settings_without_effect(config):
            reporter.info(f"{name} has no effect: {why}")
        refit = _refit_mode(config)
        is_refittable = _refittable(refit, structure)
        debug = {t["id"]: t["name"] for t in structure["tensors"] if t["debug"]}
        with Phase(monitor, "Optimize layers", root, len(structure["layers"])) as layers:
            fuse = not network._debug_unfused
            most = _most_extents(network, structure, profiles)
            table = _optimize(structure, weights, is_refittable, most, frozenset(debug), layers.step, fuse=fuse)
        phase.step()
        slots = _weight_slots(structure, is_refittable)
        info = EngineInfo(
            name=network.name,
            io=_io_tensors(network, structure),
            profiles=profiles,
            weight_slots=slots,
            refit=refit,
            debug_tensors=debug,
            optimization_level=config.builder_optimization_level,
            verbosity=config.profiling_verbosity,
            capability=config.engine_capability,
            hardware=config.hardware_compatibility_level,
            tactic_sources=config.get_tactic_sources(),
            weight_streaming=config.get_flag(BuilderFlag.WEIGHT_STREAMING),
            settings=_settings(config),
        )
        used = {slot.weights for slot in slots}
        tensors = table.only(used)
        choose_low_precision_kernels(structure, info, tensors, config, reporter)
        info = add_output_extents(network, structure, info, tensors)
        choice = choose_tactic(structure, info, tensors, config, reporter, root)
        for at, layer in enumerate(leaf_entries(structure["layers"])):
            if at in choice.kernels:
                layer["implementation"] = choice.kernels[at]
        compiled = write_artifacts(choice.artifacts) if choice.artifacts else b""
        trust(compiled)
        phase.step()
        strip = config.get_flag(BuilderFlag.STRIP_PLAN)
        features = _features(structure)
        plan = write_engine(structure, choice.info, slots, tensors, features, compiled=compiled, strip=strip)
        phase.step()
    reporter.verbose(
        f"built {network.name!r}: {len(structure['layers'])} of {network.num_layers} layers, {len(plan)} bytes"
    )
    return plan


@paused_collection()
def _optimize(
    structure: dict[str, Any],
    weights: Mapping[str, torch.Tensor],
    is_refittable: Callable[[str, str], bool],
    most: Mapping[int, Sequence[int]],
    debug: frozenset[int],
    step: Callable[[], None],
    *,
    fuse: bool,
) -> WeightTable:
    """Rewrites the layers of a structure in place; returns old and new weights.

    Args:
        structure: The network part of a plan.
        weights: Host weights by key.
        is_refittable: Whether a refit may replace the weights of a key in a role.
        most: The greatest extents of network inputs in any profile, by tensor.
        debug: Ids of tensors marked for debugging.
        step: Called once per layer.
        fuse: Let layers join others, which debug listeners would miss.
    """
    graph = PlanGraph(
        nodes=map(Node.from_json, structure["layers"]),
        tensors={tensor["id"]: records.read(TensorEntry, tensor, "a tensor") for tensor in structure["tensors"]},
        weights=WeightTable(weights),
        inputs=structure["inputs"],
        visible={*structure["outputs"], *structure["shape_outputs"], *debug},
        is_fixed=lambda key, role: not is_refittable(key, role),
    )
    passes: list[PlanPass] = [EliminateDeadLayers(), FoldConstants(debug, step), choose_matrices]
    if fuse:
        passes += [
            fuse_quantized_products,
            fuse_quantized_convolutions,
            fold_scales,
            RecognizeConstantMasks(most),
            fold_attention_factors,
            fuse_gelu,
            merge_products,
            merge_quantized_products,
            EliminateDeadLayers(),  # what reads a tensor no more must not seem to
            SimplifyMovement(),
        ]
    passes += [EliminateDeadLayers(), recognize_recurrences]
    if fuse:
        passes.append(FuseNeighbours())
    for each in passes:
        each(graph)
    structure["layers"] = [node.to_json() for node in graph.nodes]
    structure["tensors"] = [records.write(graph.tensors[tensor]) for tensor in sorted(graph.used_tensors)]
    return graph.weights


def _most_extents(
    network: INetworkDefinition, structure: Mapping[str, Any], profiles: Sequence[Profile]
) -> dict[int, tuple[int, ...]]:
    """The greatest extents of network inputs in any profile, by tensor."""
    shapes = {
        tensor: [profile.shapes[source.name].max for profile in profiles if source.name in profile.shapes]
        for tensor, source in zip(structure["inputs"], network._inputs, strict=True)
    }
    return {tensor: tuple(map(max, zip(*given, strict=True))) for tensor, given in shapes.items() if given}


class EliminateDeadLayers(PlanPass):
    """Removes layers that contribute to no visible tensor; layers without outputs stay. Exact."""

    name = "eliminate_dead_layers"

    def call(self, graph: PlanGraph) -> int:
        """Walks the layers from the last to the first."""
        needed: set[int | None] = set(graph.visible)
        nodes, live = graph.nodes, []
        for node in reversed(nodes):
            if not node.outputs or not needed.isdisjoint(node.outputs):
                live.append(node)
                needed.update(node.inputs)
        if len(live) < len(nodes):
            graph.nodes = live[::-1]
        return len(nodes) - len(live)


def _refit_mode(config: IBuilderConfig) -> RefitMode:
    if config.get_flag(BuilderFlag.REFIT_INDIVIDUAL):
        return RefitMode.INDIVIDUAL
    if config.get_flag(BuilderFlag.REFIT):
        return RefitMode.ALL
    # a stripped plan without another refit flag takes its own weights back
    identical = config.get_flag(BuilderFlag.REFIT_IDENTICAL)
    if identical or config.get_flag(BuilderFlag.STRIP_PLAN):
        return RefitMode.IDENTICAL
    return RefitMode.NONE


def _refittable(refit: RefitMode, structure: Mapping[str, Any]) -> Callable[[str, str], bool]:
    """Whether a refit may replace the weights of a key in a role."""
    names: Mapping[str, str] = structure["weight_names"]
    marked = frozenset(structure["refittable"])

    def is_refittable(key: str, role: str) -> bool:
        if refit is RefitMode.NONE or role in _NOT_REFITTABLE:
            return False
        return refit is not RefitMode.INDIVIDUAL or names.get(key) in marked

    return is_refittable


def _weight_slots(structure: Mapping[str, Any], is_refittable: Callable[[str, str], bool]) -> tuple[WeightSlot, ...]:
    names = structure["weight_names"]
    return tuple(
        WeightSlot(
            layer=index,
            layer_name=entry["name"],
            role=role,
            weights=key,
            dtype=DataType[dtype],
            count=count,
            name=names.get(key),
            refittable=is_refittable(key, role),
        )
        for index, entry in enumerate(leaf_entries(structure["layers"]))
        for role, key in entry["weights"].items()
        for dtype, count in (entry["weight_specs"][role],)
    )


def _io_tensors(network: INetworkDefinition, structure: Mapping[str, Any]) -> tuple[IOTensor, ...]:
    entries = {tensor["id"]: tensor for tensor in structure["tensors"]}
    inputs = structure["inputs"]
    host = {tensor_id for tensor_id, source in zip(inputs, network._inputs, strict=True) if source.is_shape_tensor}
    host.update(structure["shape_outputs"])
    aliases = {
        layer["outputs"][0]: layer["inputs"][0]
        for layer in structure["layers"]
        if layer["type"] == LayerType.KV_CACHE_UPDATE.name and layer["inputs"][0] in inputs
    }

    def tensor(tensor_id: int, is_input: bool) -> IOTensor:
        entry = entries[tensor_id]
        shape = tuple(entry["shape"])
        names = entry["dimension_names"]
        source = None if is_input else aliases.get(tensor_id)
        dtype, is_host = DataType[entry["dtype"]], tensor_id in host
        return IOTensor(
            name=entry["name"],
            id=tensor_id,
            dtype=dtype,
            shape=shape,
            is_input=is_input,
            is_host=is_host,
            dimension_names=tuple(names.get(str(axis), "") for axis in range(len(shape))),
            aliased_input=None if source is None else entries[source]["name"],
            format=choose_format(entry["formats"], dtype, len(shape), is_shape_tensor=is_host),
        )

    outputs = (*structure["outputs"], *structure["shape_outputs"])
    return (*(tensor(at, True) for at in inputs), *(tensor(at, False) for at in outputs))


def _settings(config: IBuilderConfig) -> dict[str, Any]:
    return {
        "flags": sorted(flag.name for flag in BuilderFlag if config.get_flag(flag)),
        "max_aux_streams": config.max_aux_streams,
        "tiling_optimization_level": config.tiling_optimization_level.name,
        "runtime_platform": config.runtime_platform.name,
        "memory_pools": {pool.name: size for pool, size in config._pools.items()},
    }


def _features(structure: Mapping[str, Any]) -> set[str]:
    kinds = {layer["type"] for layer in structure["layers"]}
    features = set()
    if "LOOP" in kinds:
        features.add("loops")
    if "CONDITIONAL" in kinds:
        features.add("conditionals")
    if kinds & {LayerType.PLUGIN_V2.name, LayerType.PLUGIN_V3.name}:
        features.add("plugins")
    return features


def settings_without_effect(config: IBuilderConfig) -> Iterator[tuple[str, str]]:
    """The settings that the application changed although nothing follows from them: name, and why."""
    fresh = type(config)(config._reporter)
    if config.get_memory_pool_limit(MemoryPoolType.WORKSPACE) != fresh.get_memory_pool_limit(MemoryPoolType.WORKSPACE):
        yield "MemoryPoolType.WORKSPACE", "PyTorch allocates what its kernels need"
    if config.max_aux_streams != fresh.max_aux_streams:
        yield "max_aux_streams", "an engine uses one stream"
    if config.tiling_optimization_level is not TilingOptimizationLevel.NONE:
        yield "tiling_optimization_level", "tiling is left to PyTorch's kernels"
    if config.get_flag(BuilderFlag.SPARSE_WEIGHTS):
        yield "BuilderFlag.SPARSE_WEIGHTS", "products are computed densely"
    if config.get_flag(BuilderFlag.VERSION_COMPATIBLE):
        yield "BuilderFlag.VERSION_COMPATIBLE", "plans load under any release of PyTorch"
    if config.hardware_compatibility_level is not HardwareCompatibilityLevel.NONE:
        yield "hardware_compatibility_level", "a plan for GPUs runs on any GPU"


_WHOLE_ENDS: Final = 3
"""How many of `_ends` are whole shapes of the profile."""
_MOST_ELEMENTS: Final = 1 << 40
"""No memory holds a tensor of more."""
_COUNTABLE: Final = 1 << 59
"""Elements whose bytes PyTorch can count; it cannot describe tensors of more, not even without data."""
_MOST_INFERRED: Final = 1 << 18
"""Layers, inputs and outputs that the ends of all profiles may take together: seconds."""


def add_output_extents(
    network: INetworkDefinition, structure: Mapping[str, Any], info: EngineInfo, tensors: Mapping[str, torch.Tensor]
) -> EngineInfo:
    """Adds expressions of extents to the outputs of an engine with dynamic inputs.

    Shape inference may assume what holds for all but the smallest extents, so each expression is compared with what
    the layers make at the ends of every profile; one that differs anywhere is left out. Each extent has ends of its
    own, so a network that has very many of them, for its layers, gets no expressions: a context infers its outputs.

    Args:
        network: The network, whose extents are known as expressions of symbols.
        structure: The network part of the plan.
        info: The engine part of the plan.
        tensors: Weights by id.
    """
    if any(slot.refittable and is_host_constant(slot) for slot in info.weight_slots):
        return info  # a refit may change the numbers of shapes
    inputs = [tensor for tensor in info.io if tensor.is_input]
    outputs = [tensor for tensor in info.io if not tensor.is_input]
    if not any(tensor.is_dynamic for tensor in inputs) or any(tensor.is_host for tensor in info.io):
        return info
    groups = _extents_by_name(inputs)
    num_ends = len(info.profiles) * (_WHOLE_ENDS + 2 * len(groups))
    if num_ends * (len(info.io) + sum(1 for _ in leaf_entries(structure["layers"]))) > _MOST_INFERRED:
        return info
    sizes: dict[Any, tuple[int, int]] = {}
    for index, source in enumerate(network._inputs):
        for axis, extent in enumerate(source._extents or ()):
            if type(extent) is not int:
                sizes.setdefault(extent, (index, axis))
    marked = (*network._marked, *network._marked_for_shapes)
    found: list[tuple[Expression, ...]] = [
        tuple(expression_of(extent, sizes) for extent in tensor._extents or ()) for tensor in marked
    ]
    numbers = [tensors[slot.weights] if is_host_constant(slot) else None for slot in info.weight_slots]
    program = load_shape_program(structure, info, numbers)
    tried: set[tuple[Shape, ...]] = set()
    by_layers: Made = {}
    for profile in range(len(info.profiles)):
        for number, shapes in enumerate(_ends(info, inputs, profile, groups)):
            if shapes in tried:  # where one extent varies, its ends are those of the profile
                continue
            tried.add(shapes)
            made = _made(program, inputs, shapes, by_layers)
            if made is None and number < _WHOLE_ENDS:
                return info  # layers refuse shapes that the profile allows: only inferring can say which
            if made is not None:
                found = [_confirmed(known, actual, shapes) for known, actual in zip(found, made, strict=True)]
    by_id = {tensor.id: extents for tensor, extents in zip(outputs, found, strict=True)}
    return replace(
        info,
        io=tuple(replace(tensor, extents=by_id[tensor.id]) if tensor.id in by_id else tensor for tensor in info.io),
    )


def _extents_by_name(inputs: Sequence[IOTensor]) -> list[list[tuple[int, int]]]:
    """Dynamic extents, as input and axis; those of one name together."""
    places: dict[Any, list[tuple[int, int]]] = {}
    for index, tensor in enumerate(inputs):
        for axis in (axis for axis, extent in enumerate(tensor.shape) if extent < 0):
            name = tensor.dimension_names[axis] if tensor.dimension_names else ""
            places.setdefault(name or (index, axis), []).append((index, axis))
    return list(places.values())


def _ends(
    info: EngineInfo, inputs: Sequence[IOTensor], profile: int, groups: Iterable[Sequence[tuple[int, int]]]
) -> Iterator[tuple[Shape, ...]]:
    """The typical shapes of a profile, the least and the greatest possible, and those with one extent at an end.

    Extents of one name change together. Other extents may have to agree all the same: layers refuse those ends.

    Args:
        info: The engine part of the plan.
        inputs: The inputs of the engine.
        profile: Number of the profile.
        groups: What `_extents_by_name` returned.
    """
    allowed = [info.allowed_shape(tensor, profile) for tensor in inputs]
    typical = tuple(shapes.opt for shapes in allowed)
    yield typical
    yield tuple(shapes.min for shapes in allowed)
    yield _greatest(typical, [shapes.max for shapes in allowed])
    for group in groups:
        for end in ("min", "max"):
            shapes = [list(shape) for shape in typical]
            for index, axis in group:
                shapes[index][axis] = getattr(allowed[index], end)[axis]
            changed = tuple(map(tuple, shapes))
            if changed != typical:
                yield changed


def _greatest(typical: Sequence[Shape], most: Sequence[Shape]) -> tuple[Shape, ...]:
    """The greatest shapes, or as great as they can be: profiles of unbounded extents allow what no memory holds."""
    limit = max((extent for shape in most for extent in shape), default=0)
    while True:
        shapes = tuple(
            tuple(min(high, max(usual, limit)) for usual, high in zip(*pair, strict=True))
            for pair in zip(typical, most, strict=True)
        )
        if limit <= 1 or all(math.prod(shape) <= _MOST_ELEMENTS for shape in shapes):
            return shapes
        limit //= 2


def _made(
    program: Program, inputs: Sequence[IOTensor], shapes: Sequence[Shape], by_layers: Made
) -> list[Shape | None] | None:
    """What the layers make of shapes; None where they refuse them; see `report_shapes`."""
    if any(math.prod(shape) > _COUNTABLE for shape in shapes):
        return None
    values = [
        torch.empty(shape, dtype=tensor.torch_dtype, device=META) for tensor, shape in zip(inputs, shapes, strict=True)
    ]
    try:
        report = report_shapes(program, values, by_layers)
    except PortableError:
        return None
    return [None if value is None else tuple(int(extent) for extent in value.shape) for value in report.outputs]


def _confirmed(
    expressions: tuple[Expression, ...], actual: Shape | None, shapes: Sequence[Shape]
) -> tuple[Expression, ...]:
    """The expressions that give the actual extents; None in the place of others."""
    if actual is None:
        return (None,) * len(expressions)
    symbols = sizes_by_symbol(shapes)
    return tuple(
        expression if _value(expression, symbols) == extent else None
        for expression, extent in zip(expressions, actual, strict=True)
    )


def _value(expression: Expression, symbols: Mapping[str, int]) -> int | None:
    try:
        return None if expression is None else evaluate(expression, symbols)
    except PortableError:
        return None


_KNOWN_NETWORK_FLAGS: Final = 0b111


class Builder(HostSettings):
    """Builds engines. One thread at a time.

    Args:
        logger: Receives what the builder and the objects that it makes have to say.

    Raises:
        TypeError: `logger` is no `ILogger`.
    """

    def __init__(self, logger: ILogger) -> None:
        instance_of(ILogger, logger, "logger")
        self._reporter = Reporter(logger)

    # Parts of a build ------------------------------------------------------------------------------

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        """Makes an empty network.

        Args:
            flags: Bit mask of ``1 << int(NetworkDefinitionCreationFlag)``. Networks are strongly typed
                with or without the flag that says so.
        """
        mask = to_integer(flags)
        if mask & ~_KNOWN_NETWORK_FLAGS:
            self._reporter.warning(f"create_network: unknown flags in {mask:#x} are ignored")
        return INetworkDefinition(self._reporter, mask & _KNOWN_NETWORK_FLAGS, self)

    def create_builder_config(self) -> IBuilderConfig:
        """Makes a configuration with default settings."""
        return IBuilderConfig(self._reporter.child())

    def create_optimization_profile(self) -> IOptimizationProfile:
        """Makes an empty optimization profile."""
        return IOptimizationProfile()

    # Building --------------------------------------------------------------------------------------

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig, kernel_text: object = None
    ) -> IHostMemory | None:
        """Builds a plan.

        Args:
            network: Complete, with at least one output.
            config: Settings, with an optimization profile if inputs are dynamic.
            kernel_text: Must be None: kernels in text form belong to NVIDIA's compiler.

        Returns:
            None, with a report, when the network or the settings are refused, memory ran out, or the progress
            monitor stopped the build.
        """
        _expect(network, config)
        if kernel_text is not None:
            rule = "kernel_text is for safety engines, which need NVIDIA hardware"
            self._reporter.error("build_serialized_network", rule, ErrorCodeTRT.UNSUPPORTED_STATE)
            return None
        return self._guarded("build_serialized_network", lambda: build_plan(network, config, self._reporter))

    def build_engine_with_config(self, network: INetworkDefinition, config: IBuilderConfig) -> ICudaEngine | None:
        """Builds an engine and loads it onto the current device.

        Returns:
            None, with a report, where `build_serialized_network` returns None, and for
            version-compatible builds.
        """
        _expect(network, config)
        subject = "build_engine_with_config"
        if config.get_flag(BuilderFlag.VERSION_COMPATIBLE):
            rule = "version-compatible engines must be serialized: use build_serialized_network"
            self._reporter.error(subject, rule, ErrorCodeTRT.INVALID_CONFIG)
            return None

        def build() -> ICudaEngine:
            return load_engine(build_plan(network, config, self._reporter), self._reporter)

        return self._guarded(subject, build)

    def build_serialized_network_to_stream(
        self, network: INetworkDefinition, config: IBuilderConfig, writer: IStreamWriter
    ) -> bool:
        """Builds a plan and writes it; False where no plan was built or the writer gave up.

        Raises:
            TypeError: The writer is no `IStreamWriter`.
        """
        instance_of(IStreamWriter, writer, "writer")
        plan = self.build_serialized_network(network, config)
        return plan is not None and write_all(writer, plan)

    def is_network_supported(self, network: INetworkDefinition, config: IBuilderConfig) -> bool:
        """Whether the network and the settings pass validation; the reason is reported if not."""
        _expect(network, config)
        found = first_refusal(network, config)
        if found is not None:
            self._reporter.refuse(*found)
        return found is None

    _R = TypeVar("_R")

    def _guarded(self, subject: str, build: Callable[[], _R]) -> _R | None:
        try:
            with on_host(), without_autocast("cpu", current_device().type):  # constants are folded on the host
                return build()
        except BuildCancelled as cancelled:
            self._reporter.warning(f"{subject}: stopped by the progress monitor in {cancelled}")
        except Refusal as refusal:
            self._reporter.refuse(subject, refusal)
        except PortableError as error:
            self._reporter.error(subject, str(error), ErrorCodeTRT.INTERNAL_ERROR)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._reporter.error(subject, f"out of memory: {error}", ErrorCodeTRT.FAILED_ALLOCATION)
        return None

    def reset(self) -> None:
        """Returns settings to their defaults."""
        self.max_threads = 1
        self.gpu_allocator = None

    # Settings --------------------------------------------------------------------------------------

    @property
    def max_DLA_batch_size(self) -> int:
        """0: there is no DLA."""
        return 0


def _expect(network: INetworkDefinition, config: IBuilderConfig) -> None:
    instance_of(INetworkDefinition, network, "network")
    instance_of(IBuilderConfig, config, "config")


Finding = tuple[str, Refusal]


def first_refusal(network: INetworkDefinition, config: IBuilderConfig) -> Finding | None:
    """The first reason why a network cannot be built: the subject and the rule it breaks."""
    return next(_refusals(network, config), None)


def _refusals(network: INetworkDefinition, config: IBuilderConfig) -> Iterator[Finding]:
    settings = config._refusal()
    if settings is not None:
        yield "builder configuration", Refusal(settings, ErrorCodeTRT.INVALID_CONFIG)
    if not network._outputs:
        yield "network", Refusal("at least one output is needed: call mark_output")
    yield from network._validate()
    yield from _byte_refusals(network)
    yield from _io_refusals(network)
    try:
        complete_profiles(network, config)
    except Refusal as refusal:
        yield "optimization profile", refusal


def _byte_refusals(network: INetworkDefinition) -> Iterator[Finding]:
    for layer in network._layers:
        for index in range(layer.num_outputs):
            tensor = layer.get_output(index)
            if tensor is not None and tensor.dtype is DataType.UINT8 and not tensor.is_network_output:
                rule = f"{tensor.name!r} has type UINT8, which only inputs and outputs of a network may have"
                yield layer.name, Refusal(rule)


def _io_refusals(network: INetworkDefinition) -> Iterator[Finding]:
    names: set[str] = set()
    for tensor in (*network._inputs, *network._outputs):
        subject = f"tensor {tensor.name!r}"
        if tensor.name in names:
            yield subject, Refusal("names of inputs and outputs must be unique")
        names.add(tensor.name)
        if tensor.dtype in PACKED or tensor.dtype is DataType.E8M0:
            rule = f"{tensor.dtype.name} is not supported at the boundary of an engine"
            yield subject, Refusal(rule, ErrorCodeTRT.UNSUPPORTED_STATE)
        try:
            choose_format(
                tensor.allowed_formats, tensor.dtype, len(tensor.shape), is_shape_tensor=tensor.is_shape_tensor
            )
        except Refusal as refusal:
            yield subject, refusal


def complete_profiles(network: INetworkDefinition, config: IBuilderConfig) -> tuple[Profile, ...]:
    """The configuration's profiles, checked against the network; a default one if it needs none.

    Raises:
        Refusal: A dynamic input or a shape tensor has no range, or a range contradicts the network.
    """
    demanding = [tensor for tensor in network._inputs if -1 in _shape(tensor) or tensor.is_shape_tensor]
    if not config._profiles:
        if demanding:
            tensor = demanding[0]
            kind = "a shape tensor" if tensor.is_shape_tensor else f"dynamic: {_shape(tensor)}"
            raise Refusal(f"input {tensor.name!r} is {kind}, so the configuration needs an optimization profile")
        return (Profile({}, {}),)
    return tuple(_complete(network, profile, f"profile {index}") for index, profile in enumerate(config._profiles))


def _complete(network: INetworkDefinition, profile: IOptimizationProfile, subject: str) -> Profile:
    shapes: dict[str, Range] = {}
    values: dict[str, Range] = {}
    for tensor in network._inputs:
        name = tensor.name
        given = profile._shapes.get(name)
        if given is not None:
            shapes[name] = _checked_shape(tensor, given, subject)
        elif -1 in _shape(tensor):
            raise Refusal(f"{subject} has no shape for the dynamic input {name!r}")
        numbers = profile._values.get(name)
        if not tensor.is_shape_tensor:
            if numbers is not None:
                raise Refusal(f"{subject} has values for {name!r}, which is not a shape tensor")
            continue
        if numbers is None:
            raise Refusal(f"{subject} has no values for the shape tensor {name!r}")
        count = math.prod(_shape(tensor))
        if len(numbers.min) != count:
            raise Refusal(f"{subject} has {len(numbers.min)} values for {name!r}, which has {count} elements")
        values[name] = numbers
    known = {tensor.name for tensor in network._inputs}
    for name in (*profile._shapes, *profile._values):
        if name not in known:
            raise Refusal(f"{subject} names {name!r}, which is not an input of the network")
    return Profile(shapes, values, profile.extra_memory_target)


def _shape(tensor: ITensor) -> Shape:
    return tuple(tensor.shape)


def _checked_shape(tensor: ITensor, given: Range, subject: str) -> Range:
    declared = _shape(tensor)
    if len(given.min) != len(declared):
        raise Refusal(f"{subject} gives {tensor.name!r} rank {len(given.min)}; the network has {declared}")
    for shape in (given.min, given.opt):
        if math.prod(shape) > _COUNTABLE:
            raise Refusal(f"{subject} gives {tensor.name!r} the shape {shape}, more elements than can be counted")
    for axis, extent in enumerate(declared):
        found = {given.min[axis], given.opt[axis], given.max[axis]}
        if extent != -1 and found != {extent}:
            raise Refusal(
                f"{subject} gives axis {axis} of {tensor.name!r} {sorted(found)}; the network fixes it to {extent}"
            )
    return given
