"""`IExecutionContext`: one user of an engine, with its own shapes, addresses, callbacks, and observers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core.device import without_autocast
from trt_portable.application_interfaces import IGpuAllocator, IOutputAllocator, notify_shape, request_output
from trt_portable.device_choice import external_stream, record_event
from trt_portable.dims import MAX_RANK, Dims
from trt_portable.dtypes import FROM_TORCH
from trt_portable.enums import (
    DataType,
    ErrorCodeTRT,
    ExecutionContextAllocationStrategy,
    ProfilingVerbosity,
    TensorLocation,
)
from trt_portable.errors import Refusal
from trt_portable.execution.launcher import DirectLauncher, Launcher, is_capturing
from trt_portable.execution.program import LayerCall, LayerFailure
from trt_portable.execution.shapes import ShapeReport
from trt_portable.formats import LAYOUTS
from trt_portable.internals import current_stream_handle
from trt_portable.memory import CUDA_ALIGNMENT, is_aligned
from trt_portable.plan.engine_info import Shape
from trt_portable.pybind import (
    ContextManaged,
    Sealed,
    forwarded,
    instance_of,
    optional_of,
    to_boolean,
    to_integer,
    to_integers,
    to_text,
)
from trt_portable.reporting import RecordsErrors, Reporter, report_callback_failure
from trt_portable.runtime.binding import Binding
from trt_portable.shape_tensors import HostValues, Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.runtime.engine_queries import EngineQueries
    from trt_portable.runtime.engine_state import EngineState


class IProfiler:
    """Interface that receives layer times; subclass it, call ``IProfiler.__init__``."""

    def __init__(self) -> None:
        pass

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Receives the time of one layer, in milliseconds."""
        raise NotImplementedError("a subclass of IProfiler must define report_layer_time()")


