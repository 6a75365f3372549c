"""`IExecutionContext`: one user of an engine, with its own shapes, addresses and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from trt_portable.allocators import IOutputAllocator, notify_shape, request_output
from trt_portable.binding import Binding, dense_bytes
from trt_portable.context_settings import ContextSettings
from trt_portable.device import external_stream, record_event
from trt_portable.dims import Dims
from trt_portable.engine_info import Shape
from trt_portable.enums import ErrorCodeTRT, ExecutionContextAllocationStrategy
from trt_portable.error_recorder import Reporter
from trt_portable.errors import Refusal
from trt_portable.memory import CUDA_ALIGNMENT, is_aligned
from trt_portable.observers import LayerTimer, RunObserver
from trt_portable.program import LayerFailure
from trt_portable.shape_report import ShapeReport
from trt_portable.values import HostValues, Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.engine import ICudaEngine
    from trt_portable.runtime_config import IRuntimeConfig

MAX_RANK: Final = Dims.MAX_DIMS


class IExecutionContext(ContextSettings):
    """Runs an engine; made by `ICudaEngine.create_execution_context`. One thread at a time.

    Any number of contexts may use the same engine, and the same profile, at once.
    """

    def __init__(
        self,
        engine: ICudaEngine,
        strategy: ExecutionContextAllocationStrategy,
        config: IRuntimeConfig,
        reporter: Reporter,
    ) -> None:
        super().__init__(engine, strategy, reporter)
        self._config = config
        self._device = engine._device
        self._is_cuda = engine._device.type == "cuda"
        self._bindings = [Binding(tensor, engine._device) for tensor in engine._info.io]
        self._by_name = {binding.tensor.name: binding for binding in self._bindings}
        self._inputs = [binding for binding in self._bindings if binding.tensor.is_input]
        self._outputs = [binding for binding in self._bindings if not binding.tensor.is_input]
        self._allocators: dict[str, IOutputAllocator] = {}
        self._profile = 0
        self._values: list[Value] | None = None  # inputs as the program takes them, while valid
        self._in_place: list[Binding] = []  # inputs whose memory an output overwrites
        self._reset_shapes()

    def get_runtime_config(self) -> IRuntimeConfig:
        """The configuration that the context was created with."""
        return self._config

    # Profiles and shapes ---------------------------------------------------------------------------

    @property
    def active_optimization_profile(self) -> int:
        """Index of the profile in use."""
        return self._profile

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """Switches to another profile; input shapes must be set again.

        Raises:
            RuntimeError: There is no such profile.
        """
        index = int(profile_index)
        count = len(self._engine._info.profiles)
        if not 0 <= index < count:
            message = f"profile {index} does not exist: the engine has {count}"
            self._reporter.error("set_optimization_profile_async", message)
            raise RuntimeError(message)
        self._profile = index
        self._reset_shapes()
        return True

    def _reset_shapes(self) -> None:
        """Forgets the shapes of inputs that the profile does not determine."""
        shapes = self._engine._info.profiles[self._profile].shapes
        for binding in self._inputs:
            tensor = binding.tensor
            allowed = shapes.get(tensor.name)
            if not tensor.is_dynamic:
                binding.shape = tensor.shape
            elif allowed is not None and allowed.min == allowed.max:
                binding.shape = allowed.min
            else:
                binding.shape = None
        self._values = None

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        """Sets the extents of an input.

        Returns:
            False, with a report, for an unknown name, an output, or extents that the network or the
            profile does not allow.

        Raises:
            RuntimeError: More than 8 extents.
        """
        binding = self._by_name.get(name)
        extents = tuple(shape)
        if binding is not None and binding.shape == extents:
            return True
        if len(extents) > MAX_RANK:
            raise RuntimeError(f"{name}: a shape has at most {MAX_RANK} extents, not {len(extents)}")
        extents = tuple(int(extent) for extent in extents)
        violation = self._shape_violation(binding, extents)
        if violation is not None or binding is None:
            self._reporter.error(f"set_input_shape({name!r}, {extents})", violation or "")
            return False
        binding.shape = extents
        self._values = None
        return True

    def _shape_violation(self, binding: Binding | None, extents: Shape) -> str | None:
        if binding is None:
            return "the engine has no tensor of that name"
        if not binding.tensor.is_input:
            return "only inputs take a shape, and this is an output"
        declared = binding.tensor.shape
        if len(extents) != len(declared):
            return f"rank {len(extents)} does not match the network's {declared}"
        for axis, (extent, known) in enumerate(zip(extents, declared, strict=True)):
            if known != -1 and extent != known:
                return f"axis {axis} is {extent}, but the network fixes it to {known}"
        allowed = self._engine._info.profiles[self._profile].shapes.get(binding.tensor.name)
        violation = allowed.violation(extents) if allowed is not None else None
        return None if violation is None else f"profile {self._profile}: {violation}"

    @property
    def all_binding_shapes_specified(self) -> bool:
        """Whether every dynamic input has a shape."""
        return all(binding.shape is not None for binding in self._inputs)

    def infer_shapes(self) -> list[str]:
        """Computes output shapes from input shapes and host inputs, and writes the host outputs.

        Returns:
            Names of inputs that lack a shape or, on the host, an address; empty when all is known.

        Raises:
            RuntimeError: The layers do not accept these shapes, or numbers leave the profile.
        """
        missing = self._insufficient_inputs()
        if missing:
            return missing
        try:
            report = self._shape_report()
        except (Refusal, LayerFailure) as error:
            self._reporter.error("infer_shapes", str(error))
            raise RuntimeError(f"infer_shapes: {error}") from error
        for binding, value in zip(self._outputs, report.outputs, strict=True):
            if binding.tensor.is_host and binding.address and isinstance(value, HostValues):
                numbers = torch.tensor(value.numbers(), dtype=value.dtype)
                binding.write(numbers.reshape(value.shape))
        return []

    def _insufficient_inputs(self) -> list[str]:
        return [
            binding.tensor.name
            for binding in self._inputs
            if binding.shape is None or (binding.tensor.is_host and not binding.address)
        ]

    def _shape_report(self) -> ShapeReport:
        """What the present inputs mean for the outputs; remembered by the engine.

        Raises:
            Refusal: Numbers of a host input leave the profile.
            LayerFailure: A layer refused the shapes.
        """
        shapes = tuple(binding.shape or () for binding in self._inputs)
        numbers = {index: tuple(self._read_host(self._inputs[index]).numbers()) for index in self._engine._host_inputs}
        return self._engine._infer(shapes, numbers)

    def _read_host(self, binding: Binding) -> HostValues:
        """The numbers at a host input's address, checked against the profile.

        Raises:
            Refusal: A number leaves the profile.
        """
        values = binding.read_numbers()
        allowed = self._engine._info.profiles[self._profile].values.get(binding.tensor.name)
        if allowed is not None:
            violation = allowed.violation([int(number) for number in values.numbers()])
            if violation is not None:
                raise Refusal(f"{binding.tensor.name!r}: profile {self._profile}: {violation}")
        return values

    def get_tensor_shape(self, name: str) -> Dims:
        """Extents as far as they are known, -1 for the others; invalid dims for an unknown name."""
        binding = self._by_name.get(name)
        if binding is None:
            self._reporter.error("get_tensor_shape", f"the engine has no tensor named {name!r}")
            return Dims._invalid()
        return Dims(self._known_shape(binding))

    def _known_shape(self, binding: Binding) -> Shape:
        tensor = binding.tensor
        if tensor.is_input:
            return tensor.shape if binding.shape is None else binding.shape
        if not tensor.is_dynamic or self._insufficient_inputs():
            return tensor.shape
        try:
            value = self._shape_report().outputs[self._outputs.index(binding)]
        except (Refusal, LayerFailure) as error:
            self._reporter.error(f"shape of {tensor.name!r}", str(error))
            return tensor.shape
        return tensor.shape if value is None else tuple(int(extent) for extent in value.shape)

    def get_tensor_strides(self, name: str) -> Dims:
        """Distance in elements between neighbours along each axis: dense and row-major."""
        shape = self.get_tensor_shape(name)
        if not shape._is_valid:
            return shape
        strides: list[int] = []
        step = 1
        for extent in reversed(tuple(shape)):
            strides.append(step)
            step = -1 if extent == -1 or step == -1 else step * max(extent, 1)
        return Dims(strides[::-1])

    def get_max_output_size(self, name: str) -> int:
        """Upper bound, in bytes, of an output for the present shapes; -1 when there is none."""
        binding = self._by_name.get(name)
        if binding is None or binding.tensor.is_input:
            self._reporter.error("get_max_output_size", f"the engine has no output named {name!r}")
            return -1
        shape: Shape | None = self._known_shape(binding)
        if shape is not None and -1 in shape:
            shape = None
            if not self._insufficient_inputs():
                shape = self._shape_report().bounds[self._outputs.index(binding)]
        return -1 if shape is None else dense_bytes(shape, binding.tensor.torch_dtype)

    def update_device_memory_size_for_shapes(self) -> int:
        """Bytes of intermediate values for the present shapes; 0 when inputs are not specified."""
        return 0 if self._insufficient_inputs() else self._shape_report().peak_bytes

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
        if not is_aligned(address, binding.device):
            self._reporter.error(
                f"set_tensor_address({name!r})",
                f"address {address:#x} is not aligned to {CUDA_ALIGNMENT} bytes",
            )
            return False
        binding.address = address
        self._values = None
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
        self._values = None
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
            values = self._values if self._values is not None else self._prepare()
            if self._engine._host_inputs:
                values = self._with_host_values(values)
            if self._is_cuda:
                self._run_on(int(stream_handle), values)
            else:
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
        """Checks what execution needs, in the documented order, and wraps the inputs.

        Raises:
            Refusal: A shape, an address or weights are missing.
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
        missing = len(self._engine._weights.missing)
        if missing:
            raise Refusal(
                f"{missing} weights of this stripped engine are missing: refit it first",
                ErrorCodeTRT.INVALID_STATE,
            )
        written = {binding.address for binding in self._outputs if binding.address}
        self._in_place = [binding for binding in self._inputs if binding.address in written]
        self._values = [binding.input_value() for binding in self._inputs]
        return self._values

    def _check_address(self, binding: Binding) -> None:
        tensor = binding.tensor
        if not binding.address:
            optional = (
                tensor.name in self._engine._shape_only_inputs if tensor.is_input else tensor.name in self._allocators
            )
            if not optional:
                raise Refusal(
                    f"{tensor.name!r} has no address: call set_tensor_address first",
                    ErrorCodeTRT.INVALID_STATE,
                )
        source = tensor.aliased_input
        if source is not None and binding.address != self._by_name[source].address:
            raise Refusal(
                f"output {tensor.name!r} updates input {source!r} in place, so both must be bound to the same address"
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
        for index in self._engine._host_inputs:
            values[index] = self._read_host(self._inputs[index])
        return values

    def _run_on(self, handle: int, values: list[Value]) -> None:
        """Runs on a CUDA stream; entering it costs more than asking whether it is current anyway."""
        if torch.cuda.current_stream(self._device).cuda_stream == handle:
            self._run(values, handle)
        else:
            with torch.cuda.stream(external_stream(handle, self._device)):
                self._run(values, handle)
        if self._input_consumed_event:
            record_event(self._input_consumed_event, handle)
        if self.debug_sync:
            external_stream(handle, self._device).synchronize()

    def _run(self, values: list[Value], stream: int) -> None:
        with torch.inference_mode():
            if self._profiler is None and not self._debug.is_active:
                results = self._engine._program.run(values)
            else:
                results = self._run_observed(values, stream)
            if self._in_place:
                results = [self._without_views(as_tensor(value)) for value in results]
            for binding, value in zip(self._outputs, results):  # noqa: B905
                if self._allocators and binding.tensor.name in self._allocators:
                    self._allocate(binding, value, stream)
                binding.write(value)

    def _run_observed(self, values: list[Value], stream: int) -> list[Value]:
        timer = None if self._profiler is None else LayerTimer(self._device)
        debug = self._debug if self._debug.is_active else None
        results = self._engine._program.run_observed(values, RunObserver(timer, debug, stream))
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
        size = max(dense_bytes(shape, binding.tensor.torch_dtype), 1)
        allocator = self._allocators[name]
        address = request_output(allocator, name, binding.address, size, CUDA_ALIGNMENT, stream)
        if not address or not is_aligned(address, binding.device):
            raise Refusal(
                f"the output allocator of {name!r} returned {address:#x} for {size} bytes",
                ErrorCodeTRT.FAILED_ALLOCATION,
            )
        binding.address = address
        notify_shape(allocator, name, Dims(shape))
