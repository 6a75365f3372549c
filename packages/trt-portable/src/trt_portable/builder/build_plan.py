"""From a network definition to a plan: validate, eliminate, fold, choose a tactic, serialize."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from trt_portable.builder.autotune.engine_tactic import choose_tactic
from trt_portable.builder.autotune.low_precision import choose_low_precision_kernels
from trt_portable.builder.output_extents import add_output_extents
from trt_portable.builder.passes.fold_attention_factors import FoldAttentionFactors
from trt_portable.builder.passes.fold_constants import FoldConstants
from trt_portable.builder.passes.fold_scales import FoldScales
from trt_portable.builder.passes.fuse_gelu import FuseGelu
from trt_portable.builder.passes.fuse_neighbours import FuseNeighbours
from trt_portable.builder.passes.fuse_quantized_convolutions import FuseQuantizedConvolutions
from trt_portable.builder.passes.fuse_quantized_products import FuseQuantizedProducts
from trt_portable.builder.passes.merge_products import MergeProducts
from trt_portable.builder.passes.recognize_constant_masks import RecognizeConstantMasks
from trt_portable.builder.passes.recognize_recurrences import RecognizeRecurrences
from trt_portable.builder.passes.simplify_movement import SimplifyMovement
from trt_portable.builder.progress_monitor import Phase
from trt_portable.builder.validate import complete_profiles, first_refusal
from trt_portable.enums import (
    BuilderFlag,
    DataType,
    HardwareCompatibilityLevel,
    LayerType,
    MemoryPoolType,
    TilingOptimizationLevel,
)
from trt_portable.errors import Refusal
from trt_portable.formats import choose_format
from trt_portable.layers.collective import rehearsal
from trt_portable.memory import IHostMemory
from trt_portable.network.serialization import layers_from_json, leaf_entries, leaf_layers, network_to_json
from trt_portable.plan.artifact import trust, write_artifacts
from trt_portable.plan.engine_info import EngineInfo, IOTensor, RefitMode, WeightSlot
from trt_portable.plan.engine_plan import write_engine
from trt_portable.plan.nodes import Node, PlanGraph, PlanPass, TensorFacts
from trt_portable.plan.weight_table import WeightTable
from trt_portable.reporting import Reporter

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig
    from trt_portable.network.network import INetworkDefinition


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
            table = _optimize(structure, weights, is_refittable, frozenset(debug), layers.step, fuse=fuse)
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


def _optimize(
    structure: dict[str, Any],
    weights: Mapping[str, torch.Tensor],
    is_refittable: Callable[[str, str], bool],
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
        debug: Ids of tensors marked for debugging.
        step: Called once per layer.
        fuse: Let layers join others, which debug listeners would miss.
    """
    graph = PlanGraph(
        nodes=map(Node.from_json, structure["layers"]),
        tensors={tensor["id"]: TensorFacts.from_json(tensor) for tensor in structure["tensors"]},
        weights=WeightTable(weights),
        inputs=structure["inputs"],
        visible={*structure["outputs"], *structure["shape_outputs"], *debug},
        is_fixed=lambda key, role: not is_refittable(key, role),
    )
    passes: list[PlanPass] = [EliminateDeadLayers(), FoldConstants(debug, step)]
    if fuse:
        passes += [
            FuseQuantizedProducts(),
            FuseQuantizedConvolutions(),
            FoldScales(),
            RecognizeConstantMasks(),
            FoldAttentionFactors(),
            FuseGelu(),
            MergeProducts(),
            EliminateDeadLayers(),  # what reads a tensor no more must not seem to
            SimplifyMovement(),
        ]
    passes += [EliminateDeadLayers(), RecognizeRecurrences()]
    if fuse:
        passes.append(FuseNeighbours())
    for each in passes:
        each(graph)
    structure["layers"] = [node.to_json() for node in graph.nodes]
    structure["tensors"] = [graph.tensors[tensor].to_json(tensor) for tensor in sorted(graph.used_tensors)]
    return graph.weights


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
            layer_name=layer.name,
            role=role,
            weights=key,
            dtype=dtype,
            count=count,
            name=names.get(key),
            refittable=is_refittable(key, role),
        )
        for index, layer in enumerate(leaf_layers(layers_from_json(structure).layers))
        for role, key in layer._weight_keys.items()
        for dtype, count in (layer._weight_specs[role],)
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
