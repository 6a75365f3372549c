"""`IBuilderConfig`: how to build an engine. Settings without a meaning here are kept and reported."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from trt_portable.builder.autotune.timing_cache import ITimingCache
from trt_portable.enums import (
    BuilderFlag,
    DeviceType,
    EngineCapability,
    ErrorCodeTRT,
    HardwareCompatibilityLevel,
    MemoryPoolType,
    PreviewFeature,
    ProfilingVerbosity,
    RuntimePlatform,
    TacticSource,
    TilingOptimizationLevel,
)
from trt_portable.optimization_profile import IOptimizationProfile
from trt_portable.pybind import (
    ContextManaged,
    Sealed,
    Setting,
    instance_of,
    one_of,
    optional_of,
    to_boolean,
    to_integer,
    to_text,
)
from trt_portable.reporting import Reporter, report_callback_failure

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer


class IProgressMonitor:
    """Interface of a progress display; subclass it, call ``IProgressMonitor.__init__``, define the methods."""

    def __init__(self) -> None:
        pass

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase begins; `parent_phase` is None for the outermost one."""
        raise NotImplementedError("a subclass of IProgressMonitor must define phase_start()")

    def step_complete(self, phase_name: str, step: int) -> bool:
        """A step is done; False cancels the build."""
        raise NotImplementedError("a subclass of IProgressMonitor must define step_complete()")

    def phase_finish(self, phase_name: str) -> None:
        """A phase ended, possibly before all of its steps were done."""
        raise NotImplementedError("a subclass of IProgressMonitor must define phase_finish()")


class BuildCancelled(Exception):
    """The progress monitor asked to stop."""


