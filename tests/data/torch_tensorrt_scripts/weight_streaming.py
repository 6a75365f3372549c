"""Weights that stay on the host while the engine runs."""

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

compiled = torch_tensorrt.dynamo.compile(
    torch.export.export(model, (x,)), inputs=[x], min_block_size=1, enable_weight_streaming=True
)
with torch_tensorrt.runtime.weight_streaming(compiled) as context:
    context.device_budget = context.total_device_budget // 2
    torch.testing.assert_close(compiled(x), model(x))
