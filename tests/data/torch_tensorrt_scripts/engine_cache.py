"""A cache of engines of one's own: the second compilation builds nothing."""

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

from torch_tensorrt.dynamo._defaults import TIMING_CACHE_PATH
from torch_tensorrt.dynamo._engine_cache import BaseEngineCache


class InMemory(BaseEngineCache):
    def __init__(self):
        self.kept = {}
        self.hits = 0

    def save(self, hash, blob, *args, **kwargs):
        self.kept[hash] = blob

    def load(self, hash, *args, **kwargs):
        self.hits += hash in self.kept
        return self.kept.get(hash)


cache = InMemory()
for _ in range(2):
    compiled = torch_tensorrt.dynamo.compile(
        torch.export.export(model, (x,)),
        inputs=[x],
        min_block_size=1,
        cache_built_engines=True,
        reuse_cached_engines=True,
        custom_engine_cache=cache,
    )
    torch.testing.assert_close(compiled(x), model(x))
assert cache.hits == 1 and TIMING_CACHE_PATH
