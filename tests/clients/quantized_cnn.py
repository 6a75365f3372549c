"""A convolution with explicit quantization: scales are part of the network, nothing is calibrated."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch
import torch.nn.functional as F

kernel = torch.randint(-20, 20, (4, 3, 3, 3)).float() / 8
logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)


def constant(value):
    array = np.ascontiguousarray(value, np.float32)
    return network.add_constant(array.shape, trt.Weights(array)).get_output(0)


def fake_quantized(tensor, scale, axis=None):
    scales = constant(scale)
    quantize = network.add_quantize(tensor, scales, trt.int8)
    if axis is not None:
        quantize.axis = axis
    dequantize = network.add_dequantize(quantize.get_output(0), scales, trt.float32)
    if axis is not None:
        dequantize.axis = axis
    return dequantize.get_output(0)


x = network.add_input("x", trt.float32, (1, 3, 8, 8))
convolution = network.add_convolution_nd(fake_quantized(x, 0.05), 4, (3, 3), trt.Weights(), trt.Weights())
convolution.set_input(1, fake_quantized(constant(kernel.numpy()), [0.125] * 4, axis=0))
relu = network.add_activation(convolution.get_output(0), trt.ActivationType.RELU)
relu.get_output(0).name = "y"
network.mark_output(relu.get_output(0))
engine = builder.build_engine_with_config(network, builder.create_builder_config())

context = engine.create_execution_context()
value, result = torch.randn(1, 3, 8, 8), torch.empty(1, 4, 6, 6)
assert context.execute_v2([value.data_ptr(), result.data_ptr()])
rounded = torch.clamp(torch.round(value / 0.05), -128, 127) * 0.05
torch.testing.assert_close(result, F.relu(F.conv2d(rounded, kernel)), rtol=1e-4, atol=1e-4)
