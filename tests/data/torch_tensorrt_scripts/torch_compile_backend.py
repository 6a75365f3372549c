"""The backend of torch.compile, with options."""

from __future__ import annotations

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


model = Model().eval().cuda()
x = torch.randn(4, 16).cuda()

optimized = torch.compile(
    model,
    backend="torch_tensorrt",
    dynamic=False,
    options={"min_block_size": 1, "optimization_level": 1},
)
torch.testing.assert_close(optimized(x), model(x))
