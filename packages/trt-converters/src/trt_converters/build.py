"""Builds the engine of a block: convert, set the profiles and the builder's options, let the provider build.

The builder's timing cache is a file that any number of processes read and add to.
"""

from __future__ import annotations

import errno
import gc
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from trt_converters.interpreter import BlockInterpreter, KnownPlace
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import BuildError, CompilationSettings, Provider, current_provider, device_scope, provider_identity, trt
from trt_core.attributes import read_attribute
from trt_core.device import on_host
from trt_core.errors import TrtError
from trt_core.files.folder import Folder
from trt_core.files.opening import file_name, read_file
from trt_core.files.replacing import replacing
from trt_core.log import forget_errors, provider_logger, take_errors
from trt_core.paused_collection import paused_collection
from trt_core.process_groups import GroupMembers, groups_in, show_ranks
from trt_core.refit_table import RefitTable
from trt_core.settings import ObservedSettings
from trt_core.sizes.ranges import Bounds, ShapeRanges

_MOST_BYTES: Final = 256 << 20
_LOCK_SECONDS: Final = 60.0


class TimingCacheFile:
    """Tactic timings on disk.

    Timings make builds faster and never wrong, so whatever goes wrong with the file is a warning. Timings that were
    taken with another release or on another device are left out by the provider; the file then starts anew.

    Args:
        path: The file; it and its folder are made when they are missing.

    Raises:
        InputError: No file has such a name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.expanduser(file_name(path))).absolute()

    def attach(self, config: Any) -> None:
        """Gives a builder configuration the timings of the file.

        Args:
            config: A `trt.IBuilderConfig`, before the build.
        """
        try:
            cache = self._timings(config, self._content())
        except (OSError, TrtError) as error:
            self._warn_of(str(error))
            cache = None
        if cache is None or not config.set_timing_cache(cache, False):
            config.set_timing_cache(config.create_timing_cache(b""), False)

    def merge(self, config: Any) -> None:
        """Adds what a build has timed to the file, beside what others added meanwhile.

        Args:
            config: The configuration, after the build.
        """
        cache = config.get_timing_cache()
        if cache is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with Folder.open(str(self.path.parent)).locked(f"{self.path.name}.lock", _LOCK_SECONDS):
                before = self._content()
                known = self._timings(config, before)
                if known is not None:
                    cache.combine(known, False)
                content = bytes(memoryview(cache.serialize()))
                if content != before:
                    with replacing(self.path) as file:
                        file.write(content)
        except TimeoutError:
            self._warn_of(f"it was in use for {_LOCK_SECONDS:.0f} seconds")
        except (OSError, TrtError) as error:
            self._warn_of(str(error))

    def _warn_of(self, why: str) -> None:
        warnings.warn(f"tactic timings are not kept in {self.path}: {why}", RuntimeWarning, stacklevel=3)

    def _timings(self, config: Any, content: bytes) -> Any:
        if not content:
            return None
        try:
            found = config.create_timing_cache(content)
        except (RuntimeError, TypeError, ValueError):
            found = None
        if found is None:
            warnings.warn(f"the timing cache {self.path} is damaged and starts anew", RuntimeWarning, stacklevel=3)
        return found

    def _content(self) -> bytes:
        """What is in the file; nothing where there is none.

        Raises:
            OSError, TrtError: It cannot be read, and what it holds is not to be overwritten.
        """
        try:
            try:
                return read_file(self.path, _MOST_BYTES)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
            return read_file(self.path, _MOST_BYTES)  # another host has replaced it since it was opened
        except FileNotFoundError:
            return b""


InputBounds = dict[str, tuple[Bounds, ...]]
"""(min, opt, max) of every dimension of every input, by name."""

_LOG: Final = "run with debug=True for the provider's log"


@dataclass(frozen=True)
class BuiltEngine:
    """An engine, as the provider serialized it, and what a runtime must know to run it.

    Attributes:
        name: Name of the block.
        plan: The provider's plan, an object with the buffer protocol.
        input_names, output_names: Names of the bindings, in the block's order.
        inputs, outputs: Metadata of the bindings (`FakeTensor`s), in the same order.
        updates: Inputs that are updated in place, and the outputs that are the same memory, by name; none of these
            outputs is among the others.
        places: Where updates begin that can be told from the inputs, by the name of the updated input.
        profiles: (min, opt, max) of the dimensions of the inputs, by name, for each optimization profile; at least one.
        layers: Number of layers of the network.
        build_seconds: Time of the conversion and the build, in seconds.
        provider: Name and version of the provider.
        settings_read: Names of the settings that converters and builder read.
        refit: How its weights follow from the model's, where it was built for refitting; else None.
        process_group: The ranks whose communicator its execution contexts need; None for none.
        plugins: What it needs of plugins, by name, that converters of others have added.
    """

    name: str
    plan: Any = field(repr=False)
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    inputs: tuple[torch.Tensor, ...] = field(repr=False)
    outputs: tuple[torch.Tensor, ...] = field(repr=False)
    profiles: tuple[InputBounds, ...]
    layers: int
    build_seconds: float
    provider: str
    updates: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, KnownPlace] = field(default_factory=dict)
    settings_read: frozenset[str] = frozenset()
    refit: RefitTable | None = field(default=None, repr=False)
    process_group: GroupMembers | None = None
    plugins: tuple[str, ...] = ()


def build_block(
    block: fx.GraphModule,
    settings: CompilationSettings,
    ranges: ShapeRanges,
    name: str,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    timing_cache: TimingCacheFile | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    twins: Mapping[int, torch.Tensor] | None = None,
) -> BuiltEngine:
    """Builds the engine of a block.

    Args:
        block: A graph module whose placeholders and results are tensors, with metadata.
        settings: What to compile with; `settings.device` is the device of the engine.
        ranges: Ranges of the symbolic dimensions.
        name: Name of the block and its engine.
        registry: Where converters are looked up.
        timing_cache: File of tactic timings that the build reads and adds to.
        weights: The model's weights by name, which engines for refitting need.
        twins: Equals on the host of tensors on a GPU that nobody else needs there, by address. Once it is converted,
            the block has these in their place, so that the GPU has room for what is tried.

    Raises:
        ConversionError: A node could not be converted; the attribute `node_name` says which.
        BuildError: The provider refused the network; the message repeats what it logged.
    """
    start = time.perf_counter()
    settings = ObservedSettings(settings)
    with device_scope(settings.device.torch_device), on_host():
        forget_errors()
        builder = new_builder(name)
        network = new_network(builder)
        network.name = name
        interpreter = BlockInterpreter(block, network, settings, ranges, registry)
        with paused_collection():
            interpreter.run()
        refit = interpreter.context.refit
        table = None if refit is None else refit.finish(weights or {})
        group = _process_group(block, name)
        profiles = profiles_of(block, interpreter.input_names, ranges)
        names = tuple(interpreter.input_names), tuple(interpreter.output_names)
        updates, places = interpreter.updates, interpreter.places
        plugins = interpreter.plugins()
        held: object = interpreter  # has what the network refers to
        if twins:
            held = interpreter.context.leave_device(twins)
            _leave_device(block, twins)
        del interpreter, refit
        if twins:
            gc.collect()  # what converted the block is in cycles, and refers to its tensors
        plan = build_network(
            builder,
            network,
            settings,
            profiles,
            name,
            timing_cache=timing_cache,
            communicates=group is not None,
            hint=f"{_LOG}, or keep the operators it names in torch_executed_ops",
        )
        del held
        if twins:
            gc.collect()  # and so is what the builder leaves behind
    return BuiltEngine(
        name=name,
        plan=plan,
        input_names=names[0],
        output_names=names[1],
        inputs=tuple(node.meta["val"] for node in block.graph.nodes if node.op == "placeholder"),
        outputs=tuple(results_of(block)),
        profiles=profiles,
        updates=updates,
        places=places,
        layers=network.num_layers,
        build_seconds=time.perf_counter() - start,
        provider=provider_identity(),
        settings_read=settings.fields_read(),
        refit=table,
        process_group=group,
        plugins=plugins,
    )


def _leave_device(block: fx.GraphModule, twins: Mapping[int, torch.Tensor]) -> None:
    """Puts tensors of a block on the host, for all who hold them, where an equal one lies there."""
    graphs = [module for module in block.modules() if isinstance(module, fx.GraphModule)]
    for value in [
        read_attribute(graph, str(node.target)) for graph in graphs for node in graph.graph.find_nodes(op="get_attr")
    ]:
        twin = twins.get(value.data_ptr()) if isinstance(value, torch.Tensor) else None
        if twin is not None and (twin.dtype, twin.shape, twin.stride()) == (value.dtype, value.shape, value.stride()):
            value.data = twin


def build_network(
    builder: Any,
    network: Any,
    settings: CompilationSettings,
    profiles: Sequence[InputBounds],
    name: str,
    *,
    values: Mapping[str, Sequence[Sequence[int]]] | None = None,
    timing_cache: TimingCacheFile | None = None,
    communicates: bool = False,
    hint: str = _LOG,
) -> Any:
    """Builds the engine of a complete network, on the current device.

    Args:
        builder: The provider's `IBuilder` that made the network.
        network: The provider's `INetworkDefinition`.
        settings: What to build with.
        profiles: Bounds of the inputs by name, for each optimization profile.
        name: Name of the engine.
        values: Least, usual and greatest values of the inputs that decide about shapes.
        timing_cache: File of tactic timings that the build reads and adds to.
        communicates: Whether its layers communicate.
        hint: What to do where the provider refuses it.

    Returns:
        The provider's plan, an object with the buffer protocol.

    Raises:
        BuildError: The provider refused the network or a profile; the message repeats what it logged.
    """
    config = builder.create_builder_config()
    configure(config, settings)
    if communicates:
        _allow_collectives(config)
    ends = [network.get_input(index) for index in range(network.num_inputs)]
    dynamic = [end.name for end in ends if -1 in tuple(end.shape)]
    for bounds in profiles if dynamic or values else ():
        _add_profile(builder, config, {name: bounds[name] for name in dynamic}, values or {})
    if timing_cache is not None:
        timing_cache.attach(config)
    plan = builder.build_serialized_network(network, config)
    if timing_cache is not None and plan is not None:
        timing_cache.merge(config)
    if plan is None:
        raise BuildError(
            f"the engine {name} could not be built",
            where=f"{len(ends)} inputs, {network.num_layers} layers",
            why=take_errors() or "the provider gave no reason",
            hint=hint,
        )
    return plan


def _process_group(block: fx.GraphModule, name: str) -> GroupMembers | None:
    """The group whose communicator the execution contexts of TensorRT need: they take one.

    Raises:
        BuildError: The collectives of the block are those of several groups.
    """
    if current_provider() is not Provider.TENSORRT:
        return None
    graphs = [module.graph for module in block.modules() if isinstance(module, fx.GraphModule)]
    found = dict.fromkeys(group for graph in graphs for group in groups_in(graph))
    if len(found) > 1:
        raise BuildError(
            f"the engine {name} could not be built: it communicates in {len(found)} process groups",
            where=", ".join(f"{group.name!r} ({show_ranks(group.ranks)})" for group in found),
            why="an execution context of TensorRT takes one communicator",
            hint="keep the collectives of all groups but one in torch_executed_ops",
        )
    return next(iter(found), None)


def _allow_collectives(config: Any) -> None:
    """Before 11.0 layers that communicate were a preview, to be asked for."""
    preview = getattr(trt.PreviewFeature, "MULTIDEVICE_RUNTIME_10_16", None)
    if preview is not None:
        config.set_preview_feature(preview, True)


def new_builder(name: str) -> Any:
    """Returns a builder of the provider, for an engine of a name.

    Raises:
        BuildError: The provider cannot make one.
    """
    try:
        return trt.Builder(provider_logger())
    except TypeError as error:  # what the bindings make of a builder that TensorRT could not create
        raise BuildError(
            f"the engine {name} could not be built: there is no builder",
            why=take_errors() or str(error),
            hint="check that this TensorRT release supports the GPU and its driver, and that memory is left",
        ) from error


def new_network(builder: Any) -> Any:
    """Returns a network whose tensors have the types that its layers say, as all networks of TensorRT 11 have."""
    return builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))


def layers_of(
    block: fx.GraphModule, settings: CompilationSettings, ranges: ShapeRanges, registry: ConverterRegistry
) -> list[tuple[str, str]]:
    """Returns names and kinds of the layers that converting a block makes; nothing is built."""
    with device_scope(settings.device.torch_device):
        network = new_network(trt.Builder(provider_logger()))
        BlockInterpreter(block, network, settings, ranges, registry).run()
        # pooling and activation layers have a `type` of their own, which hides the kind of layer
        kind_of = trt.ILayer.type.fget
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        return [(layer.name, kind_of(layer).name) for layer in layers]


def results_of(block: fx.GraphModule) -> Sequence[torch.Tensor]:
    """Returns the metadata of what a block returns, one tensor or several."""
    results: Any = block.graph.output_node().args[0]
    return [node.meta["val"] for node in (results if isinstance(results, (tuple, list)) else (results,))]


def profiles_of(block: fx.GraphModule, names: Sequence[str], ranges: ShapeRanges) -> tuple[InputBounds, ...]:
    """Returns the bounds of a block's inputs for each optimization profile.

    Args:
        block: The block.
        names: What its inputs are called, in its order.
        ranges: Ranges of the symbolic dimensions.
    """
    placeholders = [node.meta["val"] for node in block.graph.nodes if node.op == "placeholder"]
    profiles: list[InputBounds] = []
    for item in ranges.each():
        bounds = {
            name: tuple(item.bounds(extent) for extent in meta.shape)
            for name, meta in zip(names, placeholders, strict=True)
        }
        if bounds not in profiles:  # else they differ in what this block does not see
            profiles.append(bounds)
    return tuple(profiles)


def _add_profile(builder: Any, config: Any, bounds: InputBounds, values: Mapping[str, Sequence[Sequence[int]]]) -> None:
    profile = builder.create_optimization_profile()
    for name, extents in bounds.items():
        low, best, high = zip(*extents, strict=True)
        try:
            profile.set_shape(name, low, best, high)
        except (RuntimeError, ValueError) as error:
            raise _refused_profile({name: extents}) from error
    for name, numbers in values.items():
        profile.set_shape_input(name, *numbers)
    if config.add_optimization_profile(profile) < 0:
        raise _refused_profile(bounds)


def _refused_profile(bounds: Mapping[str, Sequence[Bounds]]) -> BuildError:
    listed = ", ".join(f"{name}: {extents}" for name, extents in bounds.items())
    logged = take_errors()
    return BuildError(
        "the provider refused the optimization profile",
        why=f"{listed}; {logged}" if logged else listed,
        hint="give Input ranges with min <= opt <= max that agree with each other",
    )


def configure(config: Any, settings: CompilationSettings) -> None:
    """Sets up an `IBuilderConfig`.

    Precision is no option here: networks are strongly typed, and lowering has chosen the types.
    """
    if settings.workspace_size:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_size)
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.max_aux_streams is not None:
        config.max_aux_streams = settings.max_aux_streams
    config.avg_timing_iterations = settings.num_avg_timing_iters
    config.engine_capability = getattr(trt.EngineCapability, settings.engine_capability.upper())
    if settings.hardware_compatible:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if settings.debug:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    for flag, wanted in (
        (trt.BuilderFlag.SPARSE_WEIGHTS, settings.sparse_weights),
        # only weights of the model: what else is constant can still be folded
        (trt.BuilderFlag.REFIT_INDIVIDUAL, settings.refit),
        (trt.BuilderFlag.WEIGHT_STREAMING, settings.enable_weight_streaming),
        (trt.BuilderFlag.VERSION_COMPATIBLE, settings.version_compatible),
    ):
        if wanted:
            config.set_flag(flag)
    if settings.disable_tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if settings.device.dla_core is not None:
        config.default_device_type = trt.DeviceType.DLA
        config.DLA_core = settings.device.dla_core
        if settings.device.allow_gpu_fallback:
            config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    if settings.device.is_dla or settings.engine_capability == "dla_standalone":
        pools = trt.MemoryPoolType
        config.set_memory_pool_limit(pools.DLA_MANAGED_SRAM, settings.dla_sram_size)
        config.set_memory_pool_limit(pools.DLA_LOCAL_DRAM, settings.dla_local_dram_size)
        config.set_memory_pool_limit(pools.DLA_GLOBAL_DRAM, settings.dla_global_dram_size)
