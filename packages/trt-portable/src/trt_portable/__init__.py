"""TensorRT's Python API on PyTorch: define, build, run, refit and inspect networks without TensorRT.

Use it as ``import trt_portable as trt``.
"""

from __future__ import annotations

from trt_portable import enums as _enums
from trt_portable.allocators import IGpuAllocator, IGpuAsyncAllocator, IOutputAllocator
from trt_portable.builder import Builder
from trt_portable.builder_config import IBuilderConfig
from trt_portable.device import current_device, device, set_device
from trt_portable.dims import Dims, Dims2, Dims3, Dims4, DimsHW, Permutation
from trt_portable.dtypes import nptype, volume
from trt_portable.enums import *  # noqa: F403
from trt_portable.enums import DataType
from trt_portable.engine import ICudaEngine
from trt_portable.error_recorder import IErrorRecorder
from trt_portable.errors import NetworkError, PortableError, set_strict, strict
from trt_portable.execution_context import IExecutionContext
from trt_portable.host_memory import IHostMemory
from trt_portable.inspector import EngineInspector
from trt_portable.layer import ILayer
from trt_portable.layers import *  # noqa: F403
from trt_portable.logger import ILogger, Logger
from trt_portable.network import INetworkDefinition
from trt_portable.observers import IDebugListener, IProfiler, Profiler
from trt_portable.optimization_profile import IOptimizationProfile
from trt_portable.progress_monitor import IProgressMonitor
from trt_portable.refitter import Refitter
from trt_portable.runtime import Runtime
from trt_portable.runtime_config import IRuntimeConfig, ISerializationConfig
from trt_portable.streams import IStreamReaderV2, IStreamWriter
from trt_portable.tensor import ITensor
from trt_portable.version import __version__ as __version__
from trt_portable.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.weights import Weights

float32 = DataType.FLOAT
float16 = DataType.HALF
bfloat16 = DataType.BF16
int8 = DataType.INT8
int32 = DataType.INT32
int64 = DataType.INT64
int4 = DataType.INT4
bool = DataType.BOOL
uint8 = DataType.UINT8
fp8 = DataType.FP8
fp4 = DataType.FP4
e8m0 = DataType.E8M0
