"""A decoder step that writes keys to a cache in place, and a loop that sums what the cache holds."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch

logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
cache = network.add_input("cache", trt.float32, (1, 2, 6, 4))
update = network.add_input("update", trt.float32, (1, 2, 1, 4))
places = network.add_input("places", trt.int32, (1,))
updated = network.add_kv_cache_update(cache, update, places, trt.KVCacheMode.LINEAR).get_output(0)
updated.name = "updated"
network.mark_output(updated)

loop = network.add_loop()
count = network.add_constant((), trt.Weights(np.array(6, np.int32))).get_output(0)
loop.add_trip_limit(count, trt.TripLimit.COUNT)
step = loop.add_iterator(updated, 2).get_output(0)
zeros = network.add_constant((1, 2, 4), trt.Weights(np.zeros((1, 2, 4), np.float32))).get_output(0)
running = loop.add_recurrence(zeros)
following = network.add_elementwise(running.get_output(0), step, trt.ElementWiseOperation.SUM)
running.set_input(1, following.get_output(0))
total = loop.add_loop_output(running.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0)
total.name = "total"
network.mark_output(total)

engine = builder.build_engine_with_config(network, builder.create_builder_config())
assert engine.get_aliased_input_tensor("updated") == "cache"
context = engine.create_execution_context()
memory, sums = torch.zeros(1, 2, 6, 4), torch.empty(1, 2, 4)
expected = memory.clone()
for at in range(4):
    token, where = torch.randn(1, 2, 1, 4), torch.tensor([at], dtype=torch.int32)
    bound = {"cache": memory, "update": token, "places": where, "updated": memory, "total": sums}
    for name, tensor in bound.items():
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(0)
    expected[:, :, at] = token[:, :, 0]
    assert torch.equal(memory, expected)
    torch.testing.assert_close(sums, expected.sum(2))
