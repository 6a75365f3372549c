"""A decorated plugin that takes two formats, in a network whose input arrives channels-last."""

from __future__ import annotations

import tensorrt as trt
import tensorrt.plugin as trtp
import torch


@trtp.register("clients::negate")
def describe(inp: trtp.TensorDesc) -> trtp.TensorDesc:
    return inp.like()


@trtp.autotune("clients::negate")
def combinations(inp, outputs):
    return [trtp.AutoTuneCombination("FP32, FP32", "HWC"), trtp.AutoTuneCombination("FP16, FP16", "LINEAR")]


@trtp.impl("clients::negate")
def compute(inp, outputs, stream):
    assert inp.format == trt.TensorFormat.HWC
    torch.neg(torch.from_dlpack(inp), out=torch.from_dlpack(outputs[0]))


logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
x = network.add_input("x", trt.float32, (1, 3, 4, 5))
x.allowed_formats = 1 << int(trt.TensorFormat.HWC)
network.mark_output(network.add_plugin(trtp.op.clients.negate(x), aot=False).get_output(0))
engine = trt.Runtime(logger).deserialize_cuda_engine(
    builder.build_serialized_network(network, builder.create_builder_config())
)
assert engine.get_tensor_format("x") == trt.TensorFormat.HWC
context = engine.create_execution_context()
pixels, result = torch.randn(1, 4, 5, 3), torch.empty(1, 3, 4, 5)
assert context.execute_v2([pixels.data_ptr(), result.data_ptr()])
assert torch.equal(result, -pixels.permute(0, 3, 1, 2))
