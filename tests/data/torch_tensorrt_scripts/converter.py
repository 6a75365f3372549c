"""A converter of one's own, ahead of the one that is there."""

from __future__ import annotations

import torch
import torch_tensorrt


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


model = Model().eval().cuda()
x = torch.randn(4, 16).cuda()

import tensorrt as trt
from torch_tensorrt.dynamo.conversion import ConverterPriority, dynamo_tensorrt_converter

used = []


@dynamo_tensorrt_converter(torch.ops.aten.tanh.default, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True)
def tanh(ctx, target, args, kwargs, name):
    used.append(name)
    return ctx.net.add_activation(args[0], trt.ActivationType.TANH).get_output(0)


with_tanh = torch.nn.Sequential(model, torch.nn.Tanh()).eval()
compiled = torch_tensorrt.compile(with_tanh, ir="dynamo", inputs=[x], min_block_size=1)
torch.testing.assert_close(compiled(x), with_tanh(x))
assert used
