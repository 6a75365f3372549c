"""Caches that are buffers of the model are written in place, and can be reset."""

from __future__ import annotations

import torch
import torch_tensorrt


class Streaming(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache_k", torch.zeros(1, 4, 16, 8))
        self.register_buffer("cache_v", torch.zeros(1, 4, 16, 8))

    def forward(self, x_k, x_v):
        self.cache_k[:, :, 3:4, :] = x_k
        self.cache_v[:, :, 3:4, :] = x_v
        return self.cache_k.sum() + self.cache_v.sum()


ones = torch.ones(1, 4, 1, 8).cuda()
program = torch.export.export(Streaming().cuda(), (ones.clone(), ones.clone()))
compiled = torch_tensorrt.compile(
    program, ir="dynamo", inputs=[ones.clone(), ones.clone()], min_block_size=1, use_python_runtime=False
)
returned = compiled(ones * 3, ones * 5)
eager = Streaming().cuda()
torch.testing.assert_close(returned, eager(ones * 3, ones * 5))
torch.testing.assert_close(compiled.cache_k, eager.cache_k)
torch.testing.assert_close(compiled.cache_v, eager.cache_v)
compiled.cache_k.zero_()
compiled.cache_v.zero_()
for value in (1.0, 5.0, 0.0):
    compiled(ones * value, ones * value)
    assert compiled.cache_k.sum().item() == value * 32
