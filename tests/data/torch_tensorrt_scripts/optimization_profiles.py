"""One engine with a profile for each of two regimes, chosen by number and by size."""

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

from torch_tensorrt.runtime import optimization_profile

profiles = [
    {"min_shape": (1, 16), "opt_shape": (1, 16), "max_shape": (1, 16)},
    {"min_shape": (1, 16), "opt_shape": (8, 16), "max_shape": (32, 16)},
]
batch = torch.export.Dim("batch", min=1, max=32)
program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}})
compiled = torch_tensorrt.dynamo.compile(
    program,
    arg_inputs=[torch_tensorrt.Input(dtype=torch.float32, profiles=profiles)],
    min_block_size=1,
    require_full_compilation=True,
    use_fp32_acc=True,
    disable_tf32=True,
    offload_module_to_cpu=False,
    device=torch.device("cuda:0"),
)
for rows, profile in ((1, 0), (1, 1), (20, 1), (20, "auto")):
    some = torch.randn(rows, 16).cuda()
    with optimization_profile(compiled, profile):
        torch.testing.assert_close(compiled(some), model(some))
