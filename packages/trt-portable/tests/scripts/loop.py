"""Computes a running sum over the rows of a matrix in a loop whose trip count follows the input."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
rows = network.add_input("rows", trt.float32, (-1, 4))

extents = network.add_shape(rows).get_output(0)
count = network.add_shuffle(network.add_slice(extents, (0,), (1,), (1,)).get_output(0))
count.reshape_dims = ()

loop = network.add_loop()
loop.add_trip_limit(count.get_output(0), trt.TripLimit.COUNT)
row = loop.add_iterator(rows, 0).get_output(0)
start = network.add_constant((4,), np.zeros(4, dtype=np.float32)).get_output(0)
total = loop.add_recurrence(start)
following = network.add_elementwise(total.get_output(0), row, trt.ElementWiseOperation.SUM).get_output(0)
total.set_input(1, following)
every = loop.add_loop_output(following, trt.LoopOutput.CONCATENATE, 0)
every.set_input(1, count.get_output(0))
last = loop.add_loop_output(total.get_output(0), trt.LoopOutput.LAST_VALUE)
for name, layer in (("sums", every), ("last", last)):
    layer.get_output(0).name = name
    network.mark_output(layer.get_output(0))

config = builder.create_builder_config()
profile = builder.create_optimization_profile()
profile.set_shape("rows", (1, 4), (8, 4), (64, 4))
config.add_optimization_profile(profile)
engine = trt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))

context = engine.create_execution_context()
x = torch.randn(7, 4, device=device)
sums, final = torch.empty(7, 4, device=device), torch.empty(4, device=device)
context.set_input_shape("rows", (7, 4))
for name, tensor in (("rows", x), ("sums", sums), ("last", final)):
    context.set_tensor_address(name, tensor.data_ptr())
assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream if device == "cuda" else 0)
if device == "cuda":
    torch.cuda.synchronize()
torch.testing.assert_close(sums, x.cumsum(0))
torch.testing.assert_close(final, x.sum(0))
