"""Names and settings of torch-tensorrt 2.x, side by side with those of this project."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

from trt_core.settings import setting_names
from trt_core.settings_reader import RETIRED_SETTINGS, NoEffect, Refused, Renamed
from trt_frontends import compile

NAMES: Final = {
    "torch_tensorrt.dynamo.trace": "trt_frontends.trace",
    "torch_tensorrt.dynamo.compile": "trt_frontends.compile",
    "torch_tensorrt.compile": "trt_frontends.compile",
    "torch_tensorrt.dynamo.CompilationSettings": "trt_core.CompilationSettings",
    "torch_tensorrt.Input": "trt_core.Input",
    "torch_tensorrt.Device": "trt_core.Device",
    "torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine": (
        "trt_frontends.dynamo.convert_exported_program_to_serialized_trt_engine"
    ),
    "torch_tensorrt.dynamo._compiler.BindingNameMismatchError": "trt_frontends.dynamo.BindingNameMismatchError",
    "torch_tensorrt.convert_method_to_trt_engine": "trt_frontends.convert_method_to_trt_engine",
    "torch_tensorrt.save": "trt_frontends.save",
    "torch_tensorrt.load": "trt_runtime.load",
    "torch_tensorrt.dynamo.refit_module_weights": "trt_frontends.refit_module_weights",
    "torch_tensorrt.MutableTorchTensorRTModule": "trt_frontends.MutableModule",
    "torch_tensorrt.runtime.enable_cudagraphs": "trt_frontends.runtime.enable_cudagraphs",
    "torch_tensorrt.runtime.set_cudagraphs_mode": "trt_frontends.runtime.set_cudagraphs_mode",
    "torch_tensorrt.runtime.enable_pre_allocated_outputs": "trt_frontends.runtime.enable_pre_allocated_outputs",
    "torch_tensorrt.runtime.enable_output_allocator": "trt_frontends.runtime.enable_output_allocator",
    "torch_tensorrt.runtime.set_multi_device_safe_mode": "trt_frontends.runtime.set_multi_device_safe_mode",
    "torch_tensorrt.runtime.optimization_profile": "trt_frontends.runtime.optimization_profile",
    "torch_tensorrt.runtime.weight_streaming": "trt_runtime.weight_streaming",
    "torch_tensorrt.distributed": "trt_frontends.distributed",
    "torch_tensorrt.logging": "trt_frontends.logging",
    "torch_tensorrt.dynamo._defaults": "trt_frontends.dynamo.script_values",
    "torch_tensorrt.dynamo.utils": "trt_frontends.dynamo.script_values",
    "torch_tensorrt.dynamo.conversion.dynamo_tensorrt_converter": (
        "trt_frontends.dynamo.conversion.dynamo_tensorrt_converter"
    ),
    "torch_tensorrt.dynamo.conversion.impl": "trt_frontends.dynamo.conversion.impl",
    "torch_tensorrt.dynamo.conversion.converter_utils": "trt_frontends.dynamo.conversion.registration",
    "torch_tensorrt.dynamo.lowering": "trt_frontends.dynamo.lowering",
    "torch_tensorrt.dynamo.SourceIR": "trt_frontends.dynamo.SourceIR",
    "torch_tensorrt.dynamo.conversion.plugins.custom_op": ("trt_frontends.dynamo.conversion.registration.custom_op"),
    "torch_tensorrt.dynamo.conversion.plugins.generate_plugin_converter": (
        "trt_frontends.dynamo.conversion.registration.generate_plugin_converter"
    ),
    "torch_tensorrt.dynamo.Debugger": "trt_frontends.dynamo.Debugger",
    "torch_tensorrt.dynamo._engine_cache.BaseEngineCache": "trt_frontends.custom_engine_cache.BaseEngineCache",
    "torch_tensorrt.dtype": "trt_frontends.dtype",
    "torch_tensorrt.memory_format": "trt_frontends.memory_format",
    "torch_tensorrt.dynamo.conversion._ConverterRegistry.DYNAMO_CONVERTERS": "trt_converters.DYNAMO_CONVERTERS",
    "torch_tensorrt.dynamo.partitioning.get_graph_converter_support": (
        "trt_frontends.dynamo.partitioning.get_graph_converter_support"
    ),
    "torch_tensorrt.dynamo.partitioning.hierarchical_adjacency_partition": (
        "trt_frontends.dynamo.partitioning.hierarchical_adjacency_partition"
    ),
    "torch_tensorrt.dynamo.runtime.TorchTensorRTModule": "trt_runtime.TRTModule",
    "torch_tensorrt.dynamo.runtime.ResourceAllocationStrategy": ("trt_frontends.runtime.ResourceAllocationStrategy"),
}
"""What scripts write there, and what stands for it here."""

DIFFERENCES: Final = {
    "torch_tensorrt.dynamo.trace": "takes modules and exported programs",
    "torch_tensorrt.dynamo.compile": "takes modules as well as exported programs",
    "torch_tensorrt.compile": 'captures with torch.export; `ir="torch_compile"` is `optimize`',
    "torch_tensorrt.dynamo.runtime.TorchTensorRTModule": "is made of bytes, as by `TRTModule.of_engine`",
    "torch_tensorrt.Input": "`dimensions=` is `shared_dims=`, and takes `8*length` too",
    "torch_tensorrt.save": "writes a format of its own; PyTorch's with `output_format='exported_program'`",
    "torch_tensorrt.load": (
        "returns the model itself, as `.module()` of it does; reads files from anyone, PyTorch's format with "
        "`trust=True`"
    ),
    "torch_tensorrt.runtime.enable_cudagraphs": (
        "records calls of the whole module that it yields; `use_cuda_graphs=True` does so at compile time"
    ),
    "torch_tensorrt.runtime.set_cudagraphs_mode": "True has no effect, and a warning says so",
    "torch_tensorrt.runtime.enable_pre_allocated_outputs": "engines of one plan are switched together",
    "torch_tensorrt.runtime.enable_output_allocator": "always so",
    "torch_tensorrt.runtime.set_multi_device_safe_mode": "always so",
    "torch_tensorrt.runtime.optimization_profile": "each call runs in the profile that fits best",
    "torch_tensorrt.dynamo.runtime.ResourceAllocationStrategy": "each call makes its execution context, and waits",
    "torch_tensorrt.dynamo.utils": "what compares outputs and names devices",
    "torch_tensorrt.dynamo.conversion.dynamo_tensorrt_converter": (
        "for converters on `ctx.net`; `trt_converters.converter` is ours, and says more in its errors"
    ),
    "torch_tensorrt.dynamo.conversion.impl": (
        "`elementwise`, `unary`, `activation`, `reduce`, `shuffle`, `condition`; all of `trt_converters.layers`"
    ),
    "torch_tensorrt.dynamo.lowering": (
        "`_aten_lowering_pass` and `add_lowering_pass` for functions; a `GraphPass` goes into `lowering_passes`"
    ),
    "torch_tensorrt.dynamo.Debugger": "logs, also to a folder; pictures of graphs and profiles are made otherwise",
    "torch_tensorrt.dtype": "names of PyTorch's types",
    "torch_tensorrt.dynamo.conversion.plugins.custom_op": "`trt_converters.plugin_from_operator` by name",
    "torch_tensorrt.MutableTorchTensorRTModule": (
        "refits when weights change; `save` uses no pickle, and `load` takes the model to compile for other shapes"
    ),
}

_BUT: Final = {
    "custom_engine_cache": "an argument of `compile` and `optimize`, an option of `torch.compile`: anything "
    "with the `save` and `load` of `BaseEngineCache`",
    "enabled_precisions": "mapped to `enable_autocast`, with a warning; types of 8 bits have no effect",
    "ir": '`"dynamo"` and `"default"`; with `"torch_compile"` the same as `optimize`',
    "use_explicit_typing": "always so; False is a warning",
    "use_python_runtime": "taken; True has no effect, and a warning says so",
}

# fmt: off
SETTINGS: Final = (
    "assume_dynamic_shape_support", "attn_bias_is_causal", "autocast_calibration_dataloader",
    "autocast_excluded_nodes", "autocast_excluded_ops", "autocast_low_precision_type",
    "autocast_max_depth_of_reduction", "autocast_max_output_threshold", "cache_built_engines",
    "cpu_memory_budget", "custom_engine_cache", "debug", "decompose_attention", "device", "disable_tf32",
    "dla_global_dram_size", "dla_local_dram_size", "dla_sram_size", "dryrun", "dynamically_allocate_resources",
    "enable_autocast", "enable_cross_compile_for_windows", "enable_experimental_decompositions",
    "enable_resource_partitioning", "enable_weight_streaming", "enabled_precisions", "engine_cache_dir",
    "engine_cache_size", "engine_capability", "hardware_compatible", "immutable_weights", "ir",
    "l2_limit_for_tiling", "lazy_engine_init", "max_aux_streams", "min_block_size", "num_avg_timing_iters",
    "offload_module_to_cpu", "optimization_level", "pass_through_build_failures",
    "refit_identical_engine_weights", "require_full_compilation", "reuse_cached_engines", "sparse_weights",
    "strip_engine_weights", "tiling_optimization_level", "timing_cache_path", "torch_executed_modules",
    "torch_executed_ops", "truncate_double", "use_distributed_mode_trace", "use_explicit_typing",
    "use_fast_partitioner", "use_fp32_acc", "use_python_runtime", "version_compatible", "workspace_size",
)
# fmt: on
"""Keywords of `torch_tensorrt.dynamo.compile`."""


def names() -> str:
    """Returns the list of names.

    Raises:
        ImportError, AttributeError: A name of ours does not exist.
    """
    entries = []
    for theirs, ours in NAMES.items():
        _require(ours)
        difference = f"; {DIFFERENCES[theirs]}" if theirs in DIFFERENCES else ""
        entries.append(f"`{theirs}`\n: `{ours}`{difference}\n")
    return "\n".join(entries)


def settings_side_by_side() -> str:
    """Returns the table of settings: what each keyword is here, or what becomes of it.

    Raises:
        ValueError: A keyword is neither a setting, nor retired, nor an argument of `compile`.
    """
    rows = ["| torch-tensorrt | here |", "|---|---|"]
    own, arguments = set(setting_names()), _arguments()
    for name in SETTINGS:
        fate: Any = RETIRED_SETTINGS.get(name)
        if name in own or name in _BUT:
            said = _BUT.get(name, "the same")
        elif name in arguments:
            said = "the same, an argument of `compile`"
        elif isinstance(fate, (Renamed, NoEffect, Refused)):
            said = str(fate)
        else:
            raise ValueError(f"{name} of torch-tensorrt has no row")
        rows.append(f"| `{name}` | {said} |")
    return "\n".join(rows)


def _arguments() -> set[str]:
    return set(inspect.signature(compile).parameters)


def _require(place: str) -> None:
    module, _, name = place.rpartition(".")
    if not hasattr(importlib.import_module(module), name):
        importlib.import_module(place)
