"""Types that the compiler chooses by rules, around a part that chooses its own."""

from __future__ import annotations

import tempfile
import warnings

import torch
import torch_tensorrt


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.relu1 = torch.nn.ReLU()
        self.pool1 = torch.nn.MaxPool2d(2)
        self.fc1 = torch.nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = torch.flatten(self.pool1(self.relu1(self.conv1(x))), 1)
        with torch.autocast(x.device.type, enabled=True, dtype=torch.bfloat16):
            x = self.fc1(x)
            return torch.log(torch.abs(x) + 1)


warnings.simplefilter("ignore")
model = Mixed().cuda().eval()
inputs = (torch.randn(8, 3, 8, 8).cuda(),)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*inputs), batch_size=2, shuffle=False)
with (
    tempfile.TemporaryDirectory() as folder,
    torch_tensorrt.dynamo.Debugger("graphs", logging_dir=folder, engine_builder_monitor=False),
):
    compiled = torch_tensorrt.compile(
        torch.export.export(model, inputs).module(),
        arg_inputs=inputs,
        min_block_size=1,
        use_python_runtime=True,
        use_explicit_typing=True,
        enable_autocast=True,
        autocast_low_precision_type=torch.float16,
        autocast_excluded_nodes={"^conv1$", "relu"},
        autocast_excluded_ops={torch.ops.aten.flatten.using_ints},
        autocast_max_output_threshold=512,
        autocast_max_depth_of_reduction=None,
        autocast_calibration_dataloader=loader,
    )
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=0.05, atol=0.05)
