"""A cache that the caller owns is written in place."""

from __future__ import annotations

import torch
import torch_tensorrt


class Step(torch.nn.Module):
    def forward(self, cache, update):
        cache[:, :, 3:4, :] = update
        return cache.sum()


cache = torch.zeros(1, 4, 16, 8).cuda()
update = torch.ones(1, 4, 1, 8).cuda()
program = torch.export.export(Step().cuda(), (cache.clone(), update.clone()))
compiled = torch_tensorrt.compile(
    program,
    ir="dynamo",
    inputs=[cache.clone(), update.clone()],
    enabled_precisions={torch.float32},
    min_block_size=1,
    use_python_runtime=False,
)
aliased = {}
for _, module in compiled.named_modules():
    if hasattr(module, "aliased_io") and module.aliased_io:
        for output, (source, kind) in module.aliased_io.items():
            aliased[output] = (source, kind)
assert len(aliased) == 1 and [kind for _, kind in aliased.values()] == ["kv_cache_update"], aliased
place = cache.data_ptr()
for scale in (1.0, 5.0, 0.0):
    returned = compiled(cache, update * scale)
    assert returned.item() == cache.sum().item() == scale * 32
assert cache.data_ptr() == place
