"""A model is compiled while it runs, with options of both generations."""

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

import warnings

warnings.simplefilter("ignore")
optimized = torch.compile(model, backend="torch_tensorrt")
torch.testing.assert_close(optimized(x), model(x))
torch._dynamo.reset()
half = Model().half().eval().cuda()
custom = torch.compile(
    half,
    backend="torch_tensorrt",
    options={
        "enabled_precisions": {torch.half},
        "debug": True,
        "min_block_size": 2,
        "torch_executed_ops": {"torch.ops.aten.sub.Tensor"},
        "optimization_level": 1,
        "use_python_runtime": False,
    },
)
torch.testing.assert_close(custom(x.half()), half(x.half()), rtol=1e-2, atol=1e-2)
torch._dynamo.reset()
