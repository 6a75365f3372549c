"""Settings of a build that this provider takes, keeps and does nothing with: a build says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trt_portable.enums import BuilderFlag, HardwareCompatibilityLevel, MemoryPoolType, TilingOptimizationLevel

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig


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
