"""`IExecutionContext`: one user of an engine, with its own shapes, addresses and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from trt_portable.allocators import IGpuAllocator, IOutputAllocator
from trt_portable.arguments import instance_of, to_boolean, to_integer, to_integers, to_text
from trt_portable.context_managers import ContextManaged
from trt_portable.dims import Dims
from trt_portable.enums import ErrorCodeTRT, ExecutionContextAllocationStrategy, ProfilingVerbosity
from trt_portable.error_recorder import RecordsErrors, Reporter
from trt_portable.memory import CUDA_ALIGNMENT
from trt_portable.runtime.context_shapes import ContextShapes
from trt_portable.runtime.execution import Execution
from trt_portable.runtime.observers import DebugTensors, IDebugListener, IProfiler, LayerTimes
from trt_portable.sealed import Sealed

if TYPE_CHECKING:
    from trt_portable.runtime.engine import ICudaEngine
    from trt_portable.runtime.engine_state import EngineState
    from trt_portable.runtime.runtime_config import IRuntimeConfig

_DETAIL: Final = (ProfilingVerbosity.NONE, ProfilingVerbosity.LAYER_NAMES_ONLY, ProfilingVerbosity.DETAILED)


class IExecutionContext(RecordsErrors, ContextManaged, Sealed):
    """Runs an engine; made by `ICudaEngine.create_execution_context`. One thread at a time.

    Any number of contexts may use the same engine, and the same profile, at once. The interface is TensorRT's; the work
    is done by `ContextShapes` and `Execution`. Intermediate values live in memory of PyTorch's allocator, so auxiliary
    streams, user-managed memory and allocators are kept and reported, and not used.
    """

    name: str = ""
    """Free text that tells contexts apart."""
    persistent_cache_limit: int = 0
    """Bytes of persistent cache; kept."""

    def __init__(
        self,
        engine: ICudaEngine,
        state: EngineState,
        strategy: ExecutionContextAllocationStrategy,
        config: IRuntimeConfig,
        reporter: Reporter,
    ) -> None:
        self._engine = engine
        self._strategy = strategy
        self._config = config
        self._reporter = reporter
        self._times = LayerTimes()
        self._debug = DebugTensors(state.info.debug_tensors)
        self._shapes = ContextShapes(state, reporter)
        self._execution = Execution(state, self._shapes, self._times, self._debug, reporter)
        self._device_memory = (0, 0)
        is_user_managed = strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        self._execution.lacks_memory = is_user_managed and engine.device_memory_size_v2 > 0
        self._nvtx_verbosity = self._most_verbose = state.info.verbosity
        self._temporary_allocator: IGpuAllocator | None = None
        self._aux_streams: tuple[int, ...] = ()
        self._communicator: object = None

    @property
    def engine(self) -> ICudaEngine:
        """The engine this context runs."""
        return self._engine

    def get_runtime_config(self) -> IRuntimeConfig:
        """The configuration that the context was created with."""
        return self._config

    # Profiles and shapes ---------------------------------------------------------------------------

    @property
    def active_optimization_profile(self) -> int:
        """Index of the profile in use."""
        return self._shapes.profile

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """Switches to another profile; input shapes must be set again.

        Raises:
            RuntimeError: There is no such profile.
        """
        to_integer(stream_handle)
        self._shapes.select_profile(to_integer(profile_index))
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        """Sets the extents of an input.

        Returns:
            False, with a report, for an unknown name, an output, or extents that the network or the
            profile does not allow.

        Raises:
            RuntimeError: More than 8 extents.
        """
        return self._shapes.set_input_shape(name, shape)

    @property
    def all_binding_shapes_specified(self) -> bool:
        """Whether every dynamic input has a shape."""
        return self._shapes.are_complete

    def infer_shapes(self) -> list[str]:
        """Computes output shapes from input shapes and host inputs, and writes the host outputs.

        Returns:
            Names of inputs that lack a shape or, on the host, an address; empty when all is known.

        Raises:
            RuntimeError: The layers do not accept these shapes, or numbers leave the profile.
        """
        return self._shapes.infer()

    def get_tensor_shape(self, name: str) -> Dims:
        """Extents as far as they are known, -1 for the others; invalid dims for an unknown name."""
        return self._shapes.shape_of(name)

    def get_tensor_strides(self, name: str) -> Dims:
        """Distance between neighbours along each axis, in elements, or in vectors where the format has them."""
        return self._shapes.strides_of(name)

    def get_max_output_size(self, name: str) -> int:
        """Upper bound, in bytes, of an output for the present shapes; -1 when there is none."""
        return self._shapes.greatest_bytes_of(name)

    def update_device_memory_size_for_shapes(self) -> int:
        """Bytes of intermediate values for the present shapes; 0 when inputs are not specified."""
        return self._shapes.peak_bytes()

    # Addresses -------------------------------------------------------------------------------------

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Binds memory to an input or output; 0 unbinds it.

        CUDA memory is aligned to 256 bytes. Memory of the host needs no alignment beyond its elements'.

        Returns:
            False, with a report, for an unknown name or a misaligned address.
        """
        return self._execution.bind(name, memory)

    def get_tensor_address(self, name: str) -> int:
        """The bound address, 0 when there is none."""
        binding = self._shapes.by_name.get(to_text(name))
        return 0 if binding is None else binding.address

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator | None) -> bool:
        """Sets what provides an output's memory; None returns to the bound address.

        Raises:
            TypeError: It is no `IOutputAllocator`.
        """
        if output_allocator is not None:
            instance_of(IOutputAllocator, output_allocator, "output_allocator")
        binding = self._shapes.by_name.get(to_text(name))
        if binding is None or binding.tensor.is_input:
            self._reporter.error("set_output_allocator", f"the engine has no output named {name!r}")
            return False
        if output_allocator is None:
            self._execution.allocators.pop(name, None)
        else:
            self._execution.allocators[name] = output_allocator
        self._shapes.forget()
        return True

    def get_output_allocator(self, name: str) -> IOutputAllocator | None:
        """The allocator of an output, or None."""
        return self._execution.allocators.get(to_text(name))

    # Execution -------------------------------------------------------------------------------------

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Runs the engine on the bound memory.

        Args:
            stream_handle: CUDA stream. Engines on the CPU ignore it and are done when the call returns.

        Returns:
            False, with a report, when shapes or addresses are missing or a layer fails.
        """
        return self._execution.run(stream_handle)

    def execute_v2(self, bindings: Sequence[int]) -> bool:
        """Runs and waits, on addresses in the order of the engine's tensors."""
        return self._execution.run_and_wait(to_integers(bindings))

    @property
    def debug_sync(self) -> bool:
        """Whether each run waits until the device is done."""
        return self._execution.debug_sync

    @debug_sync.setter
    def debug_sync(self, flag: bool) -> None:
        self._execution.debug_sync = to_boolean(flag)

    def set_input_consumed_event(self, event: int) -> bool:
        """Sets a CUDA event that is recorded when the inputs may be overwritten; 0 clears it."""
        self._execution.input_consumed_event = to_integer(event)
        return True

    def get_input_consumed_event(self) -> int:
        """The event, 0 when there is none."""
        return self._execution.input_consumed_event

    # Profiling -------------------------------------------------------------------------------------

    @property
    def profiler(self) -> IProfiler | None:
        """Receives the time of each layer; while it is set, every run waits for each layer."""
        return self._times.profiler

    @profiler.setter
    def profiler(self, profiler: IProfiler | None) -> None:
        if profiler is not None and not isinstance(profiler, IProfiler):
            raise TypeError(f"profiler must be IProfiler, not {type(profiler).__name__}")
        self._times.profiler = profiler

    @property
    def enqueue_emits_profile(self) -> bool:
        """Whether a run reports to the profiler itself, or `report_to_profiler` does later."""
        return self._times.are_reported_at_once

    @enqueue_emits_profile.setter
    def enqueue_emits_profile(self, flag: bool) -> None:
        self._times.are_reported_at_once = to_boolean(flag)

    def report_to_profiler(self) -> bool:
        """Reports the times of the last run; False when there is no profiler or no run."""
        if self._times.report():
            return True
        self._reporter.error("report_to_profiler", "no profiler, or no run", ErrorCodeTRT.INVALID_STATE)
        return False

    @property
    def nvtx_verbosity(self) -> ProfilingVerbosity:
        """Detail of profiling ranges; at most the engine's."""
        return self._nvtx_verbosity

    @nvtx_verbosity.setter
    def nvtx_verbosity(self, verbosity: ProfilingVerbosity) -> None:
        if not isinstance(verbosity, ProfilingVerbosity):
            raise TypeError(f"nvtx_verbosity must be ProfilingVerbosity, not {type(verbosity)}")
        if _DETAIL.index(verbosity) <= _DETAIL.index(self._most_verbose):
            self._nvtx_verbosity = verbosity

    # Debug tensors ---------------------------------------------------------------------------------

    def set_debug_listener(self, listener: IDebugListener | None) -> bool:
        """Sets who sees the debug tensors that are turned on.

        Raises:
            TypeError: It is no `IDebugListener`.
        """
        if listener is not None and not isinstance(listener, IDebugListener):
            raise TypeError(f"listener must be IDebugListener, not {type(listener).__name__}")
        self._debug.listener = listener
        return True

    def get_debug_listener(self) -> IDebugListener | None:
        """The debug listener, or None."""
        return self._debug.listener

    def set_tensor_debug_state(self, name: str, flag: bool) -> bool:
        """Turns one debug tensor on or off; False when the network did not mark it."""
        if not self._debug.set_state(to_text(name), to_boolean(flag)):
            self._reporter.error("set_tensor_debug_state", f"{name!r} is not a debug tensor")
            return False
        return True

    def set_all_tensors_debug_state(self, flag: bool) -> bool:
        """Turns all debug tensors on or off."""
        self._debug.set_all(to_boolean(flag))
        return True

    def get_debug_state(self, name: str) -> bool:
        """Whether a debug tensor is turned on."""
        return self._debug.state(to_text(name))

    @property
    def unfused_tensors_debug_state(self) -> bool:
        """Whether all other tensors are shown to the debug listener as well."""
        return self._debug.unfused_state

    @unfused_tensors_debug_state.setter
    def unfused_tensors_debug_state(self, flag: bool) -> None:
        self._debug.unfused_state = to_boolean(flag)

    # What is kept and reported ---------------------------------------------------------------------

    def set_device_memory(self, memory: int, size: int) -> None:
        """Accepts memory for intermediate values; only for contexts with user-managed memory."""
        memory, size = to_integer(memory), to_integer(size)
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
        self._provide(memory, size)

    @property
    def device_memory(self) -> int:
        """Address of user-managed memory. TensorRT's property can only be written."""
        return self._device_memory[0]

    @device_memory.setter
    def device_memory(self, memory: int) -> None:
        self._provide(to_integer(memory), self._device_memory[1])

    def _provide(self, memory: int, size: int) -> None:
        self._device_memory = (memory, size)
        self._execution.lacks_memory = False

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
        self._aux_streams = tuple(to_integers(aux_streams))

    def set_communicator(self, communicator: Any) -> bool:
        """Keeps a communicator; engines with collectives are refused when they are built."""
        self._communicator = communicator
        return True
