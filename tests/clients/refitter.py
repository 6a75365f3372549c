"""Gives a built engine other weights, by their names."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch

logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
first = np.ones((2, 3), np.float32)
x = network.add_input("x", trt.float32, (2, 3))
weights = trt.Weights(first)
constant = network.add_constant((2, 3), weights)
network.set_weights_name(weights, "shift")
total = network.add_elementwise(x, constant.get_output(0), trt.ElementWiseOperation.SUM)
network.mark_output(total.get_output(0))
config = builder.create_builder_config()
config.set_flag(trt.BuilderFlag.REFIT)
engine = trt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))
context = engine.create_execution_context()
value, result = torch.zeros(2, 3), torch.empty(2, 3)
for shift in (2.0, 5.0):
    with trt.Refitter(engine, logger) as refitter:
        assert refitter.get_all_weights() == ["shift"]
        assert refitter.set_named_weights("shift", trt.Weights(np.full((2, 3), shift, np.float32)))
        assert refitter.refit_cuda_engine()
    assert context.execute_v2([value.data_ptr(), result.data_ptr()])
    assert torch.equal(result, torch.full((2, 3), shift))
