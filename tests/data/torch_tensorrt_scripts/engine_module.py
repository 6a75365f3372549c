"""A module around the bytes of an engine."""

from __future__ import annotations

import torch
import torch_tensorrt
from torch_tensorrt.dynamo.runtime import PythonTorchTensorRTModule, TorchTensorRTModule


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)

    def forward(self, x, scale):
        return torch.relu(self.linear(x)) * scale, x + 1


model = Model().eval().cuda()
inputs = (torch.randn(4, 16).cuda(), torch.full((1,), 2.0).cuda())

program = torch.export.export(model, inputs)
engine = torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
    program,
    arg_inputs=inputs,
    arg_input_binding_names=("x", "scale"),
    output_binding_names=("y", "z"),
)
for kind in (TorchTensorRTModule, PythonTorchTensorRTModule):
    module = kind(
        serialized_engine=engine,
        input_binding_names=["x", "scale"],
        output_binding_names=["y", "z"],
        name="two_results",
        settings=torch_tensorrt.dynamo.CompilationSettings(device=torch_tensorrt.Device("cuda:0")),
    )
    assert isinstance(module, kind)
    for found, wanted in zip(module(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