class Profiler(IProfiler):
    """Prints layer times."""

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Prints the time of one layer, in milliseconds."""
        print(f"{layer_name}: {ms}ms")  # noqa: T201 - it is what this class is for


class IDebugListener:
    """Interface that sees debug tensors; subclass it, call ``IDebugListener.__init__``."""

    def __init__(self) -> None:
        pass

    def process_debug_tensor(
        self, addr: int, location: TensorLocation, type: DataType, shape: Dims, name: str, stream: int
    ) -> None:
        """Receives the address of a tensor whose content is valid until the call returns."""
        raise NotImplementedError("a subclass of IDebugListener must define process_debug_tensor()")


class LayerTimes:
    """Layer times of the last run of a context, and the profiler that receives them.

    Attributes:
        profiler: The receiver; None while nobody asks.
        are_reported_at_once: Whether a run reports itself, or `report` does later.
    """

    def __init__(self) -> None:
        self.profiler: IProfiler | None = None
        self.are_reported_at_once = True
        self._times: list[tuple[str, float]] = []

    def take(self, times: list[tuple[str, float]]) -> None:
        """Receives the times of a run, in milliseconds by layer."""
        self._times = times
        if self.are_reported_at_once:
            self.report()

    def report(self) -> bool:
        """Tells the profiler; False when there is none, or no run that it was not told of."""
        if self.profiler is None or not self._times:
            return False
        for name, milliseconds in self._times:
            try:
                self.profiler.report_layer_time(name, milliseconds)
            except Exception as error:
                report_callback_failure("report_layer_time()", error)
        self._times = []
        return True


class DebugTensors:
    """Which debug tensors a context shows to its listener.

    Args:
        tensors: Debug tensors of the engine: name by tensor id.

    Attributes:
        unfused_state: Whether tensors that were not marked are shown too.
        listener: Who sees them.
    """

    def __init__(self, tensors: Mapping[int, str]) -> None:
        self._tensors = tensors
        self._names = frozenset(tensors.values())
        self._enabled: set[str] = set()
        self.unfused_state = False
        self.listener: IDebugListener | None = None

    @property
    def is_active(self) -> bool:
        """Whether a run must look at tensors at all."""
        return self.listener is not None and bool(self._enabled or self.unfused_state)

    def set_state(self, name: str, flag: bool) -> bool:
        """Shows or hides a tensor; False when it is no debug tensor."""
        if name not in self._names:
            return False
        (self._enabled.add if flag else self._enabled.discard)(name)
        return True

    def set_all(self, flag: bool) -> None:
        """Shows or hides all debug tensors."""
        self._enabled = set(self._names) if flag else set()

    def state(self, name: str) -> bool:
        """Whether a tensor is shown."""
        return name in self._enabled

    def show_inputs(self, tensors: Sequence[int], values: Sequence[Value], stream: int) -> None:
        """Shows the inputs of a run, by tensor id, that are to be shown."""
        for tensor, value in zip(tensors, values, strict=True):
            name = self._tensors.get(tensor)
            if name in self._enabled:
                self._process(name, value, stream)

    def show(self, call: LayerCall, outputs: Sequence[Value], stream: int) -> None:
        """Shows the outputs of a layer that are to be shown."""
        for tensor, name, value in zip(call.outputs, call.output_names, outputs, strict=True):
            marked = self._tensors.get(tensor)
            if marked in self._enabled or (marked is None and self.unfused_state):
                self._process(name if marked is None else marked, value, stream)

    def _process(self, name: str, content: Value, stream: int) -> None:
        assert self.listener is not None
        value = as_tensor(content).contiguous()
        if value.is_cuda:
            torch.cuda.current_stream(value.device).synchronize()
        try:
            self.listener.process_debug_tensor(
                value.data_ptr(),
                TensorLocation.DEVICE if value.is_cuda else TensorLocation.HOST,
                FROM_TORCH[value.dtype],
                Dims(tuple(value.shape)),
                name,
                stream,
            )
        except Exception as error:
            report_callback_failure("process_debug_tensor()", error)


class RunObserver:
    """Times each layer of one run, waiting for it to finish, and passes it to debug tensors.

    Args:
        device: Where the layers run.
        stream: Handle of the stream in use.
        is_timed: Whether times are taken.
        debug: Shows tensors, or None.

    Attributes:
        times: Layer names, and milliseconds, in order of execution.
    """

    def __init__(self, device: torch.device, stream: int, *, is_timed: bool, debug: DebugTensors | None) -> None:
        self._device, self._stream = device, stream
        self._is_timed, self._debug = is_timed, debug
        self._started = 0.0
        self.times: list[tuple[str, float]] = []

    def before(self, call: LayerCall, operands: Sequence[Value | None]) -> None:
        """A layer is about to run."""
        self._started = time.perf_counter()

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """A layer ran."""
        if self._is_timed:
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self.times.append((call.name, (time.perf_counter() - self._started) * 1e3))
        if self._debug is not None:
            self._debug.show(call, outputs, self._stream)


class ContextShapes:
    """The tensors of a context, and what is known of their extents.

    Args:
        state: The engine.
        reporter: Receives what is wrong with a question.

    Attributes:
        bindings: Every input and output, in the order of the engine.
        by_name: The same by name.
        inputs: The inputs.
        outputs: The outputs.
        profile: Index of the profile in use.
        values: Inputs as the program takes them, while nothing that they depend on has changed.
        is_checked: Whether shapes and the presence of addresses passed the checks of a run.
    """

    def __init__(self, state: EngineState, reporter: Reporter) -> None:
        self._state = state
        self._reporter = reporter
        self.bindings = [Binding(tensor, state.device) for tensor in state.info.io]
        self.by_name = {binding.tensor.name: binding for binding in self.bindings}
        self.inputs = [binding for binding in self.bindings if binding.tensor.is_input]
        self.outputs = [binding for binding in self.bindings if not binding.tensor.is_input]
        self.profile = 0
        self.values: list[Value] | None = None
        self.is_checked = False
        self._has_named_dimensions = any(any(binding.tensor.dimension_names) for binding in self.inputs)
        self._reset()

    def select_profile(self, index: int) -> None:
        """See `IExecutionContext.set_optimization_profile_async`."""
        count = len(self._state.info.profiles)
        if not 0 <= index < count:
            message = f"profile {index} does not exist: the engine has {count}"
            self._reporter.error("set_optimization_profile_async", message)
            raise RuntimeError(message)
        self.profile = index
        self._reset()

    def _reset(self) -> None:
        """Forgets the shapes of inputs that the profile does not determine."""
        shapes = self._state.info.profiles[self.profile].shapes
        for binding in self.inputs:
            tensor = binding.tensor
            allowed = shapes.get(tensor.name)
            if not tensor.is_dynamic:
                binding.shape = tensor.shape
            elif allowed is not None and allowed.min == allowed.max:
                binding.shape = allowed.min
            else:
                binding.shape = None
        self.forget()

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        """See `IExecutionContext.set_input_shape`."""
        binding = self.by_name.get(name)
        extents = tuple(shape)
        if binding is not None and binding.shape == extents:
            return True
        if len(extents) > MAX_RANK:
            raise RuntimeError(f"{name}: a shape has at most {MAX_RANK} extents, not {len(extents)}")
        extents = tuple(to_integer(extent) for extent in extents)
        if binding is None or (self.profile, extents) not in binding.allowed:
            violation = self._shape_violation(binding, extents)
            if violation is not None or binding is None:
                self._reporter.error(f"set_input_shape({to_text(name)!r}, {extents})", violation or "")
                return False
            binding.allowed[self.profile, extents] = None
        if binding.shape is None or self._has_named_dimensions:
            self.is_checked = False
        binding.shape = extents
        self.values = None
        return True

    def forget(self) -> None:
        """The next run checks everything again."""
        self.values = None
        self.is_checked = False

    def _shape_violation(self, binding: Binding | None, extents: Shape) -> str | None:
        if binding is None:
            return "the engine has no tensor of that name"
        if not binding.tensor.is_input:
            return "only inputs take a shape, and this is an output"
        declared = binding.tensor.shape
        if len(extents) != len(declared):
            return f"rank {len(extents)} does not match the network's {declared}"
        if any(extent < 0 for extent in extents):
            return "an extent is negative"
        for axis, (extent, known) in enumerate(zip(extents, declared, strict=True)):
            if known != -1 and extent != known:
                return f"axis {axis} is {extent}, but the network fixes it to {known}"
        allowed = self._state.info.profiles[self.profile].shapes.get(binding.tensor.name)
        violation = allowed.violation(extents) if allowed is not None else None
        return None if violation is None else f"profile {self.profile}: {violation}"

    @property
    def are_complete(self) -> bool:
        """Whether every dynamic input has a shape."""
        return all(binding.shape is not None for binding in self.inputs)

    def infer(self) -> list[str]:
        """See `IExecutionContext.infer_shapes`."""
        missing = self._insufficient_inputs()
        if missing:
            return missing
        try:
            if self._computed_shapes() is not None:
                return []
            report = self._shape_report()
        except (Refusal, LayerFailure) as error:
            self._reporter.error("infer_shapes", str(error))
            raise RuntimeError(f"infer_shapes: {error}") from error
        for binding, value in zip(self.outputs, report.outputs, strict=True):
            if binding.tensor.is_host and binding.address and isinstance(value, HostValues):
                numbers = torch.tensor(value.numbers(), dtype=value.dtype, device="cpu")
                binding.write(numbers.reshape(value.shape))
        return []

    def _insufficient_inputs(self) -> list[str]:
        return [
            binding.tensor.name
            for binding in self.inputs
            if binding.shape is None or (binding.tensor.is_host and not binding.address)
        ]

    def _computed_shapes(self) -> tuple[Shape, ...] | None:
        """Output shapes for the present input shapes, where the plan says them; no layer is asked.

        Raises:
            Refusal: What the plan says has no value for these shapes.
        """
        return self._state.output_shapes(tuple(binding.shape or () for binding in self.inputs))

    def _shape_report(self) -> ShapeReport:
        """What the present inputs mean for the outputs; remembered by the engine.

        Raises:
            Refusal: Numbers of a host input leave the profile.
            LayerFailure: A layer refused the shapes.
        """
        shapes = tuple(binding.shape or () for binding in self.inputs)
        numbers = {index: tuple(self.read_host(self.inputs[index]).numbers()) for index in self._state.host_inputs}
        return self._state.infer(shapes, numbers)

    def read_host(self, binding: Binding) -> HostValues:
        """The numbers at a host input's address, checked against the profile.

        Raises:
            Refusal: A number leaves the profile.
        """
        values = binding.read_numbers()
        allowed = self._state.info.profiles[self.profile].values.get(binding.tensor.name)
        if allowed is not None:
            violation = allowed.violation([int(number) for number in values.numbers()])
            if violation is not None:
                raise Refusal(f"{binding.tensor.name!r}: profile {self.profile}: {violation}")
        return values

    def shape_of(self, name: str) -> Dims:
        """Extents as far as they are known, -1 for the others; invalid dims for an unknown name."""
        binding = self.by_name.get(name)
        if binding is None:
            self._reporter.error("get_tensor_shape", f"the engine has no tensor named {to_text(name)!r}")
            return Dims._invalid()
        return Dims(self._known_shape(binding))

    def _known_shape(self, binding: Binding) -> Shape:
        tensor = binding.tensor
        if tensor.is_input:
            return tensor.shape if binding.shape is None else binding.shape
        if not tensor.is_dynamic or self._insufficient_inputs():
            return tensor.shape
        try:
            computed = self._computed_shapes()
            if computed is not None:
                return computed[self.outputs.index(binding)]
            value = self._shape_report().outputs[self.outputs.index(binding)]
        except (Refusal, LayerFailure) as error:
            self._reporter.error(f"shape of {tensor.name!r}", str(error))
            return tensor.shape
        return tensor.shape if value is None else tuple(int(extent) for extent in value.shape)

    def announced(self, binding: Binding) -> tuple[Shape | None, int | None]:
        """Extents of an output; where they depend on data, the greatest size in bytes. None for what is not known.

        Raises:
            Refusal: The layers do not take the shapes of the inputs.
        """
        if not binding.tensor.is_dynamic:
            return binding.tensor.shape, None
        at = self.outputs.index(binding)
        try:
            computed = self._computed_shapes()
            if computed is not None:
                return computed[at], None
            report = self._shape_report()
        except LayerFailure as failure:  # whoever binds memory was told nothing, and must not be written to
            raise Refusal(str(failure), ErrorCodeTRT.FAILED_EXECUTION) from failure
        value, bound = report.outputs[at], report.bounds[at]
        if value is not None:
            return tuple(int(extent) for extent in value.shape), None
        return None, None if bound is None else binding.bytes_of(bound)

    def strides_of(self, name: str) -> Dims:
        """Distance between neighbours along each axis, in elements, or in vectors where the format has them."""
        shape = self.shape_of(name)
        if not shape._is_valid:
            return shape
        layout = LAYOUTS.get(self.by_name[name].tensor.format)
        if layout is not None:
            return Dims(layout.strides(tuple(shape)))
        strides: list[int] = []
        step = 1
        for extent in reversed(tuple(shape)):
            strides.append(step)
            step = -1 if extent == -1 or step == -1 else step * max(extent, 1)
        return Dims(strides[::-1])

    def greatest_bytes_of(self, name: str) -> int:
        """Upper bound, in bytes, of an output for the present shapes; -1 when there is none."""
        binding = self.by_name.get(name)
        if binding is None or binding.tensor.is_input:
            self._reporter.error("get_max_output_size", f"the engine has no output named {to_text(name)!r}")
            return -1
        shape: Shape | None = self._known_shape(binding)
        if shape is not None and -1 in shape:
            shape = None
            try:
                if not self._insufficient_inputs():
                    shape = self._shape_report().bounds[self.outputs.index(binding)]
            except (Refusal, LayerFailure) as error:
                self._reporter.error(f"get_max_output_size({name!r})", str(error))
        return -1 if shape is None else binding.bytes_of(shape)

    def peak_bytes(self) -> int:
        """Bytes of intermediate values for the present shapes; 0 when inputs are not specified."""
        return 0 if self._insufficient_inputs() else self._shape_report().peak_bytes


_MOST_NOTED: Final = 1024
"""Addresses of inputs or outputs that are noted before all are looked at again."""


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
        device: Where the engine runs.
    """

    def __init__(
        self, state: EngineState, shapes: ContextShapes, times: LayerTimes, debug: DebugTensors, reporter: Reporter
    ) -> None:
        self.allocators: dict[str, IOutputAllocator] = {}
        self.debug_sync = False
        self.input_consumed_event = 0
        self.lacks_memory = False
        self.replay = _replay(state)
        self._direct: Launcher = DirectLauncher(state.runner, offers_memory=state.takes_memory)
        self._state = state
        self._shapes = shapes
        self._times = times
        self._debug = debug
        self._reporter = reporter
        self.device = self._device = state.device
        self._kind = state.device.type
        self._is_cuda = self._kind == "cuda"
        self._inputs, self._outputs = shapes.inputs, shapes.outputs
        self._host_inputs = state.host_inputs
        self._aliases = [
            (binding, shapes.by_name[binding.tensor.aliased_input])
            for binding in self._outputs
            if binding.tensor.aliased_input is not None
        ]
        self._updated = frozenset(state.loaded.updates.values())
        self._in_place: list[Binding] = []  # inputs whose memory an output overwrites when all is computed
        # Where inputs and outputs lie, or lay since these were noted.
        self._read_addresses: set[int] = set()
        self._written_addresses: set[int] = set()
        self._positions = {binding.tensor.name: at for at, binding in enumerate(self._inputs)}
        self._moved: list[int] = []  # positions of inputs that have other memory than their `values`
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
                f"set_tensor_address({name!r})", f"address {address:#x} is not aligned to {CUDA_ALIGNMENT} bytes"
            )
            return False
        if not (address and binding.address):
            self._shapes.forget()
        elif self._shapes.values is not None and not self._moves_alone(binding, address):
            self._shapes.values = None
        binding.address = address
        return True

    def _moves_alone(self, binding: Binding, address: int) -> bool:
        """Whether a tensor that moves shares no memory with the other side, before and after; notes where it lies."""
        is_input = binding.tensor.is_input
        own, others = self._written_addresses, self._read_addresses
        if is_input:
            own, others = others, own
        if address in others or binding.address in others or len(own) > _MOST_NOTED:
            return False
        own.add(address)
        if is_input:
            self._moved.append(self._positions[binding.tensor.name])
        return True

    def run(self, stream_handle: int) -> bool:
        """Runs the engine; see `IExecutionContext.execute_async_v3`."""
        handle = stream_handle if type(stream_handle) is int else to_integer(stream_handle)
        try:
            values = self._shapes.values
            if values is None:
                values = self._prepare()
            elif self._moved:
                values = self._shapes.values = list(values)
                for at in self._moved:
                    values[at] = self._inputs[at].input_value()
                self._moved.clear()
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
            self._reporter.error("execute_async_v3", str(error), code, is_known=self._state.has_said(error))
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
        written = self._written_addresses = {binding.address for binding in self._outputs}
        tied = [binding for binding in self._inputs if binding.address in written]
        self._in_place = [binding for binding in tied if binding.tensor.id not in self._updated]
        self._read_addresses = {binding.address for binding in self._inputs}
        self._moved.clear()
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
                f"{missing} weights of this stripped engine are missing: refit it first", ErrorCodeTRT.INVALID_STATE
            )

    def _check_address(self, binding: Binding) -> None:
        tensor = binding.tensor
        if binding.address:
            return
        optional = self._state.shape_only_inputs if tensor.is_input else self.allocators
        if tensor.name not in optional:
            raise Refusal(f"{tensor.name!r} has no address: call set_tensor_address first", ErrorCodeTRT.INVALID_STATE)

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
        """Notes for each output what whoever bound its memory was told of its size.

        Raises:
            Refusal: The layers do not take these shapes, or nothing could be told.
        """
        for binding in self._outputs:
            binding.shape = binding.room = None
            if binding.tensor.name not in self.allocators:
                binding.shape, binding.room = self._shapes.announced(binding)
                if binding.shape is None and binding.room is None:
                    raise Refusal(
                        f"the size of output {binding.tensor.name!r} depends on data and has no bound, so no memory is "
                        "known to be large enough: call set_output_allocator",
                        ErrorCodeTRT.INVALID_STATE,
                    )

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
            if current_stream_handle(self._device.index) == handle:
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
        is_timed = self._times.profiler is not None
        debug = self._debug if self._debug.is_active else None
        if debug is not None:
            debug.show_inputs([binding.tensor.id for binding in self._inputs], values, stream)
        observer = RunObserver(self._device, stream, is_timed=is_timed, debug=debug)
        results = self._state.observable.run_observed(values, observer)
        if is_timed:
            self._times.take(observer.times)
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
    from trt_portable.execution.replay import ReplayLauncher, can_replay  # only CUDA needs it

    return ReplayLauncher(state, state.runner) if can_replay(state) else None


