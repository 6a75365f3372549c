"""Runs of an execution context: memory that is bound, the checks of a run, and the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trt_portable.allocators import IOutputAllocator, notify_shape, request_output
from trt_portable.arguments import to_integer, to_text
from trt_portable.device import external_stream, record_event, without_autocast
from trt_portable.dims import Dims
from trt_portable.enums import ErrorCodeTRT
from trt_portable.error_recorder import Reporter
from trt_portable.errors import Refusal
from trt_portable.memory import CUDA_ALIGNMENT, is_aligned
from trt_portable.runtime.binding import Binding
from trt_portable.runtime.context_shapes import ContextShapes
from trt_portable.runtime.launcher import DirectLauncher, Launcher, is_capturing
from trt_portable.runtime.observers import DebugTensors, LayerTimer, LayerTimes, RunObserver
from trt_portable.values import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.runtime.engine_state import EngineState


class Execution:
    """Runs an engine on bound memory, for one context.

    Args:
        state: The engine.
        shapes: The tensors of the context, and their extents.
        times: Where layer times go; without a profiler none are taken.
        debug: Which tensors are shown to a listener.
        reporter: Receives what fails.

    Attributes:
        allocators: What provides the memory of outputs, by name.
        debug_sync: Whether each run waits until the device is done.
        input_consumed_event: CUDA event that is recorded when the inputs may be overwritten; 0 for none.
        lacks_memory: Whether the application has yet to provide memory for intermediate values, as it said it would.
        replay: Runs by recorded CUDA graphs; None where there can be none.
    """

    def __init__(
        self, state: EngineState, shapes: ContextShapes, times: LayerTimes, debug: DebugTensors, reporter: Reporter
    ) -> None:
        self.allocators: dict[str, IOutputAllocator] = {}
        self.debug_sync = False
        self.input_consumed_event = 0
        self.lacks_memory = False
        self.replay = _replay(state)
        self._direct: Launcher = DirectLauncher(state.runner)
        self._state = state
        self._shapes = shapes
        self._times = times
        self._debug = debug
        self._reporter = reporter
        self._device = state.device
        self._kind = state.device.type
        self._is_cuda = self._kind == "cuda"
        self._inputs, self._outputs = shapes.inputs, shapes.outputs
        self._host_inputs = state.host_inputs
        self._aliases = [
            (binding, shapes.by_name[binding.tensor.aliased_input])
            for binding in self._outputs
            if binding.tensor.aliased_input is not None
        ]
        self._in_place: list[Binding] = []  # inputs whose memory an output overwrites
        self._is_tied = bool(self._aliases)  # whether an output shares memory with an input
        self._read_addresses: frozenset[int] = frozenset()
        self._unpacked = [binding for binding in self._inputs if binding.is_packed]
        self._last_unpacked: tuple[int, torch.cuda.Event] | None = None  # stream of the last run that unpacked, its end
        self._inference = torch.inference_mode()

    def bind(self, name: str, memory: int) -> bool:
        """Binds memory to an input or output; see `IExecutionContext.set_tensor_address`."""
        address = memory if type(memory) is int else to_integer(memory)
        binding = self._shapes.by_name.get(name)
        if binding is None:
            self._reporter.error("set_tensor_address", f"the engine has no tensor named {to_text(name)!r}")
            return False
        if address == binding.address:
            return True
        if binding.is_cuda and address % CUDA_ALIGNMENT:
            self._reporter.error(
                f"set_tensor_address({name!r})",
                f"address {address:#x} is not aligned to {CUDA_ALIGNMENT} bytes",
            )
            return False
        if not (address and binding.address):
            self._shapes.forget()
        elif binding.tensor.is_input or self._is_tied or address in self._read_addresses:
            self._shapes.values = None  # else an output moved that no input knows of
        binding.address = address
        return True

    def run(self, stream_handle: int) -> bool:
        """Runs the engine; see `IExecutionContext.execute_async_v3`."""
        handle = stream_handle if type(stream_handle) is int else to_integer(stream_handle)
        try:
            values = self._shapes.values
            if values is None:
                values = self._prepare()
            if self._host_inputs:
                values = self._with_host_values(values)
            if torch.is_autocast_enabled(self._kind):
                with without_autocast(self._kind):
                    self._start(values, handle)
            else:
                self._start(values, handle)
        except Refusal as refusal:
            self._reporter.refuse("execute_async_v3", refusal)
            return False
        except RuntimeError as error:  # a layer failed, no memory, or earlier asynchronous work failed
            code = ErrorCodeTRT.FAILED_EXECUTION
            self._reporter.error("execute_async_v3", str(error), code)
            return False
        return True

    def run_and_wait(self, addresses: Sequence[int]) -> bool:
        """Binds addresses in the order of the engine's tensors, runs, and waits."""
        bindings = self._shapes.bindings
        if len(addresses) != len(bindings):
            self._reporter.error("execute_v2", f"{len(addresses)} addresses for {len(bindings)} tensors")
            return False
        if not all(self.bind(binding.tensor.name, at) for binding, at in zip(bindings, addresses, strict=True)):
            return False
        if not self._is_cuda:
            return self.run(0)
        stream = torch.cuda.current_stream(self._device)
        done = self.run(stream.cuda_stream)
        stream.synchronize()
        return done

    def _prepare(self) -> list[Value]:
        """Checks what execution needs and has changed, and wraps the inputs.

        Raises:
            Refusal: A shape, an address or weights are missing.
        """
        if not self._shapes.is_checked:
            self._check()
            self._shapes.is_checked = True
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
        self._shapes.values = [binding.input_value() for binding in self._inputs]
        return self._shapes.values

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
        for binding in self._shapes.bindings:
            self._check_address(binding)
        if self.lacks_memory:
            rule = "the memory of intermediate values is the application's to provide: call set_device_memory first"
            raise Refusal(rule, ErrorCodeTRT.INVALID_STATE)
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
        optional = self._state.shape_only_inputs if tensor.is_input else self.allocators
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
            values[index] = self._shapes.read_host(self._inputs[index])
        self._announce_outputs()  # the numbers may decide about extents
        return values

    def _announce_outputs(self) -> None:
        """Notes for each output what whoever bound its memory was told of its size."""
        for binding in self._outputs:
            binding.shape = binding.room = None
            if binding.tensor.name not in self.allocators:
                binding.shape, binding.room = self._shapes.announced(binding)

    def _start(self, values: list[Value], handle: int) -> None:
        """Runs on a stream, in inference mode."""
        if self._is_cuda:
            self._run_on(handle, values)
        elif torch.is_inference_mode_enabled():
            self._run(values, handle)
        else:
            with self._inference:
                self._run(values, handle)

    def _run_on(self, handle: int, values: list[Value]) -> None:
        """Runs on a CUDA stream; entering it costs more than asking whether it is current anyway."""
        with self._inference:
            if torch.cuda.current_stream(self._device).cuda_stream == handle:
                self._run_in_order(handle, values)
            else:
                is_foreign = is_capturing(self._device)  # whoever records another stream has not asked for this run
                with torch.cuda.stream(external_stream(handle, self._device)):
                    self._run_in_order(handle, values, may_replay=not is_foreign)
        if self.input_consumed_event:
            record_event(self.input_consumed_event, handle)
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
        if self._times.profiler is None and not self._debug.is_active:
            if not self.allocators:
                if may_replay and self.replay is not None and self.replay.launch(values, self._outputs):
                    return
                if not self._in_place:
                    self._direct.launch(values, self._outputs)
                    return
            results = list(self._state.runner.run(values))
        else:
            results = self._run_observed(values, stream)
        if self._in_place:
            results = [self._without_views(as_tensor(value)) for value in results]
        for binding, value in zip(self._outputs, results, strict=True):
            if binding.tensor.name in self.allocators:
                self._allocate(binding, value, stream)
            binding.write(value)

    def _run_observed(self, values: list[Value], stream: int) -> list[Value]:
        timer = None if self._times.profiler is None else LayerTimer(self._device)
        debug = self._debug if self._debug.is_active else None
        if debug is not None:
            debug.show_inputs([binding.tensor.id for binding in self._inputs], values, stream)
        results = self._state.program.run_observed(values, RunObserver(timer, debug, stream))
        if timer is not None:
            self._times.take(timer.milliseconds())
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
        allocator = self.allocators[name]
        address = request_output(allocator, name, binding.address, size, CUDA_ALIGNMENT, stream)
        if not address or not is_aligned(address, binding.device):
            raise Refusal(
                f"the output allocator of {name!r} returned {address:#x} for {size} bytes",
                ErrorCodeTRT.FAILED_ALLOCATION,
            )
        binding.address = address
        notify_shape(allocator, name, Dims(shape))


def _replay(state: EngineState) -> Launcher | None:
    """What records runs and plays them again; None where that cannot be, as on the CPU."""
    if state.device.type != "cuda":
        return None
    from trt_portable.runtime.replay import ReplayLauncher, can_replay  # only CUDA needs it

    return ReplayLauncher(state, state.runner) if can_replay(state) else None
