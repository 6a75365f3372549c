"""`Runtime`, which turns plans into engines, and `ICudaEngine`, a plan on a device."""

from __future__ import annotations

import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, overload

import torch

from trt_core.device import without_autocast
from trt_core.limits import CallLimits
from trt_core.process_groups import Collective
from trt_portable.application_interfaces import IStreamReaderV2, read_all
from trt_portable.device_choice import current_device
from trt_portable.enums import (
    DLAWorkspaceAllocationStrategy,
    EngineStat,
    ErrorCodeTRT,
    ExecutionContextAllocationStrategy,
    SerializationFlag,
    TempfileControlFlag,
)
from trt_portable.errors import PortableError, is_out_of_memory
from trt_portable.execution.bounded_runs import RunBounds
from trt_portable.formats import LAYOUTS
from trt_portable.host_settings import HostSettings
from trt_portable.internals import below_autograd, storage_use_count
from trt_portable.layers.collective import collectives_of
from trt_portable.memory import IHostMemory
from trt_portable.plan.engine_info import write_engine
from trt_portable.plan.plan_file import Plan, read_plan, reading
from trt_portable.pybind import Sealed, instance_of, one_of, to_integer, to_text
from trt_portable.reporting import ILogger, Reporter
from trt_portable.runtime.engine_queries import EngineQueries
from trt_portable.runtime.engine_state import EngineState
from trt_portable.runtime.execution_context import IExecutionContext, IRuntimeConfig
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.runtime.inspector import EngineInspector


