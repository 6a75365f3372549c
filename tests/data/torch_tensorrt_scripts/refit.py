"""Weights of a compiled model are replaced."""

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

other = Model().eval().cuda()
compiled = torch_tensorrt.dynamo.compile(
    torch.export.export(model, (x,)), inputs=[x], min_block_size=1, immutable_weights=False
)
refitted = torch_tensorrt.dynamo.refit_module_weights(compiled, torch.export.export(other, (x,)), arg_inputs=[x])
torch.testing.assert_close(refitted(x), other(x))
