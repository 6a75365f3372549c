"""Layer kinds and the options of layers."""

from __future__ import annotations

from trt_portable.enums.base import PybindEnum


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
