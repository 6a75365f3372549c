"""A compilation is watched, and logged to a folder."""

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

import pathlib
import tempfile

with tempfile.TemporaryDirectory() as folder:
    with torch_tensorrt.dynamo.Debugger(log_level="debug", logging_dir=folder, engine_builder_monitor=False):
        torch_tensorrt.dynamo.compile(torch.export.export(model, (x,)), inputs=[x], min_block_size=1)
    assert any(path.stat().st_size for path in pathlib.Path(folder).iterdir())
