"""`IExecutionContext`: one user of an engine, with its own shapes, addresses and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trt_portable.allocators import IOutputAllocator, notify_shape, request_output
from trt_portable.device import external_stream, record_event
from trt_portable.dims import Dims
from trt_portable.enums import ErrorCodeTRT, ExecutionContextAllocationStrategy
from trt_portable.error_recorder import Reporter
from trt_portable.errors import Refusal
from trt_portable.memory import CUDA_ALIGNMENT, is_aligned
from trt_portable.runtime.binding import Binding
from trt_portable.runtime.context_shapes import ContextShapes
from trt_portable.runtime.launcher import DirectLauncher, Launcher, is_capturing
from trt_portable.runtime.observers import LayerTimer, RunObserver
from trt_portable.runtime.replay import ReplayLauncher, can_replay
from trt_portable.values import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.runtime.engine import ICudaEngine
    from trt_portable.runtime.engine_state import EngineState
    from trt_portable.runtime.runtime_config import IRuntimeConfig


class IExecutionContext(ContextShapes):
    """Runs an engine; made by `ICudaEngine.create_execution_context`. One thread at a time.

    Any number of contexts may use the same engine, and the same profile, at once.
    """

    def __init__(
        self,
        engine: ICudaEngine,
        state: EngineState,
        strategy: ExecutionContextAllocationStrategy,
        config: IRuntimeConfig,
        reporter: Reporter,
    ) -> None:
        super().__init__(engine, state, strategy, reporter)
        self._config = config
        self._device = state.device
        self._is_cuda = state.device.type == "cuda"
        self._direct: Launcher = DirectLauncher(state.executable)
        self._replay: Launcher | None = ReplayLauncher(state, state.executable) if can_replay(state) else None
        self._host_inputs = state.host_inputs
        self._aliases = [
            (binding, self._by_name[binding.tensor.aliased_input])
            for binding in self._outputs
            if binding.tensor.aliased_input is not None
        ]
        self._allocators: dict[str, IOutputAllocator] = {}
        self._in_place: list[Binding] = []  # inputs whose memory an output overwrites
        self._is_tied = bool(self._aliases)  # whether an output shares memory with an input
        self._read_addresses: frozenset[int] = frozenset()
        self._unpacked = [binding for binding in self._inputs if binding.is_packed]
        self._last_unpacked: tuple[int, torch.cuda.Event] | None = None  # stream of the last run that unpacked, its end
        self._inference = torch.inference_mode()

    def get_runtime_config(self) -> IRuntimeConfig:
        """The configuration that the context was created with."""
        return self._config

    # Addresses -------------------------------------------------------------------------------------

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Binds memory to an input or output; 0 unbinds it.

        CUDA memory is aligned to 256 bytes. Memory of the host needs no alignment beyond its elements'.

        Returns:
            False, with a report, for an unknown name or a misaligned address.
        """
        binding = self._by_name.get(name)
        if binding is None:
            self._reporter.error("set_tensor_address", f"the engine has no tensor named {name!r}")
            return False
        address = int(memory)
        if address == binding.address:
            return True
        if binding.is_cuda and address % CUDA_ALIGNMENT:
            self._reporter.error(
                f"set_tensor_address({name!r})",
                f"address {address:#x} is not aligned to {CUDA_ALIGNMENT} bytes",
            )
            return False
        if not (address and binding.address):
            self._is_checked = False
            self._values = None
        elif binding.tensor.is_input or self._is_tied or address in self._read_addresses:
            self._values = None  # else an output moved that no input knows of
        binding.address = address
        return True

    def get_tensor_address(self, name: str) -> int:
        """The bound address, 0 when there is none."""
        binding = self._by_name.get(name)
        return 0 if binding is None else binding.address

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator | None) -> bool:
        """Sets what provides an output's memory; None returns to the bound address."""
        binding = self._by_name.get(name)
        if binding is None or binding.tensor.is_input:
            self._reporter.error("set_output_allocator", f"the engine has no output named {name!r}")
            return False
        if output_allocator is None:
            self._allocators.pop(name, None)
        elif not isinstance(output_allocator, IOutputAllocator):
            kind = type(output_allocator).__name__
            raise TypeError(f"output_allocator must be IOutputAllocator, not {kind}")
        else:
            self._allocators[name] = output_allocator
        self._forget()
        return True

    def get_output_allocator(self, name: str) -> IOutputAllocator | None:
        """The allocator of an output, or None."""
        return self._allocators.get(name)

    # Execution -------------------------------------------------------------------------------------

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Runs the engine on the bound memory.

        Args:
            stream_handle: CUDA stream. Engines on the CPU ignore it and are done when the call returns.

        Returns:
            False, with a report, when shapes or addresses are missing or a layer fails.
        """
        try:
            values = self._values
            if values is None:
                values = self._prepare()
            if self._host_inputs:
                values = self._with_host_values(values)
            if self._is_cuda:
                self._run_on(int(stream_handle), values)
            elif torch.is_inference_mode_enabled():
                self._run(values, stream_handle)
            else:
                with self._inference:
                    self._run(values, stream_handle)
        except Refusal as refusal:
            self._reporter.refuse("execute_async_v3", refusal)
            return False
        except RuntimeError as error:  # a layer failed, no memory, or earlier asynchronous work failed
            code = ErrorCodeTRT.FAILED_EXECUTION
            self._reporter.error("execute_async_v3", str(error), code)
            return False
        return True

    def execute_v2(self, bindings: Sequence[int]) -> bool:
        """Runs and waits, on addresses in the order of the engine's tensors."""
        if len(bindings) != len(self._bindings):
            rule = f"{len(bindings)} addresses for {len(self._bindings)} tensors"
            self._reporter.error("execute_v2", rule)
            return False
        for binding, address in zip(self._bindings, bindings, strict=True):
            if not self.set_tensor_address(binding.tensor.name, address):
                return False
        if not self._is_cuda:
            return self.execute_async_v3(0)
        stream = torch.cuda.current_stream(self._device)
        done = self.execute_async_v3(stream.cuda_stream)
        stream.synchronize()
        return done

    def _prepare(self) -> list[Value]:
        """Checks what execution needs and has changed, and wraps the inputs.

        Raises:
            Refusal: A shape, an address or weights are missing.
        """
        if not self._is_checked:
            self._check()
            self._is_checked = True
        for binding, source in self._aliases:
            if binding.address != source.address:
                raise Refusal(
                    f"output {binding.tensor.name!r} updates input {source.tensor.name!r} in place, so both must be "
                    "bound to the same address"
                )
        written = {binding.address for binding in self._outputs}
        self._in_place = [binding for binding in self._inputs if binding.address in written]
        self._is_tied = bool(self._aliases or self._in_place)
        self._read_addresses = frozenset(binding.address for binding in self._inputs)
        if not self._host_inputs:
            self._announce_outputs()
        self._values = [binding.input_value() for binding in self._inputs]
        return self._values

    def _check(self) -> None:
        """Checks shapes, addresses and weights, in the documented order.

        Raises:
            Refusal: One of them is missing.
        """
        for binding in self._inputs:
            if binding.shape is None:
                raise Refusal(
                    f"input {binding.tensor.name!r} has dynamic extents {binding.tensor.shape}: "
                    "call set_input_shape first",
                    ErrorCodeTRT.INVALID_STATE,
                )
        self._check_dimension_names()
        for binding in self._bindings:
            self._check_address(binding)
        missing = len(self._state.weights.missing)
        if missing:
            raise Refusal(
                f"{missing} weights of this stripped engine are missing: refit it first",
                ErrorCodeTRT.INVALID_STATE,
            )

    def _check_address(self, binding: Binding) -> None:
        tensor = binding.tensor
        if binding.address:
            return
        optional = self._state.shape_only_inputs if tensor.is_input else self._allocators
        if tensor.name not in optional:
            raise Refusal(
                f"{tensor.name!r} has no address: call set_tensor_address first",
                ErrorCodeTRT.INVALID_STATE,
            )

    def _check_dimension_names(self) -> None:
        extents: dict[str, tuple[str, int]] = {}
        for binding in self._inputs:
            names = binding.tensor.dimension_names
            for name, extent in zip(names, binding.shape or (), strict=False):
                first, known = extents.setdefault(name, (binding.tensor.name, extent))
                if name and known != extent:
                    raise Refusal(
                        f"dimension {name!r} is {known} in {first!r}, but {extent} in {binding.tensor.name!r}"
                    )

    def _with_host_values(self, values: list[Value]) -> list[Value]:
        """Replaces host inputs by the numbers that are at their addresses now."""
        values = list(values)
        for index in self._host_inputs:
            values[index] = self._read_host(self._inputs[index])
        self._announce_outputs()  # the numbers may decide about extents
        return values

    def _announce_outputs(self) -> None:
        """Notes for each output what whoever bound its memory was told of its size."""
        for binding in self._outputs:
            binding.shape = binding.room = None
            if binding.tensor.name not in self._allocators:
                binding.shape, binding.room = self._announced(binding)

    def _run_on(self, handle: int, values: list[Value]) -> None:
        """Runs on a CUDA stream; entering it costs more than asking whether it is current anyway."""
        with self._inference:
            if torch.cuda.current_stream(self._device).cuda_stream == handle:
                self._run_in_order(handle, values)
            else:
                is_foreign = is_capturing(self._device)  # whoever records another stream has not asked for this run
                with torch.cuda.stream(external_stream(handle, self._device)):
                    self._run_in_order(handle, values, may_replay=not is_foreign)
        if self._input_consumed_event:
            record_event(self._input_consumed_event, handle)
        if self.debug_sync:
            external_stream(handle, self._device).synchronize()

    def _run_in_order(self, handle: int, values: list[Value], *, may_replay: bool = True) -> None:
        """Runs after earlier runs on other streams have read the copies of packed inputs that this one overwrites."""
        if not self._unpacked or is_capturing(self._device):
            self._run(values, handle, may_replay=may_replay)
            return
        stream = torch.cuda.current_stream(self._device)
        last = self._last_unpacked
        if last is not None and last[0] != handle:
            stream.wait_event(last[1])
        self._run(values, handle, may_replay=may_replay)
        done = torch.cuda.Event() if last is None else last[1]
        done.record(stream)
        self._last_unpacked = (handle, done)

    def _run(self, values: list[Value], stream: int, *, may_replay: bool = True) -> None:
        """Computes the outputs and puts them where they belong, in inference mode."""
        for binding in self._unpacked:
            binding.unpack()
        if self._profiler is None and not self._debug.is_active:
            if not self._allocators:
                if may_replay and self._replay is not None and self._replay.launch(values, self._outputs):
                    return
                if not self._in_place:
                    self._direct.launch(values, self._outputs)
                    return
            results = list(self._state.executable.run(values))
        else:
            results = self._run_observed(values, stream)
        if self._in_place:
            results = [self._without_views(as_tensor(value)) for value in results]
        for binding, value in zip(self._outputs, results, strict=True):
            if binding.tensor.name in self._allocators:
                self._allocate(binding, value, stream)
            binding.write(value)

    def _run_observed(self, values: list[Value], stream: int) -> list[Value]:
        timer = None if self._profiler is None else LayerTimer(self._device)
        debug = self._debug if self._debug.is_active else None
        if debug is not None:
            debug.show_inputs([binding.tensor.id for binding in self._inputs], values, stream)
        results = self._state.program.run_observed(values, RunObserver(timer, debug, stream))
        if timer is not None:
            self._layer_times = timer.milliseconds()
            if self.enqueue_emits_profile:
                self.report_to_profiler()
        return results

    def _without_views(self, result: torch.Tensor) -> torch.Tensor:
        """An output that no write to another output can change."""
        shares = any(binding.shares_memory_with(result) for binding in self._in_place)
        return result.clone() if shares else result

    def _allocate(self, binding: Binding, value: Value, stream: int) -> None:
        """Asks an output's allocator for memory and tells it the shape.

        Raises:
            Refusal: The allocator provided no memory, or misaligned memory.
        """
        name = binding.tensor.name
        shape = tuple(int(extent) for extent in value.shape)
        size = max(binding.bytes_of(shape), 1)
        allocator = self._allocators[name]
        address = request_output(allocator, name, binding.address, size, CUDA_ALIGNMENT, stream)
        if not address or not is_aligned(address, binding.device):
            raise Refusal(
                f"the output allocator of {name!r} returned {address:#x} for {size} bytes",
                ErrorCodeTRT.FAILED_ALLOCATION,
            )
        binding.address = address
        notify_shape(allocator, name, Dims(shape))
