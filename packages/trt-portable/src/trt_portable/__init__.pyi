"""The public names of the package and where each lives; `trt_portable` reads this list when it is imported."""

from typing import Final

from trt_portable.builder.autotune.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.builder.builder import Builder
from trt_portable.builder.config import IBuilderConfig
from trt_portable.builder.progress_monitor import IProgressMonitor
from trt_portable.device import current_device, device, set_device
from trt_portable.dims import Dims, Dims2, Dims3, Dims4, DimsHW, Permutation
from trt_portable.dtypes import nptype, volume
from trt_portable.enums import (
    ActivationType,
    AllocatorFlag,
    APILanguage,
    AttentionIOForm,
    AttentionNormalizationOp,
    BoundingBoxFormat,
    BuilderFlag,
    CausalMaskKind,
    CollectiveOperation,
    CumulativeOperation,
    DataType,
    DeviceType,
    DimensionOperation,
    DLAWorkspaceAllocationStrategy,
    ElementWiseOperation,
    EngineCapability,
    EngineStat,
    ErrorCode,
    ErrorCodeTRT,
    ExecutionContextAllocationStrategy,
    FillOperation,
    GatherMode,
    HardwareCompatibilityLevel,
    InterpolationMode,
    KVCacheMode,
    LayerInformationFormat,
    LayerType,
    LoopOutput,
    MatrixOperation,
    MemoryPoolType,
    MoEActType,
    NetworkDefinitionCreationFlag,
    OnnxParserFlag,
    PaddingMode,
    PluginArgDataType,
    PluginArgType,
    PluginCapabilityType,
    PluginCreatorVersion,
    PluginFieldType,
    PoolingType,
    PreviewFeature,
    ProfilingVerbosity,
    QuickPluginCreationRequest,
    ReduceOperation,
    ResizeCoordinateTransformation,
    ResizeRoundMode,
    ResizeSelector,
    RuntimePlatform,
    SampleMode,
    ScaleMode,
    ScatterMode,
    SeekPosition,
    SerializationFlag,
    TacticSource,
    TempfileControlFlag,
    TensorFormat,
    TensorIOMode,
    TensorLocation,
    TensorRTPhase,
    TilingOptimizationLevel,
    TopKOperation,
    TripLimit,
    UnaryOperation,
    WeightsRole,
)
from trt_portable.errors import NetworkError, PortableError, set_strict, strict
from trt_portable.execution.tracing import TraceFailure, trace_engine
from trt_portable.installation import __version__, install_as_tensorrt
from trt_portable.interfaces import (
    IGpuAllocator,
    IGpuAsyncAllocator,
    InterfaceInfo,
    IOutputAllocator,
    IStreamReaderV2,
    IStreamWriter,
    IVersionedInterface,
)
from trt_portable.layers.assertion import IAssertionLayer
from trt_portable.layers.attention import (
    IAttention,
    IAttentionBoundaryLayer,
    IAttentionInputLayer,
    IAttentionOutputLayer,
)
from trt_portable.layers.collective import IDistCollectiveLayer
from trt_portable.layers.convolution import (
    IConvolutionLayer,
    IDeconvolutionLayer,
)
from trt_portable.layers.detection import (
    INMSLayer,
)
from trt_portable.layers.gather import IGatherLayer
from trt_portable.layers.indexing import (
    INonZeroLayer,
    IOneHotLayer,
    IReverseSequenceLayer,
    IScatterLayer,
)
from trt_portable.layers.movement import (
    IConcatenationLayer,
    IShuffleLayer,
    ISqueezeLayer,
    IUnsqueezeLayer,
)
from trt_portable.layers.normalization import (
    ILRNLayer,
    INormalizationLayer,
    IScaleLayer,
)
from trt_portable.layers.plugin_layers import IPluginV3Layer
from trt_portable.layers.plugin_v2_layer import IPluginV2Layer
from trt_portable.layers.pointwise import (
    IActivationLayer,
    IElementWiseLayer,
    IParametricReLULayer,
    ISelectLayer,
    IUnaryLayer,
)
from trt_portable.layers.pooling import (
    IPaddingLayer,
    IPoolingLayer,
)
from trt_portable.layers.products import (
    IEinsumLayer,
    IMatrixMultiplyLayer,
)
from trt_portable.layers.quantization import (
    IDequantizeLayer,
    IDynamicQuantizeLayer,
    IQuantizeLayer,
)
from trt_portable.layers.reduction import (
    ICumulativeLayer,
    IRaggedSoftMaxLayer,
    IReduceLayer,
    ISoftMaxLayer,
    ITopKLayer,
)
from trt_portable.layers.resampling import (
    IGridSampleLayer,
    IResizeLayer,
)
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.layers.sources import (
    ICastLayer,
    IConstantLayer,
    IFillLayer,
    IIdentityLayer,
    IShapeLayer,
)
from trt_portable.layers.transformer import (
    IKVCacheUpdateLayer,
    IMoELayer,
    IRotaryEmbeddingLayer,
)
from trt_portable.memory import IHostMemory
from trt_portable.network.conditional import (
    IConditionLayer,
    IIfConditional,
    IIfConditionalBoundaryLayer,
    IIfConditionalInputLayer,
    IIfConditionalOutputLayer,
)
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.loop import (
    IIteratorLayer,
    ILoop,
    ILoopBoundaryLayer,
    ILoopOutputLayer,
    IRecurrenceLayer,
    ITripLimitLayer,
)
from trt_portable.network.network import INetworkDefinition
from trt_portable.onnx_parser.diagnostics import ParserError
from trt_portable.onnx_parser.parser import OnnxParser, get_nv_onnx_parser_version
from trt_portable.onnx_parser.refitter import OnnxParserRefitter
from trt_portable.optimization_profile import IOptimizationProfile
from trt_portable.plugin_interfaces.expressions import (
    DimsExprs,
    DynamicPluginTensorDesc,
    IDimensionExpr,
    IExprBuilder,
    PluginTensorDesc,
)
from trt_portable.plugin_interfaces.field import (
    FallbackString,
    NodeIndices,
    PluginField,
    PluginFieldCollection,
    PluginFieldCollection_,
)
from trt_portable.plugin_interfaces.plugin import (
    IPluginCapability,
    IPluginCreatorInterface,
    IPluginCreatorV3One,
    IPluginResource,
    IPluginResourceContext,
    IPluginV3,
    IPluginV3OneBuild,
    IPluginV3OneBuildV2,
    IPluginV3OneCore,
    IPluginV3OneRuntime,
)
from trt_portable.plugin_interfaces.plugin_v2 import (
    IPluginCreator,
    IPluginV2,
    IPluginV2DynamicExt,
    IPluginV2DynamicExtBase,
    IPluginV2Ext,
)
from trt_portable.plugin_interfaces.quick import (
    IPluginCreatorV3Quick,
    IPluginV3QuickAOTBuild,
    IPluginV3QuickBuild,
    IPluginV3QuickCore,
    IPluginV3QuickRuntime,
    ISymExpr,
    ISymExprs,
    KernelLaunchParams,
)
from trt_portable.plugin_interfaces.registry import (
    IPluginRegistry,
    get_builder_plugin_registry,
    get_plugin_registry,
    init_libnvinfer_plugins,
)
from trt_portable.pybind import common_enter, common_exit
from trt_portable.reporting import IErrorRecorder, ILogger, Logger
from trt_portable.runtime.engine import ICudaEngine
from trt_portable.runtime.execution_context import IExecutionContext
from trt_portable.runtime.inspector import EngineInspector
from trt_portable.runtime.observers import IDebugListener, IProfiler, Profiler
from trt_portable.runtime.refitter import Refitter
from trt_portable.runtime.runtime import Runtime
from trt_portable.runtime.runtime_config import IRuntimeConfig, ISerializationConfig
from trt_portable.weights import Weights

