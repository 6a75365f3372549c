"""The entry point that takes a module and the name of a front end."""

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

compiled = torch_tensorrt.compile(model, ir="dynamo", inputs=[x], min_block_size=1, truncate_long_and_double=True)
torch.testing.assert_close(compiled(x), model(x))
