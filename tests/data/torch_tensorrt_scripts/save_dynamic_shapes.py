"""Models for ranges of sizes are saved, with dimensions and with inputs."""

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

batch = torch.export.Dim("batch", min=1, max=32)
program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}}, strict=False)
spec = torch_tensorrt.Input(min_shape=(1, 16), opt_shape=(8, 16), max_shape=(32, 16), dtype=torch.float32, name="x")
compiled = torch_tensorrt.dynamo.compile(program, inputs=[spec], min_block_size=1)
with tempfile.TemporaryDirectory() as folder:
    torch_tensorrt.save(
        compiled,
        f"{folder}/dimensions.trtp",
        arg_inputs=[x],
        dynamic_shapes={"x": {0: batch}},
        retrace=True,
    )
    torch_tensorrt.save(compiled, f"{folder}/inputs.trtp", arg_inputs=[spec], retrace=True)
    for name in ("dimensions", "inputs"):
        loaded = torch_tensorrt.load(f"{folder}/{name}.trtp").module()
        for rows in (4, 16):
            some = torch.randn(rows, 16).cuda()
            torch.testing.assert_close(loaded(some), model(some))
