"""The settings of an execution context that do not change what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trt_portable.allocators import IGpuAllocator
from trt_portable.context_managers import ContextManaged
from trt_portable.enums import (
    ErrorCodeTRT,
    ExecutionContextAllocationStrategy,
    ProfilingVerbosity,
)
from trt_portable.error_recorder import RecordsErrors, Reporter
from trt_portable.logger import report_callback_failure
from trt_portable.memory import CUDA_ALIGNMENT
from trt_portable.runtime.observers import DebugTensors, IDebugListener, IProfiler
from trt_portable.sealed import Sealed

if TYPE_CHECKING:
    from trt_portable.runtime.engine import ICudaEngine
    from trt_portable.runtime.engine_state import EngineState


class ContextSettings(RecordsErrors, ContextManaged, Sealed):
    """Names, callbacks and memory settings of a context.

    Intermediate values live in memory of PyTorch's allocator, so auxiliary streams, user-managed
    memory and allocators are kept and reported, and not used.
    """

    name: str = ""
    """Free text that tells contexts apart."""
    debug_sync: bool = False
    """Whether each run waits until the device is done."""
    enqueue_emits_profile: bool = True
    """Whether a run reports to the profiler itself, or `report_to_profiler` does later."""
    persistent_cache_limit: int = 0
    """Bytes of persistent cache; kept."""

    def __init__(
        self,
        engine: ICudaEngine,
        state: EngineState,
        strategy: ExecutionContextAllocationStrategy,
        reporter: Reporter,
    ) -> None:
        self._engine = engine
        self._state = state
        self._strategy = strategy
        self._reporter = reporter
        self._debug = DebugTensors(state.info.debug_tensors)
        self._profiler: IProfiler | None = None
        self._layer_times: list[tuple[str, float]] = []
        self._input_consumed_event = 0
        self._device_memory = (0, 0)
        self._nvtx_verbosity = state.info.verbosity
        self._temporary_allocator: IGpuAllocator | None = None
        self._aux_streams: tuple[int, ...] = ()
        self._communicator: object = None

    @property
    def engine(self) -> ICudaEngine:
        """The engine this context runs."""
        return self._engine

    @property
    def nvtx_verbosity(self) -> ProfilingVerbosity:
        """Detail of profiling ranges; at most the engine's."""
        return self._nvtx_verbosity

    @nvtx_verbosity.setter
    def nvtx_verbosity(self, verbosity: ProfilingVerbosity) -> None:
        if not isinstance(verbosity, ProfilingVerbosity):
            raise TypeError(f"nvtx_verbosity must be ProfilingVerbosity, not {type(verbosity)}")
        detail = (
            ProfilingVerbosity.NONE,
            ProfilingVerbosity.LAYER_NAMES_ONLY,
            ProfilingVerbosity.DETAILED,
        )
        if detail.index(verbosity) <= detail.index(self._state.info.verbosity):
            self._nvtx_verbosity = verbosity

    # Profiling -------------------------------------------------------------------------------------

    @property
    def profiler(self) -> IProfiler | None:
        """Receives the time of each layer; while it is set, every run waits for each layer."""
        return self._profiler

    @profiler.setter
    def profiler(self, profiler: IProfiler | None) -> None:
        if profiler is not None and not isinstance(profiler, IProfiler):
            raise TypeError(f"profiler must be IProfiler, not {type(profiler).__name__}")
        self._profiler = profiler

    def report_to_profiler(self) -> bool:
        """Reports the times of the last run; False when there is no profiler or no run."""
        if self._profiler is None or not self._layer_times:
            self._reporter.error("report_to_profiler", "no profiler, or no run", ErrorCodeTRT.INVALID_STATE)
            return False
        for name, milliseconds in self._layer_times:
            try:
                self._profiler.report_layer_time(name, milliseconds)
            except Exception as error:
                report_callback_failure("report_layer_time()", error)
        self._layer_times = []
        return True

    # Debug tensors ---------------------------------------------------------------------------------

    def set_debug_listener(self, listener: IDebugListener | None) -> bool:
        """Sets who sees the debug tensors that are turned on."""
        if listener is not None and not isinstance(listener, IDebugListener):
            raise TypeError(f"listener must be IDebugListener, not {type(listener).__name__}")
        self._debug.listener = listener
        return True

    def get_debug_listener(self) -> IDebugListener | None:
        """The debug listener, or None."""
        return self._debug.listener

    def set_tensor_debug_state(self, name: str, flag: bool) -> bool:
        """Turns one debug tensor on or off; False when the network did not mark it."""
        if not self._debug.set_state(name, bool(flag)):
            self._reporter.error("set_tensor_debug_state", f"{name!r} is not a debug tensor")
            return False
        return True

    def set_all_tensors_debug_state(self, flag: bool) -> bool:
        """Turns all debug tensors on or off."""
        self._debug.set_all(bool(flag))
        return True

    def get_debug_state(self, name: str) -> bool:
        """Whether a debug tensor is turned on."""
        return self._debug.state(name)

    @property
    def unfused_tensors_debug_state(self) -> bool:
        """Whether all other tensors are shown to the debug listener as well."""
        return self._debug.unfused_state

    @unfused_tensors_debug_state.setter
    def unfused_tensors_debug_state(self, flag: bool) -> None:
        self._debug.unfused_state = flag

    # Memory, streams -------------------------------------------------------------------------------

    def set_device_memory(self, memory: int, size: int) -> None:
        """Accepts memory for intermediate values; only for contexts with user-managed memory."""
        if self._strategy is not ExecutionContextAllocationStrategy.USER_MANAGED:
            self._reporter.error(
                "set_device_memory",
                "the context was not created with user-managed memory",
                ErrorCodeTRT.INVALID_STATE,
            )
            return
        needed = self._engine.device_memory_size_v2
        if memory % CUDA_ALIGNMENT or size < needed:
            self._reporter.error(
                "set_device_memory",
                f"needs {needed} bytes aligned to {CUDA_ALIGNMENT}, got {size} at {memory:#x}",
            )
            return
        self._device_memory = (int(memory), int(size))

    @property
    def device_memory(self) -> int:
        """Address of user-managed memory. TensorRT's property can only be written."""
        return self._device_memory[0]

    @device_memory.setter
    def device_memory(self, memory: int) -> None:
        self._device_memory = (int(memory), self._device_memory[1])

    @property
    def temporary_allocator(self) -> IGpuAllocator | None:
        """Kept and reported."""
        return self._temporary_allocator

    @temporary_allocator.setter
    def temporary_allocator(self, allocator: IGpuAllocator | None) -> None:
        if allocator is not None and not isinstance(allocator, IGpuAllocator):
            raise TypeError(f"temporary_allocator must be IGpuAllocator, not {type(allocator)}")
        self._temporary_allocator = allocator

    def set_aux_streams(self, aux_streams: Sequence[int]) -> None:
        """Offers auxiliary streams; kept, since everything runs on the main stream."""
        self._aux_streams = tuple(int(stream) for stream in aux_streams)

    def set_input_consumed_event(self, event: int) -> bool:
        """Sets a CUDA event that is recorded when the inputs may be overwritten; 0 clears it."""
        self._input_consumed_event = int(event)
        return True

    def get_input_consumed_event(self) -> int:
        """The event, 0 when there is none."""
        return self._input_consumed_event

    def set_communicator(self, communicator: Any) -> bool:
        """Keeps a communicator; engines with collectives are refused when they are built."""
        self._communicator = communicator
        return True
