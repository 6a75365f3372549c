"""A program that was saved is loaded, and gets other weights."""

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

import tempfile
import warnings

from torch_tensorrt.dynamo import refit_module_weights

warnings.simplefilter("ignore")
compiled = torch_tensorrt.dynamo.compile(
    torch.export.export(model, (x,)),
    (x,),
    use_python_runtime=False,
    enabled_precisions={torch.float},
    debug=False,
    min_block_size=0,
    torch_executed_ops={},
    refit=True,
)
other = Model().eval().cuda()
with tempfile.TemporaryDirectory() as folder:
    torch_tensorrt.save(compiled, f"{folder}/compiled.ep", inputs=[x])
    loaded = torch_tensorrt.load(f"{folder}/compiled.ep")
    refitted = refit_module_weights(
        compiled_module=loaded, new_weight_module=torch.export.export(other, (x,)), inputs=[x]
    )
    torch.testing.assert_close(refitted(x), other(x))
