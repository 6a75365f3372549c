"""Engines from ONNX models, run on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trt_portable as trt
from trt_portable.dtypes import CARRIERS

HAS_NUMPY = frozenset({torch.float32, torch.float16, torch.int8, torch.int32, torch.int64, torch.bool, torch.uint8})
"""Types of tensors that numpy has."""


class Refused(Exception):
    """The parser or the builder refused a model."""


class QuietLogger(trt.ILogger):
    """Keeps the errors."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        if int(severity) <= int(trt.Logger.ERROR):
            self.errors.append(msg)


def parse(model: bytes | Path, logger: trt.ILogger | None = None) -> tuple[trt.INetworkDefinition, trt.OnnxParser]:
    """The network of a model.

    Raises:
        Refused: The parser refused it; the argument lists why.
    """
    logger = logger or QuietLogger()
    network = trt.Builder(logger).create_network()
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse(model) if isinstance(model, bytes) else parser.parse_from_file(str(model))
    if not parsed:
        raise Refused("; ".join(str(parser.get_error(index)) for index in range(parser.num_errors)))
    return network, parser


def build(
    network: trt.INetworkDefinition,
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, np.ndarray[Any, Any]] | None = None,
    flags: Sequence[Any] = (),
) -> trt.ICudaEngine:
    """An engine for inputs of some shapes; `values` are those of inputs that decide about shapes.

    Raises:
        Refused: The builder refused the network.
    """
    logger = QuietLogger()
    builder = trt.Builder(logger)
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    for flag in flags:
        config.set_flag(flag)
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if -1 in tensor.shape:
            profile.set_shape(tensor.name, *[tuple(shapes[tensor.name])] * 3)
        if tensor.is_shape_tensor and tensor.name in (values or {}):
            numbers = [int(number) for number in (values or {})[tensor.name].reshape(-1)]
            profile.set_shape_input(tensor.name, *[numbers] * 3)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Refused("; ".join(logger.errors) or "the builder made no plan")
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise Refused("; ".join(logger.errors))
    return engine


class _Allocator(trt.IOutputAllocator):
    def __init__(self) -> None:
        super().__init__()
        self.shape: tuple[int, ...] = ()
        self.memory = torch.empty(0, dtype=torch.uint8)

    def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
        if self.memory.numel() < size + 256:
            self.memory = torch.empty(size + 256, dtype=torch.uint8)
        return -(-self.memory.data_ptr() // 256) * 256

    def notify_shape(self, tensor_name: str, shape: Any) -> None:
        self.shape = tuple(shape)

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        count = int(np.prod(self.shape, dtype=np.int64)) * dtype.itemsize
        start = -(-self.memory.data_ptr() // 256) * 256 - self.memory.data_ptr()
        return self.memory[start : start + count].clone().view(dtype).reshape(self.shape)


def _aligned(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    size = tensor.numel() * tensor.element_size()
    memory = torch.empty(size + 256, dtype=torch.uint8)
    start = -memory.data_ptr() % 256
    if size:
        memory[start : start + size] = tensor.contiguous().reshape(-1).view(torch.uint8)
    return memory, memory.data_ptr() + start


def run(engine: trt.ICudaEngine, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The outputs of an engine.

    Args:
        engine: The engine.
        inputs: Arrays, or tensors for types that numpy lacks, by name.

    Raises:
        Refused: A shape or an address was refused.
    """
    context = engine.create_execution_context()
    kept, outputs = [], []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        if engine.get_tensor_mode(name) is trt.TensorIOMode.INPUT:
            value = inputs[name]
            tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value, order="C"))
            memory, address = _aligned(tensor)
            kept.append(memory)
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise Refused(f"shape {tuple(tensor.shape)} of {name}")
            context.set_tensor_address(name, address)
        else:
            allocator = _Allocator()
            context.set_output_allocator(name, allocator)
            outputs.append((allocator, CARRIERS[engine.get_tensor_dtype(name)]))
    if not context.execute_async_v3(0):
        raise Refused("execution failed")
    return [allocator.tensor(dtype) for allocator, dtype in outputs]


def infer(model: bytes | Path, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The outputs of a model for some inputs."""
    network, _ = parse(model)
    arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
    engine = build(network, {name: tuple(value.shape) for name, value in inputs.items()}, arrays)
    return run(engine, inputs)
