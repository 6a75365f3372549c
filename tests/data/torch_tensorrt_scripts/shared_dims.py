"""Inputs whose batches are one dimension, by name."""

from __future__ import annotations

import torch
import torch_tensorrt
from torch_tensorrt.dynamo.utils import COSINE_THRESHOLD, cosine_similarity


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)

    def forward(self, input_ids, attention_mask):
        return self.embed(input_ids) * attention_mask.unsqueeze(-1).float()


model = Encoder().eval().cuda()
shapes = {"min_shape": (1, 6), "opt_shape": (4, 6), "max_shape": (8, 6)}
ends = {
    name: torch_tensorrt.Input(**shapes, dtype=torch.int64, name=name, shared_dims={0: "B"})
    for name in ("input_ids", "attention_mask")
}
settings = {"ir": "dynamo", "min_block_size": 1, "cache_built_engines": False, "reuse_cached_engines": False}
by_place = torch_tensorrt.compile(model, inputs=list(ends.values()), **settings)
by_name = torch_tensorrt.compile(model, kwarg_inputs=ends, **settings)
for rows in (4, 2, 1):
    ids = torch.randint(0, 64, (rows, 6)).cuda()
    mask = torch.ones(rows, 6, dtype=torch.int64).cuda()
    wanted = model(ids, mask)
    assert cosine_similarity(wanted, by_place(ids, mask)) > COSINE_THRESHOLD
    assert cosine_similarity(wanted, by_name(input_ids=ids, attention_mask=mask)) > COSINE_THRESHOLD
