"""A module that follows its weights."""

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

mutable = torch_tensorrt.MutableTorchTensorRTModule(model, immutable_weights=False, min_block_size=1)
torch.testing.assert_close(mutable(x), model(x))
mutable.load_state_dict(Model().state_dict())
torch.testing.assert_close(mutable(x), model(x))
