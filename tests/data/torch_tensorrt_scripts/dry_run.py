"""What would run where, without building."""

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

import contextlib
import io

with contextlib.redirect_stdout(io.StringIO()) as told:
    torch_tensorrt.dynamo.compile(torch.export.export(model, (x,)), arg_inputs=[x], dryrun=True)
assert "coverage" in told.getvalue()