float32: Final = DataType.FLOAT
float16: Final = DataType.HALF
bfloat16: Final = DataType.BF16
int8: Final = DataType.INT8
int32: Final = DataType.INT32
int64: Final = DataType.INT64
int4: Final = DataType.INT4
bool: Final = DataType.BOOL
uint8: Final = DataType.UINT8
fp8: Final = DataType.FP8
fp4: Final = DataType.FP4
e8m0: Final = DataType.E8M0

__all__ = [
    "APILanguage",
    "ActivationType",
    "AllocatorFlag",
    "AttentionIOForm",
    "AttentionNormalizationOp",
    "BoundingBoxFormat",
    "Builder",
    "BuilderFlag",
    "CausalMaskKind",
    "CollectiveOperation",
    "CumulativeOperation",
    "DLAWorkspaceAllocationStrategy",
    "DataType",
    "DeviceType",
    "DimensionOperation",
    "Dims",
    "Dims2",
    "Dims3",
    "Dims4",
    "DimsExprs",
    "DimsHW",
    "DynamicPluginTensorDesc",
    "ElementWiseOperation",
    "EngineCapability",
    "EngineInspector",
    "EngineStat",
    "ErrorCode",
    "ErrorCodeTRT",
    "ExecutionContextAllocationStrategy",
    "FallbackString",
    "FillOperation",
    "GatherMode",
    "HardwareCompatibilityLevel",
    "IActivationLayer",
    "IAssertionLayer",
    "IAttention",
    "IAttentionBoundaryLayer",
    "IAttentionInputLayer",
    "IAttentionOutputLayer",
    "IBuilderConfig",
    "ICastLayer",
    "IConcatenationLayer",
    "IConditionLayer",
    "IConstantLayer",
    "IConvolutionLayer",
    "ICudaEngine",
    "ICumulativeLayer",
    "IDebugListener",
    "IDeconvolutionLayer",
    "IDequantizeLayer",
    "IDimensionExpr",
    "IDistCollectiveLayer",
    "IDynamicQuantizeLayer",
    "IEinsumLayer",
    "IElementWiseLayer",
    "IErrorRecorder",
    "IExecutionContext",
    "IExprBuilder",
    "IFillLayer",
    "IGatherLayer",
    "IGpuAllocator",
    "IGpuAsyncAllocator",
    "IGridSampleLayer",
    "IHostMemory",
    "IIdentityLayer",
    "IIfConditional",
    "IIfConditionalBoundaryLayer",
    "IIfConditionalInputLayer",
    "IIfConditionalOutputLayer",
    "IIteratorLayer",
    "IKVCacheUpdateLayer",
    "ILRNLayer",
    "ILayer",
    "ILogger",
    "ILoop",
    "ILoopBoundaryLayer",
    "ILoopOutputLayer",
    "IMatrixMultiplyLayer",
    "IMoELayer",
    "INMSLayer",
    "INetworkDefinition",
    "INonZeroLayer",
    "INormalizationLayer",
    "IOneHotLayer",
    "IOptimizationProfile",
    "IOutputAllocator",
    "IPaddingLayer",
    "IParametricReLULayer",
    "IPluginCapability",
    "IPluginCreator",
    "IPluginCreatorInterface",
    "IPluginCreatorV3One",
    "IPluginCreatorV3Quick",
    "IPluginRegistry",
    "IPluginResource",
    "IPluginResourceContext",
    "IPluginV2",
    "IPluginV2DynamicExt",
    "IPluginV2DynamicExtBase",
    "IPluginV2Ext",
    "IPluginV2Layer",
    "IPluginV3",
    "IPluginV3Layer",
    "IPluginV3OneBuild",
    "IPluginV3OneBuildV2",
    "IPluginV3OneCore",
    "IPluginV3OneRuntime",
    "IPluginV3QuickAOTBuild",
    "IPluginV3QuickBuild",
    "IPluginV3QuickCore",
    "IPluginV3QuickRuntime",
    "IPoolingLayer",
    "IProfiler",
    "IProgressMonitor",
    "IQuantizeLayer",
    "IRaggedSoftMaxLayer",
    "IRecurrenceLayer",
    "IReduceLayer",
    "IResizeLayer",
    "IReverseSequenceLayer",
    "IRotaryEmbeddingLayer",
    "IRuntimeConfig",
    "IScaleLayer",
    "IScatterLayer",
    "ISelectLayer",
    "ISerializationConfig",
    "IShapeLayer",
    "IShuffleLayer",
    "ISliceLayer",
    "ISoftMaxLayer",
    "ISqueezeLayer",
    "IStreamReaderV2",
    "IStreamWriter",
    "ISymExpr",
    "ISymExprs",
    "ITensor",
    "ITimingCache",
    "ITopKLayer",
    "ITripLimitLayer",
    "IUnaryLayer",
    "IUnsqueezeLayer",
    "IVersionedInterface",
    "InterfaceInfo",
    "InterpolationMode",
    "KVCacheMode",
    "KernelLaunchParams",
    "LayerInformationFormat",
    "LayerType",
    "Logger",
    "LoopOutput",
    "MatrixOperation",
    "MemoryPoolType",
    "MoEActType",
    "NetworkDefinitionCreationFlag",
    "NetworkError",
    "NodeIndices",
    "OnnxParser",
    "OnnxParserFlag",
    "OnnxParserRefitter",
    "PaddingMode",
    "ParserError",
    "Permutation",
    "PluginArgDataType",
    "PluginArgType",
    "PluginCapabilityType",
    "PluginCreatorVersion",
    "PluginField",
    "PluginFieldCollection",
    "PluginFieldCollection_",
    "PluginFieldType",
    "PluginTensorDesc",
    "PoolingType",
    "PortableError",
    "PreviewFeature",
    "Profiler",
    "ProfilingVerbosity",
    "QuickPluginCreationRequest",
    "ReduceOperation",
    "Refitter",
    "ResizeCoordinateTransformation",
    "ResizeRoundMode",
    "ResizeSelector",
    "Runtime",
    "RuntimePlatform",
    "SampleMode",
    "ScaleMode",
    "ScatterMode",
    "SeekPosition",
    "SerializationFlag",
    "TacticSource",
    "TempfileControlFlag",
    "TensorFormat",
    "TensorIOMode",
    "TensorLocation",
    "TensorRTPhase",
    "TilingOptimizationLevel",
    "TimingCacheKey",
    "TimingCacheValue",
    "TopKOperation",
    "TraceFailure",
    "TripLimit",
    "UnaryOperation",
    "Weights",
    "WeightsRole",
    "__version__",
    "bfloat16",
    "bool",
    "common_enter",
    "common_exit",
    "current_device",
    "device",
    "e8m0",
    "float16",
    "float32",
    "fp4",
    "fp8",
    "get_builder_plugin_registry",
    "get_nv_onnx_parser_version",
    "get_plugin_registry",
    "init_libnvinfer_plugins",
    "install_as_tensorrt",
    "int4",
    "int8",
    "int32",
    "int64",
    "nptype",
    "set_device",
    "set_strict",
    "strict",
    "trace_engine",
    "uint8",
    "volume",
]
