"""The outputs of the next call are allocated while a call runs."""

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
compiled = torch_tensorrt.compile(model, ir="dynamo", enabled_precisions={torch.float}, inputs=[x], min_block_size=1)
with torch_tensorrt.runtime.enable_pre_allocated_outputs(compiled):
    first = compiled(x)
    second = compiled(-x)
    torch.testing.assert_close(first, model(x))
    torch.testing.assert_close(second, model(-x))
switch = torch_tensorrt.runtime.enable_pre_allocated_outputs(compiled)
switch.set_pre_allocated_output(True)
torch.testing.assert_close(compiled(x), model(x))
switch.set_pre_allocated_output(False)
torch.testing.assert_close(compiled(x), model(x))