class Phase:
    """One phase of a build, as a context manager; nothing happens when there is no monitor.

    Args:
        monitor: The application's monitor, or None.
        name: Unique name of the phase within the build.
        parent: Name of the enclosing phase.
        num_steps: Number of `step` calls to expect.
    """

    def __init__(self, monitor: IProgressMonitor | None, name: str, parent: str | None, num_steps: int) -> None:
        self._monitor = monitor
        self._name = name
        self._parent = parent
        self._num_steps = num_steps
        self._done = 0

    def __enter__(self) -> Phase:
        if self._monitor is not None:
            try:
                self._monitor.phase_start(self._name, self._parent, self._num_steps)
            except Exception as error:
                report_callback_failure("phase_start()", error)
        return self

    def step(self) -> None:
        """Reports the next step as done.

        Raises:
            BuildCancelled: The monitor answered False, or raised.
        """
        if self._monitor is None:
            return
        try:
            proceed = self._monitor.step_complete(self._name, self._done)
        except Exception as error:
            report_callback_failure("step_complete()", error)
            proceed = False
        self._done += 1
        if not proceed:
            raise BuildCancelled(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._monitor is not None:
            try:
                self._monitor.phase_finish(self._name)
            except Exception as failure:
                report_callback_failure("phase_finish()", failure)


MAX_OPTIMIZATION_LEVEL: Final = 5
DEFAULT_OPTIMIZATION_LEVEL: Final = 3
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
# WORKSPACE and TACTIC_DRAM default to all of the device's memory, which is not asked for here.
_UNLIMITED: Final = (1 << 63) - 1
_DEFAULT_POOLS: Final = {
    MemoryPoolType.WORKSPACE: _UNLIMITED,
    MemoryPoolType.DLA_MANAGED_SRAM: _MIB,
    MemoryPoolType.DLA_LOCAL_DRAM: _GIB,
    MemoryPoolType.DLA_GLOBAL_DRAM: 512 * _MIB,
    MemoryPoolType.TACTIC_DRAM: _UNLIMITED,
    MemoryPoolType.TACTIC_SHARED_MEMORY: _GIB - 1,
}
_ALL_TACTIC_SOURCES: Final = sum(1 << int(source) for source in TacticSource)
_NO_DLA: Final = "this provider has no DLA"


class IBuilderConfig(ContextManaged, Sealed):
    """Settings of a build; made by `Builder.create_builder_config`."""

    DLA_core: int = -1
    """Kept; there is no DLA."""
    l2_limit_for_tiling: int = -1
    """Bytes of cache for tiling; kept."""
    profile_stream: int = 0
    """CUDA stream for timing; kept."""
    remote_auto_tuning_config: str = ""
    """Kept."""
    build_route: str = ""
    """Kept."""

    flags = Setting(
        to_integer, 1 << int(BuilderFlag.TF32), "Bit mask of ``1 << int(flag)``; `BuilderFlag.TF32` is set at first."
    )
    builder_optimization_level = Setting(
        lambda level: min(to_integer(level), MAX_OPTIMIZATION_LEVEL),
        DEFAULT_OPTIMIZATION_LEVEL,
        "0 to 5, 3 at first; greater values mean 5. At 0 no tactic is timed.",
        least=0,
    )
    avg_timing_iterations = Setting(to_integer, 1, "Runs over which a tactic's time is averaged.", least=1)
    max_num_tactics = Setting(
        to_integer, -1, "Most tactics to time per program; -1 leaves it to the builder.", least=-1
    )
    max_aux_streams = Setting(
        to_integer, 0, "Most auxiliary streams; engines of this provider use the main stream only.", least=0
    )
    profiling_verbosity = one_of(ProfilingVerbosity.LAYER_NAMES_ONLY, "How much the engine inspector tells.")
    engine_capability = one_of(EngineCapability.STANDARD, "Only STANDARD can be built.")
    hardware_compatibility_level = one_of(
        HardwareCompatibilityLevel.NONE, "Kept and reported; plans of this provider run on any device."
    )
    runtime_platform = one_of(RuntimePlatform.SAME_AS_BUILD, "Kept; plans of this provider run on any platform.")
    tiling_optimization_level = one_of(TilingOptimizationLevel.NONE, "Kept; tiling is left to PyTorch's kernels.")
    default_device_type = one_of(DeviceType.GPU, "Device of layers for which none was set; only GPU can be built.")
    progress_monitor = optional_of(IProgressMonitor, "Told about the progress of builds; may cancel them.")

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.reset()

    def reset(self) -> None:
        """Returns every setting to its default and forgets the profiles."""
        reporter = self._reporter
        self.__dict__.clear()
        self._reporter = reporter
        self._pools = dict(_DEFAULT_POOLS)
        self._profiles: list[IOptimizationProfile] = []
        self._timing_cache: ITimingCache | None = None
        self._device_types: dict[str, DeviceType] = {}
        self._preview: dict[PreviewFeature, bool] = {}
        self._tactic_sources = _ALL_TACTIC_SOURCES
        self._plugins_to_serialize: list[str] = []

    # Flags -----------------------------------------------------------------------------------------

    def set_flag(self, flag: BuilderFlag) -> None:
        """Sets one flag."""
        self.flags |= 1 << int(instance_of(BuilderFlag, flag, "flag"))

    def clear_flag(self, flag: BuilderFlag) -> None:
        """Clears one flag."""
        self.flags &= ~(1 << int(instance_of(BuilderFlag, flag, "flag")))

    def get_flag(self, flag: BuilderFlag) -> bool:
        """Whether a flag is set."""
        return bool(self.flags >> int(instance_of(BuilderFlag, flag, "flag")) & 1)

    @property
    def plugins_to_serialize(self) -> list[str]:
        """Paths of plugin libraries; kept."""
        return self._plugins_to_serialize

    @plugins_to_serialize.setter
    def plugins_to_serialize(self, paths: list[str]) -> None:
        if isinstance(paths, str):
            raise TypeError("plugins_to_serialize takes a list of paths, not one")
        self._plugins_to_serialize = [to_text(path) for path in paths]

    @property
    def all_build_routes(self) -> str:
        """The routes a build can take, as JSON: there is one."""
        return '{"routes": ["default"]}'

    # Devices ---------------------------------------------------------------------------------------

    def set_device_type(self, layer: ILayer, device_type: DeviceType) -> None:
        """Chooses a layer's device; DLA is refused when the engine is built."""
        self._device_types[self._name_of(layer)] = instance_of(DeviceType, device_type, "device_type")

    def get_device_type(self, layer: ILayer) -> DeviceType:
        """A layer's device."""
        return self._device_types.get(self._name_of(layer), self.default_device_type)

    def is_device_type_set(self, layer: ILayer) -> bool:
        """Whether a device was chosen for the layer itself."""
        return self._name_of(layer) in self._device_types

    def reset_device_type(self, layer: ILayer) -> None:
        """Returns a layer to the default device."""
        self._device_types.pop(self._name_of(layer), None)

    def can_run_on_DLA(self, layer: ILayer) -> bool:
        """False: there is no DLA."""
        self._name_of(layer)
        return False

    @staticmethod
    def _name_of(layer: ILayer) -> str:
        from trt_portable.network.layer import ILayer

        return instance_of(ILayer, layer, "layer").name

    # Memory pools ----------------------------------------------------------------------------------

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        """Limits a memory pool, in bytes. An unacceptable size is reported and changes nothing."""
        kind, size = instance_of(MemoryPoolType, pool, "pool"), to_integer(pool_size)
        if size < 0:
            self._invalid(f"memory pool {kind.name}", f"size must not be negative, got {size}")
        elif kind is MemoryPoolType.DLA_MANAGED_SRAM and (size < 4 * _KIB or size & (size - 1)):
            self._invalid(f"memory pool {kind.name}", f"size must be a power of two >= 4 KiB, not {size} bytes")
        elif kind is MemoryPoolType.TACTIC_SHARED_MEMORY and size >= _GIB:
            self._reporter.error(
                f"memory pool {kind.name}",
                f"size must be below 1 GiB, not {size} bytes",
                ErrorCodeTRT.UNSUPPORTED_STATE,
            )
        else:
            self._pools[kind] = size

    def get_memory_pool_limit(self, pool: MemoryPoolType) -> int:
        """A pool's limit in bytes."""
        return self._pools[instance_of(MemoryPoolType, pool, "pool")]

    # Tactics, previews -----------------------------------------------------------------------------

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        """Chooses tactic sources by mask; False when the mask names an unknown one."""
        sources = to_integer(tactic_sources)
        if sources & ~_ALL_TACTIC_SOURCES:
            self._invalid("tactic_sources", f"mask {sources:#x} names unknown sources")
            return False
        self._tactic_sources = sources
        return True

    def get_tactic_sources(self) -> int:
        """Mask of tactic sources."""
        return self._tactic_sources

    def set_preview_feature(self, feature: PreviewFeature, enable: bool) -> None:
        """Turns a preview feature on or off; kept."""
        self._preview[instance_of(PreviewFeature, feature, "feature")] = to_boolean(enable)

    def get_preview_feature(self, feature: PreviewFeature) -> bool:
        """Whether a preview feature is on."""
        return self._preview.get(instance_of(PreviewFeature, feature, "feature"), False)

    # Timing cache, progress ------------------------------------------------------------------------

    def create_timing_cache(self, serialized_timing_cache: Any) -> ITimingCache | None:
        """A cache from bytes, an empty one from ``b""``; None and a report when they are no cache."""
        data = bytes(memoryview(serialized_timing_cache))  # a TypeError names what is not bytes-like
        try:
            return ITimingCache._deserialize(data)
        except (ValueError, KeyError, TypeError) as error:
            self._invalid("timing cache", str(error))
            return None

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        """Attaches a cache; False when its timings stem from elsewhere and that is not ignored.

        Raises:
            TypeError: It is no `ITimingCache`.
        """
        instance_of(ITimingCache, cache, "cache")
        if not to_boolean(ignore_mismatch) and not cache.matches():
            self._invalid("timing cache", "made with another PyTorch or on another processor")
            return False
        self._timing_cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        """The attached cache, or None."""
        return self._timing_cache

    # Profiles --------------------------------------------------------------------------------------

    @property
    def num_optimization_profiles(self) -> int:
        """Profiles added so far."""
        return len(self._profiles)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        """Adds a profile.

        Returns:
            Its index, or -1 when it is invalid.

        Raises:
            TypeError: It is no `IOptimizationProfile`.
        """
        instance_of(IOptimizationProfile, profile, "profile")
        if not profile:
            self._invalid("optimization profile", "is not valid")
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    # What a build asks -----------------------------------------------------------------------------

    def _refusal(self) -> str | None:
        """Why nothing can be built with these settings, or None."""
        if self.engine_capability is not EngineCapability.STANDARD:
            return f"engine capability {self.engine_capability.name} needs NVIDIA hardware"
        on_dla = [name for name, kind in self._device_types.items() if kind is DeviceType.DLA]
        if self.default_device_type is DeviceType.DLA:
            return f"default_device_type is DLA, but {_NO_DLA}"
        if on_dla:
            return f"layer {on_dla[0]!r} was put on DLA, but {_NO_DLA}"
        whole = self.get_flag(BuilderFlag.REFIT) or self.get_flag(BuilderFlag.REFIT_IDENTICAL)
        if self.get_flag(BuilderFlag.REFIT_INDIVIDUAL) and whole:
            return "REFIT_INDIVIDUAL excludes REFIT and REFIT_IDENTICAL"
        refits = whole or self.get_flag(BuilderFlag.REFIT_INDIVIDUAL)
        if refits and len(self._profiles) > 1:
            return f"an engine for refitting has at most one optimization profile, not {len(self._profiles)}"
        return None

    def _invalid(self, subject: str, rule: str) -> None:
        self._reporter.error(subject, rule, ErrorCodeTRT.INVALID_ARGUMENT)
