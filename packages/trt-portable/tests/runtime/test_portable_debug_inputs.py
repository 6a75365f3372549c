"""Debug tensors that are inputs of the network."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt


class Listener(trt.IDebugListener):
    """Keeps the content of every tensor shown."""

    def __init__(self) -> None:
        trt.IDebugListener.__init__(self)
        self.seen: dict[str, list[float]] = {}

    def process_debug_tensor(self, addr: int, location: Any, dtype: Any, shape: Any, name: str, stream: int) -> None:
        count = trt.volume(shape)
        memory = (ctypes.c_char * (count * int(dtype.itemsize))).from_address(addr)
        self.seen[name] = np.frombuffer(bytes(memory), trt.nptype(dtype)).tolist()


@pytest.mark.parametrize("level", [0, 3])
def test_a_listener_sees_marked_inputs(network: Any, builder: Any, load: Any, execute: Any, level: int) -> None:
    x, shift = network.add_input("x", trt.float32, (2,)), network.add_input("shift", trt.int32, (2,))
    unused = network.add_input("unused", trt.float32, (1,))
    total = network.add_elementwise(x, network.add_cast(shift, trt.float32).get_output(0), trt.ElementWiseOperation.SUM)
    total.get_output(0).name = "total"
    network.mark_output(total.get_output(0))
    for tensor in (x, shift, unused):
        assert network.mark_debug(tensor)
    config = builder.create_builder_config()
    config.builder_optimization_level = level
    engine = load(network, config=config)
    assert engine.is_debug_tensor("x")
    context, listener = engine.create_execution_context(), Listener()
    context.set_debug_listener(listener)
    inputs = {"x": torch.tensor([1.0, 2]), "shift": torch.tensor([3, 4], dtype=torch.int32), "unused": torch.ones(1)}
    execute(context, inputs)
    assert not listener.seen
    assert context.set_tensor_debug_state("x", True)
    execute(context, inputs)
    assert listener.seen == {"x": [1.0, 2.0]}
    assert context.set_all_tensors_debug_state(True)
    execute(context, inputs)
    assert listener.seen == {"x": [1.0, 2.0], "shift": [3, 4], "unused": [1.0]}


def test_a_listener_sees_a_marked_shape_input(network: Any, load: Any) -> None:
    x, size = network.add_input("x", trt.float32, (-1,)), network.add_input("size", trt.int32, (1,))
    layer = network.add_shuffle(x)
    layer.set_input(1, size)
    network.mark_output(layer.get_output(0))
    layer.get_output(0).name = "y"
    assert network.mark_debug(size)
    context = load(network, {"x": ((1,), (2,), (4,))}, {"size": ((1,), (2,), (4,))}).create_execution_context()
    listener = Listener()
    context.set_debug_listener(listener)
    context.set_all_tensors_debug_state(True)
    given, numbers, output = torch.ones(3), torch.tensor([3], dtype=torch.int32), torch.zeros(3)
    assert context.set_input_shape("x", (3,))
    for name, tensor in (("x", given), ("size", numbers), ("y", output)):
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(0)
    assert listener.seen == {"size": [3]}
