"""Runs engines: plans as files, engines as modules, saved programs.

Importing this package registers the operators `torch.ops.trt.execute_engine` and `lay_out`, which are all that a saved
program needs. It imports neither converters nor compilers, and touches no device.
"""

from __future__ import annotations

import trt_runtime.interruption  # noqa: F401  # acts, and before what takes long to import

# isort: split
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from trt_core.errors import ExecutionError, ExportError, FileError, InputError, PlanError, RefitError, TrtError
from trt_core.lazy_names import lazy_names
from trt_runtime.bindings import Binding
from trt_runtime.compatibility import check_compatible
from trt_runtime.engine import ENGINES, EngineStore, LoadedEngine
from trt_runtime.engine_file import plan_from_bytes, plan_to_bytes, read_plan, write_plan
from trt_runtime.header import PlanHeader
from trt_runtime.module import PreAllocatedOutputs, TRTModule
from trt_runtime.operator import execute_engine
from trt_runtime.result_layout import lay_out as _  # noqa: F401  # registers its operator

if TYPE_CHECKING:
    from trt_runtime.generation import TextGenerator
    from trt_runtime.graphed_calls import cuda_graphs
    from trt_runtime.module import weight_streaming
    from trt_runtime.profiling import LayerProfile, LayerTime, profile_layers
    from trt_runtime.program import LoadedProgram, load, save
    from trt_runtime.refit import refit_engine, refit_module
    from trt_runtime.sharded import save_sharded

try:
    __version__ = version("trt-runtime")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    __version__ = "0+source"

__all__ = [
    "ENGINES",
    "Binding",
    "EngineStore",
    "ExecutionError",
    "ExportError",
    "FileError",
    "InputError",
    "LayerProfile",
    "LayerTime",
    "LoadedEngine",
    "LoadedProgram",
    "PlanError",
    "PlanHeader",
    "PreAllocatedOutputs",
    "RefitError",
    "TRTModule",
    "TextGenerator",
    "TrtError",
    "check_compatible",
    "cuda_graphs",
    "execute_engine",
    "load",
    "plan_from_bytes",
    "plan_to_bytes",
    "profile_layers",
    "read_plan",
    "refit_engine",
    "refit_module",
    "save",
    "save_sharded",
    "weight_streaming",
    "write_plan",
]

_LATE: Final = {
    "trt_runtime.generation": "TextGenerator",
    "trt_runtime.graphed_calls": "cuda_graphs",
    "trt_runtime.module": "weight_streaming",
    "trt_runtime.profiling": "LayerProfile, LayerTime, profile_layers",
    "trt_runtime.program": "LoadedProgram, load",
    "trt_runtime.program.saving": "save",
    "trt_runtime.refit": "refit_engine, refit_module",
    "trt_runtime.sharded": "save_sharded",
}
"""Names that are imported when they are first used: running engines needs none of them, and saved
programs only `load`."""

__getattr__, __dir__ = lazy_names(__name__, _LATE)
