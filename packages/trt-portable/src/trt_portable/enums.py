"""The enumerations of the API, with the member names and values of TensorRT 11.4, or of 10.16 where that is chosen."""

from __future__ import annotations

from enum import Enum
from typing import Any

from trt_portable.api_version import ENUMERATIONS_OF_10, IS_TENSORRT_10


class PybindEnum(Enum):
    """An enumeration like those of TensorRT's bindings.

    Members convert with ``int()`` and serve as indices, but take no part in integer arithmetic and
    equal only members of their own class.
    """

    __hash__ = object.__hash__  # members are unique; hashing names costs a Python call per look-up

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


# by its name, not as a method: classes would mangle it; clients tell enumerations of the bindings by it
setattr(
    PybindEnum,
    "__entries",
    property(lambda member: {name: (each, None) for name, each in type(member).__members__.items()}),
)


class APILanguage(PybindEnum):
    """The language that implements a versioned interface."""

    CPP = 0
    PYTHON = 1


class DimensionOperation(PybindEnum):
    """Arithmetic on dimension expressions."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    SUB = 4
    EQUAL = 5
    LESS = 6
    FLOOR_DIV = 7
    CEIL_DIV = 8


class PluginArgDataType(PybindEnum):
    """The type of a scalar argument of a compiled plugin kernel."""

    INT8 = 0
    INT16 = 1
    INT32 = 2


class PluginArgType(PybindEnum):
    """The kind of an argument of a compiled plugin kernel."""

    INT = 0


class PluginCapabilityType(PybindEnum):
    """The three faces of a plugin."""

    CORE = 0
    BUILD = 1
    RUNTIME = 2


class PluginCreatorVersion(PybindEnum):
    """The version of a plugin creator."""

    V1 = 0
    V1_PYTHON = 64


class PluginFieldType(PybindEnum):
    """The element type of a plugin field."""

    FLOAT16 = 0
    FLOAT32 = 1
    FLOAT64 = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    CHAR = 6
    DIMS = 7
    UNKNOWN = 8
    BF16 = 9
    INT64 = 10
    FP8 = 11
    INT4 = 12
    FP4 = 13


class QuickPluginCreationRequest(PybindEnum):
    """Which implementation of a decorated plugin is asked for."""

    UNKNOWN = 0
    PREFER_JIT = 1
    PREFER_AOT = 2
    STRICT_JIT = 3
    STRICT_AOT = 4


class TensorRTPhase(PybindEnum):
    """Whether a plugin is made for a build or for running."""

    BUILD = 0
    RUNTIME = 1


class ErrorCode(PybindEnum):
    """What went wrong while reading an ONNX file; not to be confused with `ErrorCodeTRT`."""

    SUCCESS = 0
    INTERNAL_ERROR = 1
    MEM_ALLOC_FAILED = 2
    MODEL_DESERIALIZE_FAILED = 3
    INVALID_VALUE = 4
    INVALID_GRAPH = 5
    INVALID_NODE = 6
    UNSUPPORTED_GRAPH = 7
    UNSUPPORTED_NODE = 8
    UNSUPPORTED_NODE_ATTR = 9
    UNSUPPORTED_NODE_INPUT = 10
    UNSUPPORTED_NODE_DATATYPE = 11
    UNSUPPORTED_NODE_DYNAMIC = 12
    UNSUPPORTED_NODE_SHAPE = 13
    REFIT_FAILED = 14


class OnnxParserFlag(PybindEnum):
    """An option of the ONNX parser."""

    NATIVE_INSTANCENORM = 0
    ENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA = 1
    REPORT_CAPABILITY_DLA = 2
    ENABLE_PLUGIN_OVERRIDE = 3
    ADJUST_FOR_DLA = 4


class LayerType(PybindEnum):
    """The kind of a layer."""

    CONVOLUTION = 0
    CAST = 1
    ACTIVATION = 2
    POOLING = 3
    LRN = 4
    SCALE = 5
    SOFTMAX = 6
    DECONVOLUTION = 7
    CONCATENATION = 8
    ELEMENTWISE = 9
    PLUGIN = 10
    UNARY = 11
    PADDING = 12
    SHUFFLE = 13
    REDUCE = 14
    TOPK = 15
    GATHER = 16
    MATRIX_MULTIPLY = 17
    RAGGED_SOFTMAX = 18
    CONSTANT = 19
    IDENTITY = 20
    PLUGIN_V2 = 21
    SLICE = 22
    SHAPE = 23
    PARAMETRIC_RELU = 24
    RESIZE = 25
    TRIP_LIMIT = 26
    RECURRENCE = 27
    ITERATOR = 28
    LOOP_OUTPUT = 29
    SELECT = 30
    FILL = 31
    QUANTIZE = 32
    DEQUANTIZE = 33
    CONDITION = 34
    CONDITIONAL_INPUT = 35
    CONDITIONAL_OUTPUT = 36
    SCATTER = 37
    EINSUM = 38
    ASSERTION = 39
    ONE_HOT = 40
    NON_ZERO = 41
    GRID_SAMPLE = 42
    NMS = 43
    REVERSE_SEQUENCE = 44
    NORMALIZATION = 45
    PLUGIN_V3 = 46
    SQUEEZE = 47
    UNSQUEEZE = 48
    CUMULATIVE = 49
    DYNAMIC_QUANTIZE = 50
    ATTENTION_INPUT = 51
    ATTENTION_OUTPUT = 52
    ROTARY_EMBEDDING = 53
    KV_CACHE_UPDATE = 54
    MOE = 55
    DIST_COLLECTIVE = 56


class ActivationType(PybindEnum):
    """What an activation layer computes."""

    RELU = 0
    SIGMOID = 1
    TANH = 2
    LEAKY_RELU = 3
    ELU = 4
    SELU = 5
    SOFTSIGN = 6
    SOFTPLUS = 7
    CLIP = 8
    HARD_SIGMOID = 9
    SCALED_TANH = 10
    THRESHOLDED_RELU = 11
    GELU_ERF = 12
    GELU_TANH = 13


class UnaryOperation(PybindEnum):
    """What a unary layer computes."""

    EXP = 0
    LOG = 1
    SQRT = 2
    RECIP = 3
    ABS = 4
    NEG = 5
    SIN = 6
    COS = 7
    TAN = 8
    SINH = 9
    COSH = 10
    ASIN = 11
    ACOS = 12
    ATAN = 13
    ASINH = 14
    ACOSH = 15
    ATANH = 16
    CEIL = 17
    FLOOR = 18
    ERF = 19
    NOT = 20
    SIGN = 21
    ROUND = 22
    ISINF = 23
    ISNAN = 24


class ElementWiseOperation(PybindEnum):
    """What an element-wise layer computes of its two operands."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    SUB = 4
    DIV = 5
    POW = 6
    FLOOR_DIV = 7
    AND = 8
    OR = 9
    XOR = 10
    EQUAL = 11
    GREATER = 12
    LESS = 13


