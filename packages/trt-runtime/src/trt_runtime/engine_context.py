"""One execution context of an engine, and what it was last given.

A call is three things: binding the inputs, placing the outputs, and launching. A call with the shapes of the call
before touches nothing but addresses; what other shapes mean for the outputs is remembered for the calls that follow.
"""

from __future__ import annotations

import ctypes
import gc
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import ExecutionError, InputError
from trt_core.log import forget_errors, note_error, take_errors
from trt_core.nesting import dense_strides
from trt_core.output_allocator import output_allocator
from trt_core.process_groups import GroupMembers, communicator, show_ranks
from trt_core.wording import kind_of
from trt_runtime.bindings import require_addressable, shape_in_call, symbol_values
from trt_runtime.header import PlanHeader
from trt_runtime.input_check import check_inputs, check_places

if TYPE_CHECKING:
    from trt_runtime.engine import LoadedEngine


CUDA_ALIGNMENT: Final = 256
"""Alignment of device addresses that TensorRT asks for, in bytes."""

_HOST: Final = torch.device("cpu")
_shape: Final = operator.attrgetter("shape")


class _Slot:
    """One tensor of the engine.

    Attributes:
        name, dtype: As in the header.
        device: Where its memory lies.
        address: What it is bound to; -1 for nothing yet.
        is_used: Whether the provider knows it.
    """

    __slots__ = ("address", "device", "dtype", "is_used", "name")

    def __init__(self, name: str, dtype: torch.dtype, device: torch.device, *, is_used: bool = True) -> None:
        self.name = name
        self.dtype = dtype
        self.device = device
        self.address = -1
        self.is_used = is_used


