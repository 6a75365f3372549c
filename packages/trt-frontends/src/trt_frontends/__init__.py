"""From PyTorch models to TensorRT engines: capture, explain, compile, save, load.

The package may be imported under the name that the field's scripts use: `import trt_frontends as torch_tensorrt`.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from trt_core import CompilationSettings, Device, Input, set_provider
from trt_frontends.torch_tensorrt import names_of

if TYPE_CHECKING:
    from trt_frontends import distributed, dynamo, logging, quantization, runtime
    from trt_frontends.accuracy import AccuracyReport, BisectReport, bisect, verify
    from trt_frontends.backend import optimize
    from trt_frontends.capture import trace
    from trt_frontends.compiler import compile, explain
    from trt_frontends.diffusion_compilation import compile_pipeline
    from trt_frontends.generation import compile_generation
    from trt_frontends.mutable_module import MutableModule, refit_module_weights
    from trt_frontends.mutable_module import MutableModule as MutableTorchTensorRTModule
    from trt_frontends.quantization import QuantizationConfig, quantize
    from trt_frontends.script_saving import convert_method_to_trt_engine, save
    from trt_frontends.torch_compile.model_report import ModelReport, model_report
    from trt_frontends.torch_tensorrt import DeviceType, EngineCapability, dtype, install_alias, memory_format
    from trt_partition import PartitionReport
    from trt_runtime import load

try:
    __version__ = version("trt-frontends")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    __version__ = "0+source"

_LATE: Final = {
    "trt_frontends": "distributed, dynamo, logging, quantization, runtime",
    "trt_frontends.accuracy": "AccuracyReport, BisectReport, bisect, verify",
    "trt_frontends.backend": "optimize",
    "trt_frontends.capture": "trace",
    "trt_frontends.compiler": "compile, explain",
    "trt_frontends.diffusion_compilation": "compile_pipeline",
    "trt_frontends.generation": "compile_generation",
    "trt_frontends.mutable_module": "MutableModule, MutableModule as MutableTorchTensorRTModule, refit_module_weights",
    "trt_frontends.quantization": "QuantizationConfig, quantize",
    "trt_frontends.script_saving": "convert_method_to_trt_engine, save",
    "trt_frontends.torch_compile.model_report": "ModelReport, model_report",
    "trt_frontends.torch_tensorrt": "DeviceType, EngineCapability, dtype, install_alias, memory_format",
    "trt_partition": "PartitionReport",
    "trt_runtime": "load",
}
"""Names that are imported when they are first used, since they cost time to import."""

__all__ = [
    "AccuracyReport",
    "BisectReport",
    "CompilationSettings",
    "Device",
    "DeviceType",
    "EngineCapability",
    "Input",
    "ModelReport",
    "MutableModule",
    "MutableTorchTensorRTModule",
    "PartitionReport",
    "QuantizationConfig",
    "bisect",
    "compile",
    "compile_generation",
    "compile_pipeline",
    "convert_method_to_trt_engine",
    "distributed",
    "dtype",
    "dynamo",
    "explain",
    "install_alias",
    "load",
    "logging",
    "memory_format",
    "model_report",
    "optimize",
    "quantization",
    "quantize",
    "refit_module_weights",
    "runtime",
    "save",
    "set_provider",
    "trace",
    "verify",
]

__getattr__, __dir__ = names_of(__name__, _LATE)
