"""An exported program is compiled and called."""

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

program = torch.export.export(model, (x,))
compiled = torch_tensorrt.dynamo.compile(
    program, inputs=[x], enabled_precisions={torch_tensorrt.dtype.f32}, min_block_size=1
)
torch.testing.assert_close(compiled(x), model(x))
