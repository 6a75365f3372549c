"""A module that follows its weights is saved and loaded."""

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

import os
import tempfile

mutable = torch_tensorrt.MutableTorchTensorRTModule(
    model, use_python=False, enabled_precisions={torch.float32}, immutable_weights=False
)
mutable(x)
other = Model().eval().cuda()
mutable.load_state_dict(other.state_dict())
torch.testing.assert_close(mutable(x), other(x))
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "mutable_module.pkl")
    torch_tensorrt.MutableTorchTensorRTModule.save(mutable, path)
    again = torch_tensorrt.MutableTorchTensorRTModule.load(path)
    torch.testing.assert_close(again(x), other(x))
