"""Compilation settings as options of the builder, on either major version of TensorRT."""

from __future__ import annotations

from typing import Any

from trt_core import CompilationSettings, trt


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