class ICudaEngine(EngineQueries):
    """A loaded engine; made by `Runtime.deserialize_cuda_engine` or `Builder.build_engine_with_config`.

    Queries and contexts are safe to use from several threads, one context per thread.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        reporter: Reporter,
        *,
        host_code_allowed: bool = False,
        bounds: RunBounds | None = None,
    ) -> None:
        self._state = state = EngineState(plan, device, reporter, host_code_allowed=host_code_allowed, bounds=bounds)
        super().__init__(state.info, len(state.structure["layers"]), reporter)
        self._device_memory_sizes: dict[int, int] = {}
        self._contexts: weakref.WeakSet[IExecutionContext] = weakref.WeakSet()
        self._streaming_budget = self.streamable_weights_size
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    # Memory ----------------------------------------------------------------------------------------

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        """Bytes of intermediate values at the largest shapes of a profile, and of weights that come and go."""
        profile_index = to_integer(profile_index)
        if not self._has_profile(profile_index):
            return 0
        size = self._device_memory_sizes.get(profile_index)
        if size is None:
            size = self._device_memory_sizes[profile_index] = self._state.peak_bytes(profile_index)
        return size and size + self.weight_streaming_scratch_memory_size

    @property
    def streamable_weights_size(self) -> int:
        """Bytes of weights that could be streamed; 0 unless built for weight streaming."""
        streaming = self._state.streaming
        return 0 if streaming is None else streaming.streamable_bytes

    @property
    def weight_streaming_budget_v2(self) -> int:
        """Bytes of streamable weights that stay on the device; the others come there while the engine runs.

        On the CPU it is kept and reported: weights are read where the plan holds them.
        """
        return self._streaming_budget

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, budget: int) -> None:
        budget = to_integer(budget)
        if self._contexts or not self._info.weight_streaming or budget < 0:
            self._reporter.error(
                "weight_streaming_budget_v2",
                "needs an engine built with WEIGHT_STREAMING, without contexts, and a budget >= 0",
                ErrorCodeTRT.INVALID_STATE,
            )
            return
        self._streaming_budget = min(budget, self.streamable_weights_size)

    @property
    def weight_streaming_scratch_memory_size(self) -> int:
        """Bytes on the device for weights that are streamed: what one layer reads, and what the next does."""
        streaming = self._state.streaming
        if streaming is None or self._state.home == self._state.device:
            return 0
        return streaming.scratch_bytes(self._streaming_budget)

    def get_weight_streaming_automatic_budget(self) -> int:
        """Bytes of streamable weights for which the device has memory now, beside what a run needs."""
        streaming = self._state.streaming
        if streaming is None or self._state.home == self._state.device:
            return self.streamable_weights_size
        return streaming.automatic_budget(max(self._state.peak_bytes(at) for at in self._profile_indices()))

    def get_engine_stat(self, stat: EngineStat = EngineStat.TOTAL_WEIGHTS_SIZE) -> int:
        """Size of all weights, or of those that the plan left out (-1 if it left out none)."""
        if instance_of(EngineStat, stat, "stat") is EngineStat.TOTAL_WEIGHTS_SIZE:
            return self._state.weights.bytes_of()
        return self._state.weights.bytes_of(self._info.stripped) if self._info.stripped else -1

    # Children --------------------------------------------------------------------------------------

    def create_runtime_config(self) -> IRuntimeConfig:
        """Settings for `create_execution_context`."""
        return IRuntimeConfig()

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy
        | IRuntimeConfig
        | None = ExecutionContextAllocationStrategy.STATIC,
        runtime_config: IRuntimeConfig | None = None,
    ) -> IExecutionContext | None:
        """Makes a context, on profile 0.

        Args:
            strategy: Who provides memory for intermediate values, or a runtime configuration.
            runtime_config: The same, as a configuration.

        Returns:
            None, with a report, where there is no memory for the weights of an engine that streams them.
        """
        config = runtime_config if runtime_config is not None else IRuntimeConfig()
        if isinstance(strategy, IRuntimeConfig):
            config = strategy
        elif strategy is not None and runtime_config is None:
            config.set_execution_context_allocation_strategy(strategy)
        chosen = config.get_execution_context_allocation_strategy()
        try:
            self._state.place_weights(self._streaming_budget)
        except RuntimeError as error:
            self._reporter.error("create_execution_context", str(error), ErrorCodeTRT.FAILED_ALLOCATION)
            return None
        context = IExecutionContext(self, self._state, chosen, config, self._reporter.child())
        self._contexts.add(context)
        return context

    def create_tensor_runner(self) -> TensorRunner | None:
        """Makes what runs this engine on tensors, without a context; TensorRT has no such thing.

        Returns:
            None where contexts are needed: on CUDA, for inputs that are read on the host or updated in place, for
            memory that is not LINEAR, and for tensors that somebody may look at.
        """
        info, state = self._info, self._state
        if state.device.type != "cpu" or state.host_inputs or state.loaded.updates or info.debug_tensors:
            return None
        if any(tensor.is_host or tensor.format in LAYOUTS for tensor in info.io):
            return None
        return TensorRunner(state, self._reporter)

    def collectives(self) -> tuple[Collective, ...]:
        """What each run communicates, in its order; TensorRT does not say."""
        return collectives_of(self._state.layers)

    def create_engine_inspector(self) -> EngineInspector:
        """Makes an inspector of this engine."""
        from trt_portable.runtime.inspector import EngineInspector  # most processes that run engines never ask

        return EngineInspector(self, self._state, self._reporter.child())

    def create_serialization_config(self) -> ISerializationConfig:
        """Settings for `serialize_with_config`."""
        return ISerializationConfig()

    # Serialization ---------------------------------------------------------------------------------

    def serialize(self) -> IHostMemory | None:
        """The engine as a plan, with the weights it has now."""
        return self.serialize_with_config(ISerializationConfig())

    def serialize_with_config(self, arg0: ISerializationConfig) -> IHostMemory | None:
        """The engine as a plan.

        Args:
            arg0: EXCLUDE_WEIGHTS leaves out what a refit can bring back; INCLUDE_REFIT keeps an engine
                that was stripped and refitted refittable.

        Returns:
            None, with a report, when weights are to be excluded from an engine that has no refit.
        """
        exclude = instance_of(ISerializationConfig, arg0).get_flag(SerializationFlag.EXCLUDE_WEIGHTS)
        if exclude and not self.refittable:
            self._reporter.error(
                "serialize_with_config", "EXCLUDE_WEIGHTS needs a refittable engine", ErrorCodeTRT.INVALID_CONFIG
            )
            return None
        keep_refit = exclude or not self._info.stripped or bool(self._state.weights.missing)
        keep_refit = keep_refit or arg0.get_flag(SerializationFlag.INCLUDE_REFIT)
        slots, tensors = self._state.weights.snapshot()
        return write_engine(
            self._state.structure,
            self._info,
            slots,
            tensors,
            self._state.features,
            compiled=self._state.compiled,
            strip=exclude,
            keep_refit=keep_refit,
        )


class ISerializationConfig(Sealed):
    """What a serialized engine contains; made by `ICudaEngine.create_serialization_config`."""

    def __init__(self) -> None:
        self._flags = 0

    @property
    def flags(self) -> int:
        """Bit mask of ``1 << int(flag)``."""
        return self._flags

    @flags.setter
    def flags(self, flags: int) -> None:
        known = sum(1 << int(flag) for flag in SerializationFlag)
        mask = to_integer(flags)
        if mask & ~known:
            raise RuntimeError(f"serialization flags {mask:#x} name unknown flags")
        self._flags = mask

    def set_flag(self, flag: SerializationFlag) -> bool:
        """Sets one flag."""
        self._flags |= 1 << int(instance_of(SerializationFlag, flag, "flag"))
        return True

    def clear_flag(self, flag: SerializationFlag) -> bool:
        """Clears one flag."""
        self._flags &= ~(1 << int(instance_of(SerializationFlag, flag, "flag")))
        return True

    def get_flag(self, flag: SerializationFlag) -> bool:
        """Whether a flag is set."""
        return bool(self._flags >> int(instance_of(SerializationFlag, flag, "flag")) & 1)


Strided = tuple[tuple[int, ...], tuple[int, ...]]
"""Extents and strides of a dense tensor."""


class TensorRunner:
    """Runs an engine for the CPU on tensors as they are: none is bound, wrapped or copied.

    It keeps nothing of a run, so any number of threads may use it at once. Made by `ICudaEngine.create_tensor_runner`.

    Args:
        state: The engine.
        reporter: Receives what fails.
    """

    def __init__(self, state: EngineState, reporter: Reporter) -> None:
        self._state = state
        self._reporter = reporter
        self._dtypes = [tensor.torch_dtype for tensor in state.outputs]
        self._runner = (state.executable, state.runner)

    def run(self, inputs: Sequence[torch.Tensor], outputs: Sequence[Strided]) -> list[torch.Tensor] | None:
        """Runs the engine.

        Args:
            inputs: In the order of the engine: dense, of its types, in extents that a context has run with.
            outputs: Extents and strides of the outputs for these.

        Returns:
            Outputs in the order of the engine, dense, in memory that nobody else holds; None, with a report, when a
            layer failed.
        """
        if torch.is_autocast_enabled("cpu"):
            with without_autocast("cpu"):
                return self.run(inputs, outputs)
        state = self._state
        executable, runner = self._runner
        if executable is not state.executable:
            executable, runner = self._runner = state.executable, state.runner
        try:
            targets = self._targets(outputs) if state.takes_memory else ()
            if torch.is_inference_mode_enabled():  # which is below autograd as it is
                made = runner.run(inputs, targets)
            else:
                with below_autograd():
                    made = runner.run(inputs, targets)
            results = [*made]
            del made  # what is left holds results once
            for index, strided in enumerate(outputs):
                held = sys.getrefcount(results[index])
                value = results[index]
                if held <= _HELD_BY_A_LIST and _is_own(value, strided, self._dtypes[index]):
                    continue
                if not targets or value is not targets[index]:
                    with below_autograd():
                        value = torch.empty_strided(*strided, dtype=self._dtypes[index], device="cpu").copy_(
                            as_tensor(value)
                        )
                    results[index] = value
        except RuntimeError as error:
            code = ErrorCodeTRT.FAILED_EXECUTION
            self._reporter.error("run", str(error), code, is_known=state.has_said(error))
            return None
        return results  # type: ignore[return-value]  # all of them tensors by now

    def _targets(self, outputs: Sequence[Strided]) -> list[torch.Tensor]:
        return [
            torch.empty_strided(*of, dtype=dtype, device="cpu") for of, dtype in zip(outputs, self._dtypes, strict=True)
        ]


def _is_own(value: Value, strided: Strided, dtype: torch.dtype) -> bool:
    """Whether a result is a dense tensor, and the only one in memory that PyTorch has allocated for it."""
    if type(value) is not torch.Tensor or value.dtype is not dtype:
        return False
    storage = value.untyped_storage()
    return (
        value.shape == strided[0]
        and value.stride() == strided[1]
        and storage_use_count(storage._cdata) <= _OWN_USES
        and storage.nbytes() == value.nbytes
        and storage.resizable()
        and (not value.is_inference() or torch.is_inference_mode_enabled())
    )


def _references(items: list[object]) -> int:
    return sys.getrefcount(items[0])


_HELD_BY_A_LIST: Final = _references([object()])
"""What Python counts for an object that a list alone holds."""
_OWN_USES: Final = 2
"""Of a storage: by its one tensor, and by the object that Python sees."""


class Runtime(HostSettings):
    """Loads engines.

    Args:
        logger: Receives what the runtime and its engines have to say.

    Raises:
        TypeError: `logger` is no `ILogger`.
    """

    DLA_core: int = -1
    """Kept; there is no DLA."""
    engine_host_code_allowed: bool = False
    """Whether kernels that a plan from elsewhere holds compiled may run; set it for plans that you trust."""
    plans_are_verified: bool = False
    """Not in TensorRT: whether whoever gives plans has found them undamaged, so that their checksum is not computed."""
    call_limits: CallLimits | None = CallLimits()
    """Not in TensorRT: what each run of an engine may use; None for all, for plans that you trust."""
    is_exempt: Callable[[], bool] = staticmethod(bool)
    """Not in TensorRT: asked once a run reaches a limit: whether the plan turns out to be trusted."""
    may_reach: Callable[[frozenset[int]], bool] = staticmethod(lambda ranks: True)
    """Not in TensorRT: asked of the ranks of each collective of a plan with limits: whether it may talk to them."""
    unused_kernels_are_said: bool = False
    """Not in TensorRT: whether the user knows that compiled kernels of plans from elsewhere are not used."""
    temporary_directory: str = tempfile.gettempdir()
    """Kept; nothing is written there."""
    tempfile_control_flags: int = sum(1 << int(flag) for flag in TempfileControlFlag)
    """Kept."""
    dla_workspace_allocation_strategy = one_of(DLAWorkspaceAllocationStrategy.DEFAULT, "Kept and reported.")

    def __init__(self, logger: ILogger) -> None:
        instance_of(ILogger, logger, "logger")
        self._reporter = Reporter(logger)

    @overload
    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None: ...

    @overload
    def deserialize_cuda_engine(self, *, stream_reader_v2: IStreamReaderV2) -> ICudaEngine | None: ...

    def deserialize_cuda_engine(
        self, serialized_engine: Any = None, *, stream_reader_v2: IStreamReaderV2 | None = None
    ) -> ICudaEngine | None:
        """Loads an engine onto the device that `trt_portable.device` chose.

        Engines on the CPU use the weights of read-only buffers (``bytes``, a read-only map of a file,
        `IHostMemory`) in place; the engine keeps the buffer.

        Args:
            serialized_engine: A bytes-like object, or a stream.
            stream_reader_v2: A stream.

        Returns:
            None, with a report, when the bytes are no plan that can run here, or memory ran out.

        Raises:
            TypeError: Neither bytes nor a stream.
        """
        source = serialized_engine if stream_reader_v2 is None else stream_reader_v2
        buffer = read_all(source) if isinstance(source, IStreamReaderV2) else source
        memoryview(buffer)  # a TypeError names what is not bytes-like
        try:
            return load_engine(
                buffer,
                self._reporter,
                host_code_allowed=bool(self.engine_host_code_allowed),
                is_verified=bool(self.plans_are_verified),
                limits=self.call_limits,
                is_exempt=self.is_exempt,
                unused_kernels_are_said=self.unused_kernels_are_said,
                may_reach=self.may_reach,
            )
        except PortableError as error:
            code = ErrorCodeTRT.INVALID_ARGUMENT
            self._reporter.error("deserialize_cuda_engine", str(error), code)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            rule = f"out of memory: {error}"
            self._reporter.error("deserialize_cuda_engine", rule, ErrorCodeTRT.FAILED_ALLOCATION)
        return None

    def load_runtime(self, path: str) -> Runtime | None:
        """None: plans of this provider need no runtime of their own version."""
        rule = f"{to_text(path)!r} cannot be loaded: this provider has no lean runtimes"
        self._reporter.error("load_runtime", rule, ErrorCodeTRT.UNSUPPORTED_STATE)
        return None


def load_engine(
    buffer: Any,
    reporter: Reporter,
    *,
    host_code_allowed: bool = False,
    is_verified: bool = False,
    limits: CallLimits | None = None,
    is_exempt: Callable[[], bool] = bool,
    unused_kernels_are_said: bool = False,
    may_reach: Callable[[frozenset[int]], bool] = lambda ranks: True,
) -> ICudaEngine:
    """Loads an engine onto the current device.

    Args:
        buffer: A plan.
        reporter: Receives what the engine has to say.
        host_code_allowed: Whether compiled kernels run though the plan was not built in this process.
        is_verified: Whether the plan was found undamaged already.
        limits: What each run may use; None for all.
        is_exempt: Asked once a run reaches a limit: whether the plan turns out to be trusted.
        unused_kernels_are_said: Whether the user knows that compiled kernels of plans from elsewhere are not used.
        may_reach: Asked of the ranks of each collective: whether the plan may talk to them.

    Raises:
        PortableError: The bytes are no plan that can run here; the message says why.
    """
    plan = read_plan(buffer, is_verified=is_verified)
    with reading("the content", plan):
        bounds = (
            None
            if limits is None or host_code_allowed
            else RunBounds(limits, is_exempt, len(plan.data), unused_kernels_are_said, may_reach)
        )
        return ICudaEngine(plan, current_device(), reporter.child(), host_code_allowed=host_code_allowed, bounds=bounds)
