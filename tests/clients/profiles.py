"""One engine with a profile for small and one for large batches."""

from __future__ import annotations

import tensorrt as trt
import torch

logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(0)
x = network.add_input("x", trt.float32, (-1, 3))
layer = network.add_unary(x, trt.UnaryOperation.EXP)
layer.get_output(0).name = "y"
network.mark_output(layer.get_output(0))
config = builder.create_builder_config()
for low, best, high in ((1, 1, 4), (5, 32, 64)):
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (low, 3), (best, 3), (high, 3))
    config.add_optimization_profile(profile)
engine = builder.build_engine_with_config(network, config)
assert engine.num_optimization_profiles == 2
context = engine.create_execution_context()
for index, batch in ((0, 4), (1, 50), (0, 1)):
    assert context.set_optimization_profile_async(index, 0)
    assert context.set_input_shape("x", (batch, 3))
    value = torch.randn(batch, 3)
    result = torch.empty(tuple(context.get_tensor_shape("y")))
    assert context.set_tensor_address("x", value.data_ptr())
    assert context.set_tensor_address("y", result.data_ptr())
    assert context.execute_async_v3(0)
    torch.testing.assert_close(result, value.exp())
assert not context.set_input_shape("x", (50, 3))
