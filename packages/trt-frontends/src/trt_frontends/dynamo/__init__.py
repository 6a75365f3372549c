"""The `dynamo` namespace: the names that users of this field write."""

from __future__ import annotations

from trt_core import CompilationSettings
from trt_frontends import runtime
from trt_frontends.capture import trace
from trt_frontends.compiler import compile, explain
from trt_frontends.dynamo import conversion, lowering, partitioning
from trt_frontends.dynamo import script_values as utils
from trt_frontends.dynamo.conversion.registration import SourceIR
from trt_frontends.example_inputs import get_dynamic_shapes_args, get_dynamic_shapes_kwargs
from trt_frontends.logging import Debugger
from trt_frontends.mutable_module import refit_module_weights
from trt_frontends.script_saving import convert_exported_program_to_serialized_trt_engine, save
from trt_frontends.single_engine import BindingNameMismatchError
from trt_frontends.torch_tensorrt import names_of
from trt_partition import PartitionReport
from trt_runtime import load

__all__ = [
    "BindingNameMismatchError",
    "CompilationSettings",
    "Debugger",
    "PartitionReport",
    "SourceIR",
    "compile",
    "conversion",
    "convert_exported_program_to_serialized_trt_engine",
    "explain",
    "get_dynamic_shapes_args",
    "get_dynamic_shapes_kwargs",
    "load",
    "lowering",
    "partitioning",
    "refit_module_weights",
    "runtime",
    "save",
    "trace",
    "utils",
]

_defaults = utils
__getattr__, __dir__ = names_of(__name__)
