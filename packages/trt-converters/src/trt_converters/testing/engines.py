"""Runs a plan once, through TensorRT's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trt_core import CompilationSettings, Device, Provider, current_provider, device_scope, trt
from trt_core.dtypes import from_trt
from trt_core.log import forget_errors, provider_logger, take_errors
from trt_core.output_allocator import output_allocator


def default_settings(tensors: Sequence[torch.Tensor] = ()) -> CompilationSettings:
    """Returns what the kit compiles with: the lowest optimization level, which builds fastest.

    Args:
        tensors: Inputs; the engine is for their device, so that it runs beside eager on the same one. TensorRT has no
            other device than the current GPU.
    """
    device = Device.current()
    if tensors and current_provider() is Provider.PORTABLE:
        device = Device(tensors[0].device)
    return CompilationSettings(optimization_level=0, device=device)


def run_engine(
    plan: Any,
    input_names: Sequence[str],
    inputs: Sequence[torch.Tensor],
    settings: CompilationSettings | None = None,
) -> tuple[torch.Tensor, ...]:
    """Deserializes a plan and runs it once.

    Args:
        plan: What the builder returned.
        input_names: Names of the bindings that the inputs belong to.
        inputs: One tensor per name.
        settings: What the plan was compiled with, for the device.

    Raises:
        RuntimeError: The provider refused the plan, an input, or the execution; the message repeats its log.
    """
    device = (settings or default_settings(inputs)).device.torch_device
    forget_errors()
    logger = provider_logger()

    def require(condition: Any, what: str) -> None:
        if not condition:
            raise RuntimeError(f"{what}: {take_errors() or 'the provider gave no reason'}")

    with device_scope(device):
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        require(engine is not None, "the plan was refused")
        context = engine.create_execution_context()
        held = [tensor.to(device).contiguous() for tensor in inputs]
        for name, tensor in zip(input_names, held, strict=True):
            if engine.get_tensor_mode(name) == trt.TensorIOMode.NONE:  # no output depends on it: the builder drops it
                continue
            require(context.set_input_shape(name, tuple(tensor.shape)), f"{name} of shape {tuple(tensor.shape)}")
            # an empty tensor has no memory of its own, yet every binding needs an address
            require(context.set_tensor_address(name, tensor.data_ptr() or _byte_address(held)), f"address of {name}")
        require(not context.infer_shapes(), "not every shape could be inferred")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        readers = [
            _bind_output(engine, context, name, device, require)
            for name in names
            if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT
        ]
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        require(context.execute_async_v3(stream), "execution failed")
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return tuple(read() for read in readers)


def _byte_address(held: list[torch.Tensor]) -> int:
    """Adds one byte of memory to what is held, and returns its address."""
    held.append(torch.empty(1, dtype=torch.uint8, device=held[0].device))
    return held[-1].data_ptr()


def _bind_output(
    engine: Any, context: Any, name: str, device: torch.device, require: Callable[[Any, str], None]
) -> Callable[[], torch.Tensor]:
    dtype = from_trt(engine.get_tensor_dtype(name))
    shape = tuple(context.get_tensor_shape(name))
    if any(extent < 0 for extent in shape):
        allocator = output_allocator(dtype, device)
        require(context.set_output_allocator(name, allocator), f"output allocator of {name}")
        return lambda: allocator.take(name)
    numel = max(1, torch.Size(shape).numel())
    memory = torch.empty(numel, dtype=dtype, device=device)
    require(context.set_tensor_address(name, memory.data_ptr()), f"address of {name}")
    return lambda: memory[: torch.Size(shape).numel()].reshape(shape)
