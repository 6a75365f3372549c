"""PyTorch's own format, whose files run code when they are read."""

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

import tempfile

compiled = torch_tensorrt.compile(model, ir="dynamo", inputs=[x], min_block_size=1)
with tempfile.TemporaryDirectory() as folder:
    torch_tensorrt.save(compiled, f"{folder}/model.ep", output_format="exported_program", inputs=[x])
    loaded = torch_tensorrt.load(f"{folder}/model.ep")
    torch.testing.assert_close(loaded.module()(x), model(x))
