"""Engines that take their memory when they are called."""

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
compiled = torch_tensorrt.compile(
    model,
    inputs=[x],
    ir="dynamo",
    min_block_size=1,
    immutable_weights=False,
    lazy_engine_init=True,
    dynamically_allocate_resources=True,
)
torch.testing.assert_close(compiled(x), model(x))
with torch_tensorrt.dynamo.runtime.ResourceAllocationStrategy(compiled, dynamically_allocate_resources=False):
    torch.testing.assert_close(compiled(x), model(x))
