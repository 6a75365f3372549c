"""Imports a model that is given as a dictionary: one entry per layer, weights by name."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch

rng = np.random.default_rng(0)
weights = {"w0": rng.standard_normal((6, 8)).astype(np.float32), "b0": rng.standard_normal((1, 8)).astype(np.float32)}
model = {
    "inputs": {"x": (4, 6)},
    "nodes": [
        {"op": "MatMul", "in": ["x", "w0"], "out": "h"},
        {"op": "Add", "in": ["h", "b0"], "out": "s"},
        {"op": "Relu", "in": ["s"], "out": "r"},
        {"op": "Softmax", "in": ["r"], "out": "y"},
    ],
    "outputs": ["y"],
}


def matmul(network, a, b):
    return network.add_matrix_multiply(a, trt.MatrixOperation.NONE, b, trt.MatrixOperation.NONE)


def softmax(network, a):
    layer = network.add_softmax(a)
    layer.axes = 1 << 1
    return layer


IMPORTERS = {
    "MatMul": matmul,
    "Add": lambda n, a, b: n.add_elementwise(a, b, trt.ElementWiseOperation.SUM),
    "Relu": lambda n, a: n.add_activation(a, trt.ActivationType.RELU),
    "Softmax": softmax,
}

logger = trt.Logger(trt.Logger.WARNING)
with trt.Builder(logger) as builder, builder.create_network() as network, builder.create_builder_config() as config:
    tensors = {name: network.add_input(name, trt.float32, shape) for name, shape in model["inputs"].items()}
    for name, value in weights.items():
        tensors[name] = network.add_constant(value.shape, trt.Weights(value)).get_output(0)
    for node in model["nodes"]:
        layer = IMPORTERS[node["op"]](network, *[tensors[name] for name in node["in"]])
        layer.name = node["out"]
        tensors[node["out"]] = layer.get_output(0)
        tensors[node["out"]].name = node["out"]
    for name in model["outputs"]:
        network.mark_output(tensors[name])
    plan = builder.build_serialized_network(network, config)

with trt.Runtime(logger) as runtime:
    engine = runtime.deserialize_cuda_engine(plan)
context = engine.create_execution_context()
x, y = torch.randn(4, 6), torch.empty(4, 8)
for name, tensor in {"x": x, "y": y}.items():
    assert context.set_tensor_address(name, tensor.data_ptr())
assert context.execute_async_v3(0)
expected = torch.softmax(torch.relu(x @ torch.from_numpy(weights["w0"]) + torch.from_numpy(weights["b0"])), 1)
torch.testing.assert_close(y, expected)