class ReduceOperation(PybindEnum):
    """What a reduction computes."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
    NONE = 5


class CumulativeOperation(PybindEnum):
    """What a cumulative layer accumulates with."""

    SUM = 0


class TopKOperation(PybindEnum):
    """Which end of the order a top-k layer keeps."""

    MAX = 0
    MIN = 1


class MatrixOperation(PybindEnum):
    """How an operand of a matrix product is read."""

    NONE = 0
    TRANSPOSE = 1
    VECTOR = 2


class PoolingType(PybindEnum):
    """What a pooling window computes."""

    MAX = 0
    AVERAGE = 1
    MAX_AVERAGE_BLEND = 2


class PaddingMode(PybindEnum):
    """How the padding and the output extent of a window are found."""

    EXPLICIT_ROUND_DOWN = 0
    EXPLICIT_ROUND_UP = 1
    SAME_UPPER = 2
    SAME_LOWER = 3


class ScaleMode(PybindEnum):
    """How many coefficients a scale layer has."""

    UNIFORM = 0
    CHANNEL = 1
    ELEMENTWISE = 2


class GatherMode(PybindEnum):
    """How the indices of a gather are read."""

    DEFAULT = 0
    ELEMENT = 1
    ND = 2


class ScatterMode(PybindEnum):
    """How the indices of a scatter are read."""

    ELEMENT = 0
    ND = 1


class SampleMode(PybindEnum):
    """What is read outside the bounds of a tensor."""

    STRICT_BOUNDS = 0
    WRAP = 1
    CLAMP = 2
    FILL = 3
    REFLECT = 4


class FillOperation(PybindEnum):
    """How a fill layer makes its values."""

    LINSPACE = 0
    RANDOM_UNIFORM = 1
    RANDOM_NORMAL = 2


class InterpolationMode(PybindEnum):
    """How values between samples are made."""

    NEAREST = 0
    LINEAR = 1
    CUBIC = 2


class ResizeCoordinateTransformation(PybindEnum):
    """How an output coordinate is mapped to the input."""

    ALIGN_CORNERS = 0
    ASYMMETRIC = 1
    HALF_PIXEL = 2


class ResizeSelector(PybindEnum):
    """How the coordinate of a single output pixel is found."""

    FORMULA = 0
    UPPER = 1


class ResizeRoundMode(PybindEnum):
    """How a nearest-neighbour coordinate is rounded."""

    HALF_UP = 0
    HALF_DOWN = 1
    FLOOR = 2
    CEIL = 3


class BoundingBoxFormat(PybindEnum):
    """How four numbers describe a box."""

    CORNER_PAIRS = 0
    CENTER_SIZES = 1


class LoopOutput(PybindEnum):
    """What a loop output makes of the values of its iterations."""

    LAST_VALUE = 0
    CONCATENATE = 1
    REVERSE = 2


class TripLimit(PybindEnum):
    """What ends a loop."""

    COUNT = 0
    WHILE = 1


class AttentionNormalizationOp(PybindEnum):
    """What turns attention scores into weights."""

    NONE = 0
    SOFTMAX = 1


class AttentionIOForm(PybindEnum):
    """How the sequences of an attention operand are laid out."""

    PADDED_BHND = 0
    PACKED_NHD = 1


class CausalMaskKind(PybindEnum):
    """Which corner of the score matrix a causal mask is anchored to."""

    NONE = 0
    UPPER_LEFT = 1
    LOWER_RIGHT = 2


class KVCacheMode(PybindEnum):
    """How a cache is addressed."""

    LINEAR = 0


class MoEActType(PybindEnum):
    """The activation inside an expert."""

    NONE = 0
    SILU = 1


class CollectiveOperation(PybindEnum):
    """What a collective layer does across ranks."""

    ALL_REDUCE = 0
    ALL_GATHER = 1
    BROADCAST = 2
    REDUCE = 3
    REDUCE_SCATTER = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7


class NetworkDefinitionCreationFlag(PybindEnum):
    """Options of a network; kept as bits ``1 << int(flag)``."""

    STRONGLY_TYPED = 0
    PREFER_JIT_PYTHON_PLUGINS = 1
    PREFER_AOT_PYTHON_PLUGINS = 2


class BuilderFlag(PybindEnum):
    """Options of a build; a configuration keeps them as bits ``1 << int(flag)``."""

    DEBUG = 2
    GPU_FALLBACK = 3
    REFIT = 4
    DISABLE_TIMING_CACHE = 5
    TF32 = 6
    SPARSE_WEIGHTS = 7
    SAFETY_SCOPE = 8
    DIRECT_IO = 11
    VERSION_COMPATIBLE = 12
    EXCLUDE_LEAN_RUNTIME = 13
    ERROR_ON_TIMING_CACHE_MISS = 15
    DISABLE_COMPILATION_CACHE = 17
    STRIP_PLAN = 18
    REFIT_IDENTICAL = 19
    WEIGHT_STREAMING = 20
    REFIT_INDIVIDUAL = 22
    STRICT_NANS = 23
    MONITOR_MEMORY = 24
    EDITABLE_TIMING_CACHE = 26
    DISTRIBUTIVE_INDEPENDENCE = 27


class EngineCapability(PybindEnum):
    """The restrictions that an engine is built under."""

    STANDARD = 0
    SAFETY = 1
    DLA_STANDALONE = 2


class HardwareCompatibilityLevel(PybindEnum):
    """Which devices, other than the one it was built on, may run an engine."""

    NONE = 0
    AMPERE_PLUS = 1
    SAME_COMPUTE_CAPABILITY = 2


class MemoryPoolType(PybindEnum):
    """The memory pools that a build may limit."""

    WORKSPACE = 0
    DLA_MANAGED_SRAM = 1
    DLA_LOCAL_DRAM = 2
    DLA_GLOBAL_DRAM = 3
    TACTIC_DRAM = 4
    TACTIC_SHARED_MEMORY = 5


class PreviewFeature(PybindEnum):
    """Features that are tried out before they become the default."""

    ALIASED_PLUGIN_IO_10_03 = 0
    RUNTIME_ACTIVATION_RESIZE_10_10 = 1


class ProfilingVerbosity(PybindEnum):
    """How much an engine tells of its layers."""

    LAYER_NAMES_ONLY = 0
    NONE = 1
    DETAILED = 2


class RuntimePlatform(PybindEnum):
    """The platform that will run an engine."""

    SAME_AS_BUILD = 0
    WINDOWS_AMD64 = 1


class TacticSource(PybindEnum):
    """Where a build may take tactics from."""

    EDGE_MASK_CONVOLUTIONS = 0
    JIT_CONVOLUTIONS = 1


class TilingOptimizationLevel(PybindEnum):
    """How hard a build looks for tilings."""

    NONE = 0
    FAST = 1
    MODERATE = 2
    FULL = 3


class EngineStat(PybindEnum):
    """Figures that an engine reports of itself."""

    TOTAL_WEIGHTS_SIZE = 0
    STRIPPED_WEIGHTS_SIZE = 1


class ExecutionContextAllocationStrategy(PybindEnum):
    """Who allocates the memory of a context, and when."""

    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class LayerInformationFormat(PybindEnum):
    """The form of an inspector report."""

    ONELINE = 0
    JSON = 1


class SerializationFlag(PybindEnum):
    """Options of the serialization of an engine; kept as bits ``1 << int(flag)``."""

    EXCLUDE_WEIGHTS = 0
    EXCLUDE_LEAN_RUNTIME = 1
    INCLUDE_REFIT = 2


class SeekPosition(PybindEnum):
    """What a stream offset counts from."""

    SET = 0
    CUR = 1
    END = 2


class TempfileControlFlag(PybindEnum):
    """Which temporary files a runtime may make."""

    ALLOW_IN_MEMORY_FILES = 0
    ALLOW_TEMPORARY_FILES = 1


class DLAWorkspaceAllocationStrategy(PybindEnum):
    """How DLA work memory is allocated."""

    DEFAULT = 0
    SHARED_STATIC = 1


class AllocatorFlag(PybindEnum):
    """Properties that an allocation asks for."""

    RESIZABLE = 0


class ErrorCodeTRT(PybindEnum):
    """The class of an error that is reported."""

    SUCCESS = 0
    UNSPECIFIED_ERROR = 1
    INTERNAL_ERROR = 2
    INVALID_ARGUMENT = 3
    INVALID_CONFIG = 4
    FAILED_ALLOCATION = 5
    FAILED_INITIALIZATION = 6
    FAILED_EXECUTION = 7
    FAILED_COMPUTATION = 8
    INVALID_STATE = 9
    UNSUPPORTED_STATE = 10


class TensorFormat(PybindEnum):
    """The memory layout of a tensor at the boundary of an engine."""

    LINEAR = 0
    CHW2 = 1
    HWC8 = 2
    CHW4 = 3
    CHW16 = 4
    CHW32 = 5
    DHWC8 = 6
    CDHW32 = 7
    HWC = 8
    DLA_LINEAR = 9
    DLA_HWC4 = 10
    HWC16 = 11
    DHWC = 12


class TensorIOMode(PybindEnum):
    """Whether a tensor is an input or an output."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(PybindEnum):
    """Where the memory of a tensor is."""

    DEVICE = 0
    HOST = 1


class DeviceType(PybindEnum):
    """The kind of device a layer runs on."""

    GPU = 0
    DLA = 1


class WeightsRole(PybindEnum):
    """The use that a layer makes of weights."""

    KERNEL = 0
    BIAS = 1
    SHIFT = 2
    SCALE = 3
    CONSTANT = 4
    ANY = 5


class DataType(PybindEnum):
    """The element type of a tensor or of weights."""

    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8
    INT4 = 9
    FP4 = 10
    E8M0 = 11

    @property
    def itemsize(self) -> float:
        """Bytes of one element; 0.5 for the types that pack two elements into a byte."""
        return _ITEM_SIZES.get(self, 1)


_ITEM_SIZES: dict[DataType, float] = {
    DataType.FLOAT: 4,
    DataType.HALF: 2,
    DataType.BF16: 2,
    DataType.INT32: 4,
    DataType.INT64: 8,
    DataType.INT4: 0.5,
    DataType.FP4: 0.5,
}

if IS_TENSORRT_10:  # before any other module reads them
    _made: Any = PybindEnum
    globals().update((name, _made(name, members, module=__name__)) for name, members in ENUMERATIONS_OF_10.items())
