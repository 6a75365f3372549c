"""Options and states of networks, builds, engines and contexts."""

from __future__ import annotations

from trt_portable.enums.base import PybindEnum


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
