"""Engines that give memory back between calls."""

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

from torch_tensorrt.dynamo.runtime import ResourceAllocationStrategy

warnings.simplefilter("ignore")
compiled = torch_tensorrt.compile(model, ir="dynamo", inputs=[x], min_block_size=1)
with ResourceAllocationStrategy(compiled, dynamically_allocate_resources=True):
    torch.testing.assert_close(compiled(x), model(x))
