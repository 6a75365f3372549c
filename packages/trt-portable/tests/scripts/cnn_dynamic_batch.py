"""Builds a small convolutional classifier whose batch is chosen at run time, with two profiles."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
rng = np.random.default_rng(1)
weights = {
    "conv": rng.standard_normal((4, 1, 5, 5)).astype(np.float32),
    "conv bias": rng.standard_normal(4).astype(np.float32),
    "fc": rng.standard_normal((10, 4 * 6 * 6)).astype(np.float32) / 12,
    "fc bias": rng.standard_normal((1, 10)).astype(np.float32),
}

logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
image = network.add_input(name="image", dtype=trt.float32, shape=(-1, 1, 28, 28))

conv = network.add_convolution_nd(
    input=image, num_output_maps=4, kernel_shape=(5, 5), kernel=weights["conv"], bias=weights["conv bias"]
)
conv.stride_nd = (2, 2)
pool = network.add_pooling_nd(input=conv.get_output(0), type=trt.PoolingType.MAX, window_size=trt.Dims2(2, 2))
pool.stride_nd = trt.Dims2(2, 2)
flat = network.add_shuffle(pool.get_output(0))
flat.reshape_dims = (-1, 4 * 6 * 6)
matrix = network.add_constant(weights["fc"].shape, weights["fc"])
product = network.add_matrix_multiply(
    flat.get_output(0), trt.MatrixOperation.NONE, matrix.get_output(0), trt.MatrixOperation.TRANSPOSE
)
addend = network.add_constant(weights["fc bias"].shape, weights["fc bias"])
logits = network.add_elementwise(product.get_output(0), addend.get_output(0), trt.ElementWiseOperation.SUM)
softmax = network.add_softmax(logits.get_output(0))
softmax.axes = 1 << 1
softmax.get_output(0).name = "probabilities"
network.mark_output(softmax.get_output(0))

config = builder.create_builder_config()
for low, opt, high in ((1, 1, 1), (2, 8, 32)):
    profile = builder.create_optimization_profile()
    profile.set_shape("image", (low, 1, 28, 28), (opt, 1, 28, 28), (high, 1, 28, 28))
    config.add_optimization_profile(profile)
engine = trt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))

stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
context = engine.create_execution_context()
for batch, profile_index in ((1, 0), (32, 1), (5, 1)):
    context.set_optimization_profile_async(profile_index, stream)
    x = torch.randn(batch, 1, 28, 28, device=device)
    assert context.set_input_shape("image", tuple(x.shape))
    y = torch.empty(tuple(context.get_tensor_shape("probabilities")), device=device)
    context.set_tensor_address("image", x.data_ptr())
    context.set_tensor_address("probabilities", y.data_ptr())
    assert context.execute_async_v3(stream)
    if device == "cuda":
        torch.cuda.synchronize()
    given = {name: torch.from_numpy(array) for name, array in weights.items()}
    expected = F.max_pool2d(F.conv2d(x.cpu(), given["conv"], given["conv bias"], stride=2), 2, 2).flatten(1)
    expected = (expected @ given["fc"].T + given["fc bias"]).softmax(1)
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-2, atol=1e-2)
