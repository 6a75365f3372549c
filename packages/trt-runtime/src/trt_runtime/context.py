"""One execution context of an engine, and what it was last given.

A call with the shapes of the call before touches nothing but addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core.errors import ExecutionError, InputError
from trt_core.extents import evaluate_extent
from trt_core.provider_log import forget_errors, take_errors
from trt_runtime.bindings import symbol_values
from trt_runtime.input_check import check_inputs
from trt_runtime.output_allocator import output_allocator

if TYPE_CHECKING:
    from trt_runtime.engine import LoadedEngine

CUDA_ALIGNMENT: Final = 256
"""Alignment of device addresses that TensorRT asks for, in bytes."""


class EngineContext:
    """An execution context; used by one call at a time.

    Args:
        engine: The engine that the context runs.
        beside: Run on a stream of its own beside the caller's, in order with it.

    Raises:
        ExecutionError: The provider could not create a context.
    """

    def __init__(self, engine: LoadedEngine, *, beside: bool = False) -> None:
        forget_errors()
        native = engine.native.create_execution_context()
        if native is None:
            raise ExecutionError(
                f"no execution context could be created for {engine.header.title}",
                why=take_errors(),
                hint="free device memory, or run fewer engines at a time",
            )
        self._native = native
        # Parts of the engine, not the engine: it keeps its contexts, and must be freed with its last user.
        self._header = engine.header
        self._host_inputs = engine.host_inputs
        self._host_outputs = engine.host_outputs
        self._unused_inputs = engine.unused_inputs
        self._dynamic_inputs = engine.dynamic_inputs
        self._device = engine.device
        self._misaligned = CUDA_ALIGNMENT - 1 if engine.device.type == "cuda" else 0
        self._inputs = [(binding.name, binding.dtype) for binding in engine.header.inputs]
        self._outputs = [(binding.name, binding.dtype) for binding in engine.header.outputs]
        on_host, host = set(engine.host_outputs), torch.device("cpu")
        self._places = [host if index in on_host else engine.device for index in range(len(self._outputs))]
        self._addresses: dict[str, int] = {}
        # What stands in for the address of a tensor without elements, which must not be null.
        self._placeholder = torch.empty(CUDA_ALIGNMENT, dtype=torch.uint8, device=self._device)
        self._nothing = self._placeholder.data_ptr()
        self._allocators: dict[int, Any] = {}
        self._shapes: list[torch.Size] | None = None
        self._host_values: list[Any] = []
        self._output_shapes: list[tuple[int, ...] | None] = []
        self._side = torch.cuda.Stream(self._device) if beside else None

    def run(self, inputs: list[torch.Tensor], stream: torch.cuda.Stream | None) -> list[torch.Tensor]:
        """Enqueues one execution.

        Args:
            inputs: Tensors in the order of the header.
            stream: The current CUDA stream of the caller; None on the CPU.

        Returns:
            Outputs in the order of the header, ready on `stream`.

        Raises:
            InputError: A tensor does not fit.
            ExecutionError: The provider failed; its messages are quoted.
        """
        pointers = self._pointers(inputs)
        if pointers is None:
            inputs = self._adopt(inputs)
            pointers = [value.data_ptr() for value in inputs]
        native, addresses = self._native, self._addresses
        for (name, _), pointer in zip(self._inputs, pointers):  # noqa: B905 - warm path, lengths agree
            pointer = pointer or self._nothing
            if addresses.get(name) != pointer:
                self._set_address(name, pointer)
        outputs: list[torch.Tensor] = []
        nothing = self._nothing
        for (name, dtype), device, shape in zip(self._outputs, self._places, self._output_shapes):  # noqa: B905
            if shape is None:
                outputs.append(self._placeholder)
                continue
            output = torch.empty(shape, dtype=dtype, device=device)
            outputs.append(output)
            pointer = output.data_ptr() or nothing
            if addresses.get(name) != pointer:
                self._set_address(name, pointer)
        succeeded = native.execute_async_v3(0) if stream is None else self._enqueue(stream)
        if not succeeded:
            self._shapes = None
            raise ExecutionError(
                f"{self._header.title} failed while running",
                where=f"input shapes {[tuple(value.shape) for value in inputs]}",
                why=take_errors() or "the provider gave no reason",
            )
        for index, allocator in self._allocators.items():
            outputs[index] = allocator.take(self._outputs[index][0])
            if stream is not None and self._side is not None and outputs[index].is_cuda:
                outputs[index].record_stream(stream)
        if self._host_outputs and stream is not None:
            stream.synchronize()
            for index in self._host_outputs:
                outputs[index] = outputs[index].to(self._device)
        return outputs

    def _pointers(self, inputs: list[torch.Tensor]) -> list[int] | None:
        """Addresses of inputs that fit as they are and have the shapes of the last call; else None."""
        if self._host_inputs or [value.shape for value in inputs] != self._shapes:
            return None
        device, misaligned = self._device, self._misaligned
        pointers = []
        for value, (_, dtype) in zip(inputs, self._inputs):  # noqa: B905 - warm path, lengths agree
            pointer = value.data_ptr()
            if value.dtype is not dtype or value.device != device or pointer & misaligned or not value.is_contiguous():
                return None
            pointers.append(pointer)
        return pointers

    def _adopt(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Checks inputs and brings them into the form that the provider takes: dense and aligned."""
        check_inputs(self._header, inputs, self._device, self._host_inputs)
        adopted = []
        for index, value in enumerate(inputs):
            dense = (value.cpu() if index in self._host_inputs else value).contiguous()
            if index not in self._host_inputs and dense.data_ptr() & self._misaligned:
                dense = dense.clone()
            adopted.append(dense)
        host_values = [adopted[index].tolist() for index in self._host_inputs]
        shapes = [value.shape for value in adopted]
        if shapes != self._shapes or host_values != self._host_values:
            self._shapes = None
            self._set_shapes(adopted)
            self._shapes, self._host_values = shapes, host_values
        return adopted

    def _set_shapes(self, inputs: list[torch.Tensor]) -> None:
        native, header = self._native, self._header
        forget_errors()
        for index in self._dynamic_inputs:
            shape = tuple(inputs[index].shape)
            if not native.set_input_shape(self._inputs[index][0], shape):
                raise InputError(
                    f"{header.title} refuses the shape {shape} for input {self._inputs[index][0]!r}",
                    why=take_errors(),
                )
        for index in self._host_inputs:
            pointer = inputs[index].data_ptr() or self._nothing
            self._set_address(self._inputs[index][0], pointer)
        try:
            missing = native.infer_shapes() if self._dynamic_inputs or self._host_inputs else []
            shapes = [tuple(native.get_tensor_shape(name)) for name, _ in self._outputs]
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{header.title} cannot compute its output shapes",
                where=f"input shapes {[tuple(value.shape) for value in inputs]}",
                why=take_errors() or str(error),
            ) from error
        if missing:
            raise ExecutionError(f"{header.title} lacks the shapes or values of {', '.join(missing)}")
        self._check_output_shapes(inputs, shapes)
        self._output_shapes = []
        for index, shape in enumerate(shapes):
            is_open = any(extent < 0 for extent in shape)
            self._output_shapes.append(None if is_open else shape)
            if is_open and index not in self._allocators:
                self._set_allocator(index)

    def _check_output_shapes(self, inputs: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> None:
        """What the header promised to graphs around the engine is what the engine computes."""
        header = self._header
        symbols = symbol_values(header.symbols, inputs)
        for binding, shape in zip(header.outputs, shapes, strict=True):
            promised = [-1 if extent is None else evaluate_extent(extent, symbols) for extent in binding.shape]
            agrees = len(promised) == len(shape) and all(
                -1 in (left, right) or left == right for left, right in zip(promised, shape, strict=True)
            )
            if not agrees:
                raise ExecutionError(
                    f"output {binding.name!r} of {header.title} has shape {shape}, its header says {tuple(promised)}",
                    hint="compile the model again; this is a defect of the compiler, please report it",
                )

    def _set_allocator(self, index: int) -> None:
        name, dtype = self._outputs[index]
        allocator = output_allocator(dtype, self._places[index])
        if not self._native.set_output_allocator(name, allocator):
            raise ExecutionError(
                f"{self._header.title} refuses an allocator for output {name!r}",
                why=take_errors(),
            )
        self._allocators[index] = allocator

    def _set_address(self, name: str, pointer: int) -> None:
        if name not in self._unused_inputs and not self._native.set_tensor_address(name, pointer):
            self._shapes = None
            raise ExecutionError(f"{self._header.title} refuses the address of {name!r}", why=take_errors())
        self._addresses[name] = pointer

    def _enqueue(self, stream: torch.cuda.Stream) -> bool:
        """Enqueues on the caller's stream, or beside it."""
        side = self._side
        target = stream if side is None else side
        for allocator in self._allocators.values():
            allocator.stream = target
        if side is None:
            return bool(self._native.execute_async_v3(stream.cuda_stream))
        side.wait_stream(stream)
        succeeded = bool(self._native.execute_async_v3(side.cuda_stream))
        stream.wait_stream(side)
        return succeeded
