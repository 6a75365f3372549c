"""Builds a multilayer perceptron, writes the engine to a file, and runs the file."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import tensorrt as trt
import torch

LAYERS = (16, 32, 10)

device = "cuda" if torch.cuda.is_available() else "cpu"
rng = np.random.default_rng(0)
weights = [rng.standard_normal((n, k)).astype(np.float32) for k, n in itertools.pairwise(LAYERS)]
biases = [rng.standard_normal((1, n)).astype(np.float32) for n in LAYERS[1:]]

logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
tensor = network.add_input(name="input", dtype=trt.float32, shape=(-1, LAYERS[0]))
for weight, bias in zip(weights, biases, strict=True):
    matrix = network.add_constant(weight.shape, trt.Weights(weight))
    product = network.add_matrix_multiply(
        tensor, trt.MatrixOperation.NONE, matrix.get_output(0), trt.MatrixOperation.TRANSPOSE
    )
    addend = network.add_constant(bias.shape, trt.Weights(bias))
    total = network.add_elementwise(product.get_output(0), addend.get_output(0), trt.ElementWiseOperation.SUM)
    tensor = network.add_activation(total.get_output(0), type=trt.ActivationType.RELU).get_output(0)
tensor.name = "output"
network.mark_output(tensor=tensor)

config = builder.create_builder_config()
config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 20)
profile = builder.create_optimization_profile()
profile.set_shape("input", min=(1, LAYERS[0]), opt=(4, LAYERS[0]), max=(8, LAYERS[0]))
config.add_optimization_profile(profile)
plan = builder.build_serialized_network(network, config)
if plan is None:
    raise RuntimeError("the build failed; the log says why")

path = Path(tempfile.mkdtemp()) / "mlp.engine"
path.write_bytes(plan)

runtime = trt.Runtime(logger)
engine = runtime.deserialize_cuda_engine(path.read_bytes())
context = engine.create_execution_context()
tensors = {}
x = torch.randn(3, LAYERS[0], device=device)
context.set_input_shape("input", tuple(x.shape))
for index in range(engine.num_io_tensors):
    name = engine.get_tensor_name(index)
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    tensors[name] = x if is_input else torch.empty(tuple(context.get_tensor_shape(name)), device=device)
    context.set_tensor_address(name, tensors[name].data_ptr())
stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
assert context.execute_async_v3(stream_handle=stream)
if device == "cuda":
    torch.cuda.synchronize()

expected = x.cpu()
for weight, bias in zip(weights, biases, strict=True):
    expected = torch.relu(expected @ torch.from_numpy(weight).T + torch.from_numpy(bias))
torch.testing.assert_close(tensors["output"].cpu(), expected, rtol=1e-2, atol=1e-2)
