"""An operator of one's own inside an engine."""

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


@torch.library.custom_op("script_library::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scale.register_fake
def _(x, by):
    return torch.empty_like(x)


plugins = torch_tensorrt.dynamo.conversion.plugins
plugins.generate_plugin("script_library::scale")
plugins.generate_plugin_converter("script_library::scale", supports_dynamic_shapes=True)


class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.ops.script_library.scale(model(x), 2.0)


compiled = torch_tensorrt.compile(Scaled(), ir="dynamo", inputs=[x], min_block_size=1, require_full_compilation=True)
torch.testing.assert_close(compiled(x), Scaled()(x))
