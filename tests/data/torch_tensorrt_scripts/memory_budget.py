"""A compilation that may use so much memory of the host."""

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
import warnings

from torch_tensorrt.dynamo.conversion import CompilationSettings

warnings.simplefilter("ignore")
options = {
    "use_python_runtime": False,
    "enabled_precisions": {torch.float},
    "min_block_size": 1,
    "immutable_weights": True,
    "reuse_cached_engines": False,
    "cpu_memory_budget": 64 * 1024 * 1024 * 1024,
}
settings = CompilationSettings(**options)
with (
    tempfile.TemporaryDirectory() as folder,
    torch_tensorrt.dynamo.Debugger(log_level="debug", logging_dir=folder, engine_builder_monitor=False),
):
    compiled = torch_tensorrt.dynamo.compile(torch.export.export(model, (x,)), inputs=[x], **options)
torch.testing.assert_close(compiled(x), model(x))
