"""Calls of a model with parts in PyTorch are recorded, part by part and as a whole."""

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
compiled = torch_tensorrt.compile(
    model,
    ir="dynamo",
    inputs=[x],
    min_block_size=1,
    pass_through_build_failures=True,
    debug=True,
    torch_executed_ops={"torch.ops.aten.add.Tensor"},
)
with torch_tensorrt.runtime.enable_cudagraphs():
    torch.testing.assert_close(compiled(x), model(x))
with torch_tensorrt.runtime.enable_cudagraphs(compiled) as whole:
    torch.testing.assert_close(whole(x), model(x))
