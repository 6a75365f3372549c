"""The bytes of a model's one engine."""

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
engine = torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(program, inputs=[x])
assert len(engine) > 100