class IRuntimeConfig(Sealed):
    """How contexts are created; made by `ICudaEngine.create_runtime_config`."""

    def __init__(self) -> None:
        self._strategy = ExecutionContextAllocationStrategy.STATIC

    def set_execution_context_allocation_strategy(
        self, strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    ) -> None:
        """Chooses who provides memory for intermediate values.

        Raises:
            TypeError: It is no `ExecutionContextAllocationStrategy`.
        """
        self._strategy = instance_of(ExecutionContextAllocationStrategy, strategy, "strategy")

    def get_execution_context_allocation_strategy(self) -> ExecutionContextAllocationStrategy:
        """Who provides memory for intermediate values."""
        return self._strategy


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
    temporary_allocator = optional_of(IGpuAllocator, "Kept and reported.")

    def __init__(
        self,
        engine: EngineQueries,
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
        self._aux_streams: tuple[int, ...] = ()
        self._communicator: object = None

    @property
    def engine(self) -> EngineQueries:
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

    debug_sync = forwarded("_execution", "debug_sync", "Whether each run waits until the device is done.", to_boolean)

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
        if profiler is not None:
            instance_of(IProfiler, profiler, "profiler")
        self._times.profiler = profiler

    enqueue_emits_profile = forwarded(
        "_times",
        "are_reported_at_once",
        "Whether a run reports to the profiler itself, or `report_to_profiler` does later.",
        to_boolean,
    )

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
        if listener is not None:
            instance_of(IDebugListener, listener, "listener")
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

    unfused_tensors_debug_state = forwarded(
        "_debug", "unfused_state", "Whether all other tensors are shown to the debug listener as well.", to_boolean
    )

    # What is kept and reported ---------------------------------------------------------------------

    def set_device_memory(self, memory: int, size: int) -> None:
        """Accepts memory for intermediate values; only for contexts with user-managed memory."""
        memory, size = to_integer(memory), to_integer(size)
        if self._strategy is not ExecutionContextAllocationStrategy.USER_MANAGED:
            self._reporter.error(
                "set_device_memory", "the context was not created with user-managed memory", ErrorCodeTRT.INVALID_STATE
            )
            return
        needed = self._engine.get_device_memory_size_for_profile_v2(self._shapes.profile)
        if not is_aligned(memory, self._execution.device) or size < needed:
            aligned = f" aligned to {CUDA_ALIGNMENT}" if self._execution.device.type == "cuda" else ""
            self._reporter.error(
                "set_device_memory",
                f"profile {self._shapes.profile} needs {needed} bytes{aligned}, got {size} at {memory:#x}",
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

    def set_aux_streams(self, aux_streams: Sequence[int]) -> None:
        """Offers auxiliary streams; kept, since everything runs on the main stream."""
        self._aux_streams = tuple(to_integers(aux_streams))

    def set_communicator(self, communicator: Any) -> bool:
        """Keeps a communicator; collectives find the process groups of `torch.distributed` by their ranks."""
        self._communicator = communicator
        return True
