"""One engine for a range of batch sizes."""

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

spec = torch_tensorrt.Input(min_shape=(1, 16), opt_shape=(4, 16), max_shape=(8, 16), dtype=torch_tensorrt.dtype.float32)
program = torch_tensorrt.dynamo.trace(model, inputs=[spec])
compiled = torch_tensorrt.dynamo.compile(program, inputs=[spec], min_block_size=1)
for rows in (1, 5, 8):
    batch = torch.randn(rows, 16).cuda()
    torch.testing.assert_close(compiled(batch), model(batch))
