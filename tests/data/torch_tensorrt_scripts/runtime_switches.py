"""Recorded calls, results that are kept ready, and devices."""

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

import warnings

warnings.simplefilter("ignore")
compiled = torch_tensorrt.compile(model, ir="dynamo", inputs=[x], min_block_size=1)
with torch_tensorrt.runtime.enable_cudagraphs(compiled) as recorded:
    torch.testing.assert_close(recorded(x), model(x))
with torch_tensorrt.runtime.enable_pre_allocated_outputs(compiled):
    torch.testing.assert_close(compiled(x), model(x))
torch_tensorrt.runtime.set_multi_device_safe_mode(True)