class EngineContext:
    """An execution context; used by one call at a time.

    Args:
        engine: The engine that the context runs.
        profile: The optimization profile that it runs with, always: to switch costs TensorRT an update of its layers.

    Attributes:
        stream: Handle of the CUDA stream of the last call; 0 on the CPU.

    Raises:
        ExecutionError: The provider could not create a context.
    """

    def __init__(self, engine: LoadedEngine, profile: int = 0) -> None:
        forget_errors()
        native = engine.native.create_execution_context()
        if native is None:
            raise ExecutionError(
                f"no execution context could be created for {engine.header.title}",
                why=take_errors(),
                hint="free device memory, or run fewer engines at a time",
            )
        if profile:
            _select_profile(native, profile, engine)
        self.stream = 0
        self._native = native
        self._group = engine.header.process_group
        self._communicator = 0
        # Parts of the engine, not the engine: it keeps its contexts, and must be freed with its last user.
        self._header = engine.header
        self._known_shapes = engine.known_shapes
        self._host_inputs = engine.host_inputs
        self._host_outputs = engine.host_outputs
        self._dynamic_inputs = engine.dynamic_inputs
        self._device = engine.device
        is_cuda = engine.device.type == "cuda"
        self._order = StreamOrder(engine.device, beside_default=engine.is_tensorrt) if is_cuda else None
        self._misaligned = CUDA_ALIGNMENT - 1 if is_cuda else 0
        self._inputs = [
            _Slot(binding.name, binding.dtype, engine.device, is_used=binding.name not in engine.unused_inputs)
            for binding in engine.header.inputs
        ]
        self._outputs = [
            _Slot(binding.name, binding.dtype, _HOST if index in engine.host_outputs else engine.device)
            for index, binding in enumerate(engine.header.outputs)
        ]
        self._dtypes = engine.input_dtypes
        self._updates = [
            (index, _Slot(name, engine.header.inputs[index].dtype, engine.device))
            for index, name in engine.header.updates
        ]
        # What stands in for the address of a tensor without elements, which must not be null.
        self._placeholder = torch.empty(CUDA_ALIGNMENT, dtype=torch.uint8, device=engine.device)
        self._nothing = self._placeholder.data_ptr()
        self._allocators: dict[int, Any] = {}
        self._shapes: CallShapes | None = None
        self._last_inputs: list[torch.Size] | None = None  # None where a call must not be taken for the last one
        self._host_values: list[Any] = []
        self._ahead: tuple[CallShapes, int, bool, list[torch.Tensor]] | None = None

    def run(
        self, inputs: list[torch.Tensor], stream: int, outputs: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """Runs the engine once.

        Args:
            inputs: Tensors in the order of the header.
            stream: Handle of the current CUDA stream of the device; 0 on the CPU.
            outputs: Tensors to write to, in the order of the header; by default new ones.

        Returns:
            Outputs in the order of the header, ready on the stream.

        Raises:
            InputError: A tensor does not fit.
            ExecutionError: The provider failed; its messages are quoted.
        """
        if self._group is not None:
            self._connect(self._group)
        given, inputs = inputs, self._bind(inputs)
        if self._header.places:
            check_places(self._header, inputs)
        for index, slot in self._updates:
            address = inputs[index].data_ptr()
            if address != slot.address:
                self._set_address(slot, address)
        placed = self._place(stream) if outputs is None else self._place_in(outputs, inputs)
        self._launch(inputs, stream)
        if self._updates:
            self._hand_back_updates(given, inputs)
        if self._allocators or self._host_outputs:
            self._collect(placed)
        elif self._shapes is not None:
            self._shapes.have_run = True
        return placed

    def _hand_back_updates(self, given: Sequence[torch.Tensor], bound: Sequence[torch.Tensor]) -> None:
        """Tells PyTorch of what was updated in place; what had to be copied to be bound is copied back."""
        in_place = []
        for index, _ in self._updates:
            if given[index] is not bound[index] and given[index].data_ptr() != bound[index].data_ptr():
                given[index].copy_(bound[index])
            else:
                in_place.append(given[index])
        torch.autograd.graph.increment_version(in_place)

    def watch(self, watcher: Any) -> None:
        """Has a `trt.IProfiler` told how long each layer takes."""
        self._native.profiler = watcher

    def wait(self) -> None:
        """Waits on the host until the last run is done."""
        if self._order is not None:
            self._order.wait()

    def _connect(self, group: GroupMembers) -> None:
        """Gives the provider the communicator of its process group, where that is another one than in the last call.

        Groups end and are made again while engines live. All ranks of a group connect together.

        Raises:
            ExecutionError: This process has no such group, or the provider refuses its communicator.
        """
        ranks = show_ranks(group.ranks)
        try:
            address = communicator(group, self._device)
        except LookupError as error:
            raise ExecutionError(
                f"{self._header.title} cannot communicate with the ranks {ranks}", why=str(error)
            ) from error
        if address == self._communicator:
            return
        forget_errors()
        if not self._native.set_communicator(_new_capsule(address, None, None)):
            raise ExecutionError(
                f"{self._header.title} refuses the communicator of the ranks {ranks}",
                why=take_errors(),
                hint="let TensorRT find the NCCL that PyTorch uses (LD_LIBRARY_PATH), or keep collectives in PyTorch "
                "with torch_executed_ops",
            )
        self._communicator = address

    # Inputs ----------------------------------------------------------------------------------------

    def _bind(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Binds inputs, and returns what is bound: tensors that fit as they are, or dense copies."""
        try:
            shapes = [value.shape for value in inputs]
        except RuntimeError:  # nested tensors have none
            return self._adopt(inputs)
        if shapes != self._last_inputs and not self._recall(shapes):
            return self._adopt(inputs)
        addresses = _addresses(inputs, self._dtypes, self._device, self._misaligned)
        if addresses is None:
            return self._adopt(inputs)
        for address, slot in zip(addresses, self._inputs):  # noqa: B905 - warm path, lengths agree
            if address != slot.address:
                self._set_address(slot, address)
        return inputs

    def _recall(self, shapes: list[torch.Size]) -> bool:
        """Takes the shapes of an earlier call, also of another context; False when there was none."""
        known = None if self._host_inputs else self._known_shapes.get(tuple(shapes))
        if known is None:
            return False
        self._set_input_shapes(shapes)
        self._take_shapes(known)
        return True

    def _adopt(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Checks inputs and brings them into the form that the provider takes: dense and aligned."""
        check_inputs(self._header, inputs, self._device, self._host_inputs)
        adopted = []
        for index, value in enumerate(inputs):
            on_host = index in self._host_inputs
            dense = (value.cpu() if on_host else value).contiguous().resolve_neg()
            if not on_host and dense.data_ptr() & self._misaligned:
                dense = dense.clone()
            if not dense.data_ptr() and dense.numel():
                dense = _with_memory(dense, index, self._header)
            adopted.append(dense)
        host_values = [adopted[index].tolist() for index in self._host_inputs]
        shapes = [value.shape for value in adopted]
        if self._shapes is None or shapes != self._shapes.inputs or host_values != self._host_values:
            self._infer_shapes(adopted)
            self._host_values = host_values
        for value, slot in zip(adopted, self._inputs, strict=True):
            self._set_address(slot, value.data_ptr())
        return adopted

    def _infer_shapes(self, inputs: list[torch.Tensor]) -> None:
        """Tells the provider new input shapes, and asks it for the output shapes."""
        native, header = self._native, self._header
        shapes = [value.shape for value in inputs]
        self._set_input_shapes(shapes)
        for index in self._host_inputs:
            self._set_address(self._inputs[index], inputs[index].data_ptr())
        try:
            missing = native.infer_shapes() if self._dynamic_inputs or self._host_inputs else []
            found = [tuple(native.get_tensor_shape(slot.name)) for slot in self._outputs]
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{header.title} cannot compute its output shapes",
                where=f"input shapes {[tuple(shape) for shape in shapes]}",
                why=take_errors() or str(error),
                hint="give values that the engine is for, or compile it for others; a range of values is "
                "Input(shape, dtype=..., tensor_domain=(least, greatest + 1))"
                if self._host_inputs
                else "",
            ) from error
        if missing:
            raise ExecutionError(f"{header.title} lacks the shapes or values of {', '.join(missing)}")
        self._check_output_shapes(inputs, found)
        known = CallShapes(shapes, found)
        self._take_shapes(known)
        if self._host_inputs:
            self._last_inputs = None  # the same shapes may come with other values
        else:
            self._known_shapes[tuple(shapes)] = known

    def _set_input_shapes(self, shapes: Sequence[torch.Size]) -> None:
        self._shapes = self._last_inputs = None
        forget_errors()
        for index in self._dynamic_inputs:
            shape, name = tuple(shapes[index]), self._inputs[index].name
            if not self._native.set_input_shape(name, shape):
                raise InputError(
                    f"{self._header.title} refuses the shape {shape} for input {name!r}", why=take_errors()
                )

    def _take_shapes(self, known: CallShapes) -> None:
        for index in known.open_outputs:
            if index not in self._allocators:
                self._set_allocator(index)
        self._shapes, self._last_inputs = known, known.inputs

    def _check_output_shapes(self, inputs: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> None:
        """What the header promised to graphs around the engine is what the engine computes."""
        header = self._header
        symbols = symbol_values(header.symbols, inputs)
        for binding, shape in zip(header.outputs, shapes, strict=True):
            promised = [-1 if extent is None else extent for extent in shape_in_call(binding, symbols, header.title)]
            agrees = len(promised) == len(shape) and all(
                -1 in (left, right) or left == right for left, right in zip(promised, shape, strict=True)
            )
            if not agrees:
                raise ExecutionError(
                    f"output {binding.name!r} of {header.title} has shape {shape}, its header says {tuple(promised)}",
                    hint="compile the model again; this is a defect of the compiler, please report it",
                )
            require_addressable(binding, shape, header.title)

    def _set_address(self, slot: _Slot, address: int) -> None:
        address = address or self._nothing
        if slot.is_used and not self._native.set_tensor_address(slot.name, address):
            self._shapes = self._last_inputs = None
            raise ExecutionError(f"{self._header.title} refuses the address of {slot.name!r}", why=take_errors())
        slot.address = address

    # Outputs ---------------------------------------------------------------------------------------

    def allocate_ahead(self) -> None:
        """Allocates what the next call returns, if its shapes and stream are those of the last one.

        On CUDA the last one may still run.
        """
        if self._shapes is not None:
            outputs = [
                self._placeholder
                if strided is None
                else torch.empty_strided(*strided, dtype=slot.dtype, device=slot.device)
                for slot, strided in zip(self._outputs, self._shapes.outputs, strict=True)
            ]
            self._ahead = self._shapes, self.stream, torch.is_inference_mode_enabled(), outputs

    def forget_ahead(self) -> None:
        """Frees what was allocated for the next call."""
        self._ahead = None

    def _place_ahead(self, stream: int) -> list[torch.Tensor] | None:
        """Binds what was allocated ahead, which is one call's; None where it is not for this one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[:3] != (self._shapes, stream, torch.is_inference_mode_enabled()):
            return None
        outputs = ahead[3]
        for slot, output in zip(self._outputs, outputs, strict=True):
            if output is not self._placeholder:
                self._set_address(slot, output.data_ptr())
        return outputs

    def _place(self, stream: int) -> list[torch.Tensor]:
        """Allocates the outputs and binds them; what an allocator provides later has a placeholder."""
        assert self._shapes is not None
        if self._ahead is not None and (placed := self._place_ahead(stream)) is not None:
            return placed
        outputs = []
        for slot, strided in zip(self._outputs, self._shapes.outputs):  # noqa: B905 - warm path, lengths agree
            if strided is None:
                outputs.append(self._placeholder)
                continue
            try:
                output = torch.empty_strided(*strided, dtype=slot.dtype, device=slot.device)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # of a host without so much memory
                raise ExecutionError(
                    f"output {slot.name!r} of {self._header.title} cannot be allocated",
                    why=str(error).partition("\n")[0],
                ) from error
            outputs.append(output)
            address = output.data_ptr()
            if address != slot.address:
                self._set_address(slot, address)
        return outputs

    def _place_in(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Binds outputs that the caller provides."""
        assert self._shapes is not None
        check_outputs(
            self._header,
            outputs,
            self._shapes,
            inputs,
            self._device,
            host_outputs=self._host_outputs,
            alignment=self._misaligned + 1,
        )
        for slot, output in zip(self._outputs, outputs, strict=True):
            self._set_address(slot, output.data_ptr())
        return list(outputs)

    def _set_allocator(self, index: int) -> None:
        slot = self._outputs[index]
        allocator = output_allocator(slot.dtype, slot.device)
        if not self._native.set_output_allocator(slot.name, allocator):
            raise ExecutionError(
                f"{self._header.title} refuses an allocator for output {slot.name!r}", why=take_errors()
            )
        self._allocators[index] = allocator

    def _collect(self, outputs: list[torch.Tensor]) -> None:
        """Puts what was allocated while the engine ran, and what lies on the host, in place."""
        for index, allocator in self._allocators.items():
            outputs[index] = allocator.take(self._outputs[index].name)
            if self._order is not None:
                self._order.release(outputs[index])
        if self._host_outputs and self._order is not None:
            self._order.wait()
            for index in self._host_outputs:
                outputs[index] = outputs[index].to(self._device)

    # Launch ----------------------------------------------------------------------------------------

    def _launch(self, inputs: list[torch.Tensor], stream: int) -> None:
        if not self._enqueue(stream) and not (self._has_freed_memory() and self._enqueue(stream)):
            self._shapes = self._last_inputs = None
            raise _failed(self._header, inputs)

    def _enqueue(self, stream: int) -> bool:
        if self._order is None:
            return bool(self._native.execute_async_v3(0))
        self.stream = stream
        return bool(self._order.enqueue(self._native, stream, self._allocators.values()))

    def _has_freed_memory(self) -> bool:
        """After a run that failed, whether to try again: memory ran out, and garbage held some.

        Captured models are cycles, so weights of those that were dropped may be there still. What updates its inputs
        runs once.
        """
        errors = take_errors()
        if not self._updates and "out of memory" in errors.lower() and gc.collect():
            return True
        note_error(errors)
        return False


class TensorCalls:
    """Calls in shapes that have run before, of an engine that takes tensors as they are: nothing is bound.

    Any number of threads may call at once.

    Args:
        engine: The engine.
        runner: What runs it, of the portable provider alone.
    """

    def __init__(self, engine: LoadedEngine, runner: Any) -> None:
        self._runner = runner
        self._header = engine.header
        self._dtypes = engine.input_dtypes
        self._known_shapes = engine.known_shapes

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Runs the engine once; None where the call wants a context.

        Args:
            inputs: Tensors in the order of the header.

        Returns:
            Outputs in the order of the header.

        Raises:
            ExecutionError: The provider failed; its messages are quoted.
        """
        try:
            known = self._known_shapes.get(tuple(map(_shape, inputs)))
            if known is None or not known.have_run:
                return None
            for value, dtype in zip(inputs, self._dtypes):  # noqa: B905 - warm path, lengths agree
                if value.dtype is not dtype or not (value.is_cpu and value.data_ptr() and value.is_contiguous()):
                    return None
                if value.is_neg():
                    return None
        except RuntimeError:  # nested tensors have no shapes, and sparse ones no memory
            return None
        made: list[torch.Tensor] | None = self._runner.run(inputs, known.outputs)
        if made is None:
            raise _failed(self._header, inputs)
        return made


def _addresses(
    inputs: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype], device: torch.device, misaligned: int
) -> list[int] | None:
    """Where inputs of known shapes lie, which fit as they are; None where one of them does not."""
    addresses = []
    try:
        for value, dtype in zip(inputs, dtypes):  # noqa: B905 - warm path, lengths agree
            address = value.data_ptr()
            if (
                not address
                or value.dtype is not dtype
                or value.device != device
                or address & misaligned
                or not value.is_contiguous()
                or value.is_neg()
            ):
                return None
            addresses.append(address)
    except RuntimeError:  # a tensor without memory: sparse, meta, ...
        return None
    return addresses


def _failed(header: PlanHeader, inputs: Sequence[torch.Tensor]) -> ExecutionError:
    return ExecutionError(
        f"{header.title} failed while running",
        where=f"input shapes {[tuple(value.shape) for value in inputs]}",
        why=take_errors() or "the provider gave no reason",
    )


def _select_profile(native: Any, profile: int, engine: LoadedEngine) -> None:
    stream = torch.cuda.Stream(engine.device) if engine.device.type == "cuda" else None  # a capture may be under way
    try:
        succeeded = native.set_optimization_profile_async(profile, 0 if stream is None else stream.cuda_stream)
    except RuntimeError as error:
        raise ExecutionError(
            f"{engine.header.title} refuses its optimization profile {profile}", why=take_errors() or str(error)
        ) from error
    if not succeeded:
        raise ExecutionError(f"{engine.header.title} refuses its optimization profile {profile}", why=take_errors())
    if stream is not None:
        stream.synchronize()


# a name would have to outlive the capsule
_new_capsule: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _with_memory(value: torch.Tensor, index: int, header: PlanHeader) -> torch.Tensor:
    """A tensor that has no memory, with some: derivatives that are zero hold none, their values are known nonetheless.

    Raises:
        InputError: Its memory was given up.
    """
    if value._is_zerotensor():
        return value.clone()
    raise InputError(
        f"input {index} ({header.inputs[index].name!r}) of {header.title} has no memory",
        why=f"its shape is {tuple(value.shape)}, but its storage was resized to nothing",
        hint="give a tensor that holds its values: whoever freed its storage has to restore it first",
    )


def check_outputs(
    header: PlanHeader,
    outputs: Sequence[Any],
    shapes: CallShapes,
    inputs: Sequence[torch.Tensor],
    device: torch.device,
    *,
    host_outputs: Collection[int] = (),
    alignment: int = 1,
) -> None:
    """Checks that an engine can write its outputs to the tensors given.

    Args:
        header: Header of the engine.
        outputs: What the caller provides.
        shapes: What the engine computes for these inputs.
        inputs: What the engine reads.
        device: The device that the engine runs on.
        host_outputs: Indices of outputs that are written on the host.
        alignment: Alignment that addresses need, in bytes.

    Raises:
        InputError: The message names the output, what it is, and what it should be.
    """
    if len(outputs) != len(header.outputs):
        raise InputError(
            f"{header.title} has {len(header.outputs)} outputs, {len(outputs)} tensors were given for them",
            hint=f"give {', '.join(map(str, header.outputs))}",
        )
    for index, value in enumerate(outputs):
        place = f"the tensor for output {index} ({header.outputs[index].name!r}) of {header.title}"
        strided = shapes.outputs[index]
        if strided is None or (index in host_outputs and device.type != "cpu"):
            raise InputError(
                f"output {index} ({header.outputs[index].name!r}) of {header.title} cannot be written in place",
                why="its shape depends on data" if strided is None else "the provider writes it on the host",
                hint="call the module, and take the output that it returns",
            )
        _check_output(place, value, header.outputs[index].dtype, strided[0], device)
        if value.data_ptr() % alignment:
            raise InputError(
                f"{place} does not begin at a multiple of {alignment} bytes",
                hint="give a tensor of its own, not a view into another one",
            )
        others = [*inputs, *outputs[:index]]
        if any(_overlap(value, other) for other in others):
            raise InputError(
                f"{place} shares memory with another tensor of the call", hint="give each output memory of its own"
            )


def _check_output(place: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    wanted = f"{dtype_name(dtype)} {shape} on {device}"
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise InputError(f"{place} is {kind_of(value)}, not a plain tensor", hint=f"give {wanted}")
    found = f"{dtype_name(value.dtype)} {tuple(value.shape)} on {value.device}"
    if found != wanted:
        raise InputError(f"{place} is {found}", hint=f"give {wanted}")
    if value.layout is not torch.strided or not value.is_contiguous() or value.is_neg():
        raise InputError(f"{place} is not contiguous", hint=f"make it with torch.empty({shape}, dtype={dtype})")
    if value.requires_grad and torch.is_grad_enabled():
        raise InputError(f"{place} requires gradients, and engines compute none", hint="call under torch.no_grad()")


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    begin, other = left.data_ptr(), right.data_ptr()
    return begin < other + right.nbytes and other < begin + left.nbytes


class StreamOrder:
    """Enqueues a context on the streams of its callers; each run waits, on the device, for the one before.

    PyTorch's own streams live as long as the process, so the one of the last run is told by its handle, and is asked
    only when another one comes. A stream that the application made may be gone by then, and its handle may belong to a
    new one; there each run leaves an event behind.

    Args:
        device: A CUDA device.
        beside_default: Run beside the default stream, between two waits, instead of on it: TensorRT would
            synchronize the whole device there.

    Attributes:
        handle: Handle of the stream of the last run; -1 before the first.
    """

    def __init__(self, device: torch.device, *, beside_default: bool) -> None:
        self.handle = -1
        self._device = device
        self._beside_default = beside_default
        self._stream: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None

    def enqueue(self, native: Any, handle: int, allocators: Iterable[Any]) -> bool:
        """Enqueues one run of a context.

        Args:
            native: The provider's `IExecutionContext`.
            handle: Handle of the current stream of the device.
            allocators: Output allocators, which must know the stream that writes their memory.
        """
        if handle != self.handle or self._done is not None:
            self._follow(handle)
        beside = handle == 0 and self._beside_default
        if beside and self._side is None:
            self._side = torch.cuda.Stream(self._device)
        for allocator in allocators:
            allocator.stream = self._side if beside else self._stream
        if beside:
            return self._enqueue_beside(native)
        succeeded = bool(native.execute_async_v3(handle))
        if self._done is not None:
            self._done.record(self._stream)
        return succeeded

    def release(self, output: torch.Tensor) -> None:
        """Tells PyTorch's allocator that an output was made beside the caller's stream, if it was."""
        if self._side is not None and self._stream is not None and output.is_cuda:
            output.record_stream(self._stream)

    def wait(self) -> None:
        """Waits on the host until the last run is done."""
        if self._done is not None:
            self._done.synchronize()
        elif self._stream is not None:
            self._stream.synchronize()

    def _follow(self, handle: int) -> None:
        stream = torch.cuda.current_stream(self._device)
        if not torch.cuda.is_current_stream_capturing():  # capturing begins after all work is done
            if self._done is not None:
                stream.wait_event(self._done)
            elif self._stream is not None:
                stream.wait_stream(self._stream)
        # PyTorch gives numbers to its own streams, and knows foreign ones by their handles.
        is_foreign = handle != 0 and stream.stream_id == handle
        if not is_foreign:
            self._done = None
        elif self._done is None:
            self._done = torch.cuda.Event()
        self.handle, self._stream = handle, stream

    def _enqueue_beside(self, native: Any) -> bool:
        side, stream = self._side, self._stream
        assert side is not None and stream is not None
        side.wait_stream(stream)
        succeeded = bool(native.execute_async_v3(side.cuda_stream))
        stream.wait_stream(side)
        return succeeded


Strided = tuple[tuple[int, ...], tuple[int, ...]]
"""Extents and strides of a dense tensor."""


class CallShapes:
    """The shapes of one kind of call. Immutable, but for whether it has run.

    Args:
        inputs: Shapes of the inputs, in the order of the header.
        outputs: Extents of the outputs, -1 where they are known only after a run.

    Attributes:
        inputs: As given.
        outputs: Extents and dense strides; None where an extent is known only after a run.
        open_outputs: Indices of those.
        have_run: Whether a call with them has come to its end.
    """

    __slots__ = ("have_run", "inputs", "open_outputs", "outputs")

    def __init__(self, inputs: Sequence[torch.Size], outputs: Sequence[tuple[int, ...]]) -> None:
        self.have_run = False
        self.inputs = list(inputs)
        self.open_outputs = [index for index, shape in enumerate(outputs) if any(extent < 0 for extent in shape)]
        self.outputs: list[Strided | None] = [
            None if index in self.open_outputs else (shape, dense_strides(shape)) for index, shape in enumerate(outputs)
        ]
