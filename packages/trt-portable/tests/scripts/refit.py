"""Builds an engine without its weights, and gives it two sets of weights one after the other."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
rng = np.random.default_rng(2)


def some_weights():
    return rng.standard_normal((4, 3, 3, 3)).astype(np.float32), rng.standard_normal(4).astype(np.float32)


logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
kernel, bias = some_weights()
x_tensor = network.add_input("x", trt.float32, (2, 3, 8, 8))
conv = network.add_convolution_nd(x_tensor, 4, (3, 3), kernel, bias)
conv.name = "conv"
network.set_weights_name(trt.Weights(kernel), "conv.weight")
conv.get_output(0).name = "y"
network.mark_output(conv.get_output(0))

config = builder.create_builder_config()
config.set_flag(trt.BuilderFlag.REFIT)
config.set_flag(trt.BuilderFlag.STRIP_PLAN)
engine = trt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))
assert engine.refittable

context = engine.create_execution_context()
x, y = torch.randn(2, 3, 8, 8, device=device), torch.empty(2, 4, 6, 6, device=device)
for _ in range(2):
    kernel, bias = some_weights()
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_named_weights("conv.weight", trt.Weights(kernel))
    assert refitter.set_weights("conv", trt.WeightsRole.BIAS, bias)
    missing_layers, missing_roles = refitter.get_missing()
    assert not missing_layers and not missing_roles
    assert refitter.refit_cuda_engine()
    assert context.execute_v2([x.data_ptr(), y.data_ptr()])
    expected = F.conv2d(x.cpu(), torch.from_numpy(kernel), torch.from_numpy(bias))
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-2, atol=1e-2)
