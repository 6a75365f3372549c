"""Models of quantization-aware training are captured for sizes that vary."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from trt_core import Input
from trt_frontends import compile as compile_model


class FakeQuantized(nn.Module):
    """A layer whose weight is rounded by channel, and whose input is rounded as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 32).reshape(4, 8))
        self.register_buffer("scales", torch.full((4,), 0.01))
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 8), float32."""
        weight = torch.fake_quantize_per_channel_affine(self.weight, self.scales, self.zeros, 0, -128, 127)
        return functional.linear(torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127), weight)


def test_fake_quantization_takes_sizes_that_vary() -> None:
    model = FakeQuantized().eval()
    rows = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(9, 8))
    compiled = compile_model(model, arg_inputs=[rows], min_block_size=1, optimization_level=0)
    assert not compiled.meta["partition_report"].torch_nodes
    for size in (1, 4, 9):
        x = torch.linspace(-3, 3, 8 * size).reshape(size, 8)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_torch_compile_takes_fake_quantization_for_sizes_that_vary() -> None:
    model = FakeQuantized().eval()
    options = {"min_block_size": 1, "optimization_level": 0}
    compiled = torch.compile(model, backend="torch_tensorrt", dynamic=True, fullgraph=True, options=options)
    with torch.no_grad():
        for size in (4, 3, 9):
            x = torch.linspace(-3, 3, 8 * size).reshape(size, 8)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
