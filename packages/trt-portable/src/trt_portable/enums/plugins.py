"""Options of plugins."""

from __future__ import annotations

from trt_portable.enums.base import PybindEnum


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
