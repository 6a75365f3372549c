"""Models that compute with Fourier transforms run in one engine, on both paths."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trt_frontends


class FourierMixing(nn.Module):
    """A layer of FNet: tokens are mixed by a transform over both dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return x + self.layer(x)


class SpectralFilter(nn.Module):
    """A layer of GFNet: a learned filter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.weight = nn.Parameter(torch.randn(4, 3, 6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = self.norm(x).unflatten(1, (4, 4))
        spectrum = torch.fft.rfft2(grid, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.weight)
        return x + torch.fft.irfft2(spectrum, s=(4, 4), dim=(1, 2), norm="ortho").flatten(1, 2)


class SpectralConvolution(nn.Module):
    """A layer of a Fourier neural operator: some modes are mixed over channels by complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, 2, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        mixed = torch.zeros_like(spectrum)
        mixed[..., :2] = torch.einsum("bix,iox->box", spectrum[..., :2], self.weight)
        return torch.relu(torch.fft.irfft(mixed, n=x.shape[-1]))


MODELS = [FourierMixing, SpectralFilter, SpectralConvolution]


@pytest.mark.parametrize("kind", MODELS)
def test_compiled_they_are_one_engine(kind: type[nn.Module]) -> None:
    model, x = kind().eval(), torch.randn(2, 16, 6)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    report = compiled.meta["partition_report"]
    assert (len(report.engines), report.coverage) == (1, 1.0)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_under_torch_compile_they_are_one_engine(kind: type[nn.Module]) -> None:
    model, x = kind().eval(), torch.randn(2, 16, 6)
    optimized = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1}, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-4)
    (graph,) = trt_frontends.model_report(optimized).graphs
    assert [len(build.partition.engines) for build in graph.builds if build.partition is not None] == [1]


@pytest.mark.parametrize("kind", [FourierMixing, SpectralConvolution])
def test_lengths_that_vary_are_one_engine(kind: type[nn.Module]) -> None:
    model = kind().eval()
    shapes = (
        [(2, 16, size) for size in (4, 5, 9, 16)] if kind is SpectralConvolution else [(2, n, 6) for n in (2, 9, 16)]
    )
    low, *_, high = shapes
    inputs = [trt_frontends.Input(min_shape=low, opt_shape=(2, 16, 6), max_shape=high)]
    compiled = trt_frontends.compile(model, arg_inputs=inputs, require_full_compilation=True)
    for shape in shapes:
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_report_says_why_a_transform_stays_in_pytorch() -> None:
    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x).abs()

    report = trt_frontends.explain(Long(), arg_inputs=(torch.randn(2, 2000),))
    (reason, *_) = (node.verdict for node in report.torch_nodes)
    assert reason.code == "TRT-F010"
    assert "a Fourier transform of 2000 points" in reason.message


def test_complex_weights_refit() -> None:
    model, x = SpectralFilter().eval(), torch.randn(2, 16, 6)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1, refit=True)
    with torch.no_grad():
        model.weight.mul_(3)
        refitted = trt_frontends.refit_module_weights(compiled, model.state_dict())
        torch.testing.assert_close(refitted(x), model(x), rtol=1e-4, atol=1e-4)
