"""The keywords that settings are given by, for type checkers: they reject `min_blok_size=` before anything runs.

`CompilationSettings` says what the settings are; a test holds these keywords to it, and to the table of retired names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, TypedDict

import torch

from trt_core.device import Device
from trt_core.settings import CompilationSettings


class RetiredKeywords(TypedDict, total=False):
    """Keywords of other generations; `RETIRED_SETTINGS` says what becomes of each. Arguments are no part."""

    truncate_double: bool
    make_refittable: bool
    make_refitable: bool
    immutable_weights: bool
    allow_tf32: bool
    strict_types: bool
    max_workspace_size: int
    dry_run: bool | str | os.PathLike[str]
    capability: Any
    autocast_low_precision_type: torch.dtype | str
    verbose_log: bool
    ir: Any
    capture_type: Any
    use_distributed_mode_trace: Any
    input_signature: Any
    enable_cross_compile_for_windows: Any
    assume_dynamic_shape_support: Any
    allow_shape_tensors: Any
    explicit_batch_dimension: Any
    max_batch_size: Any
    fp16_mode: Any
    int8_mode: Any
    lower_precision: Any
    calibrator: Any
    use_fp32_acc: Any
    decompose_attention: Any
    attn_bias_is_causal: Any
    refit_identical_engine_weights: Any
    strip_engine_weights: Any
    cpu_memory_budget: Any
    enable_resource_partitioning: Any
    dynamically_allocate_resources: Any
    num_min_timing_iters: Any
    tiling_optimization_level: Any
    l2_limit_for_tiling: Any
    timing_cache_prefix: str | os.PathLike[str]
    save_timing_cache: Any
    save_engine_cache: bool | None
    load_engine_cache: bool | None
    lazy_engine_init: Any
    use_python: Any
    use_experimental_rt: Any
    cuda_graph_batch_size: Any


class SettingKeywords(RetiredKeywords, total=False):
    """What `compile` and its like take beside their own arguments; see `CompilationSettings`.

    Types are those that users may write, which is more than what a setting holds.
    """

    settings: CompilationSettings
    precision: torch.dtype | str
    enabled_precisions: Collection[Any]
    use_explicit_typing: bool
    enable_autocast: bool
    autocast_dtype: torch.dtype | str
    autocast_excluded_ops: Collection[Any]
    autocast_excluded_nodes: Collection[str]
    autocast_max_output_threshold: float | None
    autocast_max_depth_of_reduction: int | None
    max_error: float | None
    truncate_long_and_double: bool
    torch_executed_ops: Collection[Any]
    torch_executed_modules: Collection[Any]
    check_indices: bool
    enable_experimental_decompositions: bool
    lowering_passes: Sequence[Any]
    min_block_size: int | float
    use_fast_partitioner: bool
    require_full_compilation: bool
    dryrun: bool | str | os.PathLike[str]
    debug: bool
    device: Device | torch.device | str | int | None
    workspace_size: int
    optimization_level: int | None
    max_aux_streams: int | None
    num_avg_timing_iters: int
    disable_tf32: bool
    sparse_weights: bool
    refit: bool
    enable_weight_streaming: bool
    version_compatible: bool
    hardware_compatible: bool
    engine_capability: Any
    dla_sram_size: int
    dla_local_dram_size: int
    dla_global_dram_size: int
    use_python_runtime: bool | None
    pass_through_build_failures: bool
    use_cuda_graphs: bool
    offload_module_to_cpu: bool
    cache_built_engines: bool | None
    reuse_cached_engines: bool | None
    engine_cache_dir: str | os.PathLike[str]
    engine_cache_size: int
    timing_cache_path: str | os.PathLike[str]
    check_weights: bool
    gradients: str
    torch_fallback: str
