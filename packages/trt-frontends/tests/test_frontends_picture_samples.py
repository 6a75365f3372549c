"""Regions and deformed windows of pictures are sampled in engines, with the values of torchvision's kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import Input

pytestmark = pytest.mark.sampled(4)

torchvision = pytest.importorskip("torchvision")  # defines the operators


class Regions(nn.Module):
    """Calls `roi_align`."""

    def __init__(self, *options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor, rois: torch.Tensor) -> torch.Tensor:
        """Takes (N, C, H, W) and (K, 5)."""
        found: torch.Tensor = torchvision.ops.roi_align(x, rois, *self.options)
        return found


def _regions(count: int, pictures: int) -> torch.Tensor:
    """Some lie across borders, some outside, some have no area."""
    corners = torch.rand(count, 4) * 24 - 6
    corners[0, 2:] = corners[0, :2]
    corners[1:, 2:] += 4
    return torch.cat([torch.randint(pictures, (count, 1)).float(), corners], 1)


@pytest.mark.parametrize(
    "options",
    [((3, 5), 1.0, 2, True), ((3, 5), 1.0, 2, False), (2, 0.5, 3, False), (1, 2.0, 1, True)],
    ids=["aligned", "from corners", "scaled", "one sample"],
)
def test_regions_are_sampled_in_one_engine(options: tuple[Any, ...]) -> None:
    model = Regions(*options)
    pictures = Input(min_shape=(1, 3, 9, 8), opt_shape=(2, 3, 12, 16), max_shape=(3, 3, 16, 20))
    regions = Input(min_shape=(2, 5), opt_shape=(6, 5), max_shape=(20, 5))
    compiled = trt_frontends.compile(model, arg_inputs=[pictures, regions], require_full_compilation=True)
    for size, count in (((1, 3, 9, 8), 2), ((2, 3, 12, 16), 7), ((3, 3, 16, 19), 20)):
        x, rois = torch.randn(size), _regions(count, size[0])
        torch.testing.assert_close(compiled(x, rois), model(x, rois), rtol=1e-4, atol=1e-4)


def test_as_many_samples_as_a_region_has_pixels_stay_in_pytorch() -> None:
    model, x = Regions(2, 1.0, -1, True), torch.randn(1, 3, 9, 8)
    rois = torch.tensor([[0.0, 1.0, 1.0, 5.0, 7.5], [0.0, 2.0, 3.0, 2.5, 6.0]])
    compiled = trt_frontends.compile(model, arg_inputs=[x, rois], min_block_size=1)
    (node,) = compiled.meta["partition_report"].torch_nodes
    assert "regions whose size depends on data" in node.verdict.message
    torch.testing.assert_close(compiled(x, rois), model(x, rois))


class Deformed(nn.Module):
    """A deformable convolution that computes its own offsets."""

    def __init__(self, groups: int, offset_groups: int, is_masked: bool, bias: bool, **options: Any) -> None:
        super().__init__()
        self.layer = torchvision.ops.DeformConv2d(4, 6, (3, 2), groups=groups, bias=bias, **options)
        options.pop("padding_mode", None)
        self.offsets = nn.Conv2d(4, 12 * offset_groups, (3, 2), **options)
        self.masks = nn.Conv2d(4, 6 * offset_groups, (3, 2), **options) if is_masked else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes (N, 4, H, W)."""
        mask = None if self.masks is None else self.masks(x).sigmoid()
        found: torch.Tensor = self.layer(x, self.offsets(x) * 3, mask)
        return found


@pytest.mark.parametrize(
    "model",
    [
        lambda: Deformed(1, 1, True, True, padding=1),
        lambda: Deformed(2, 1, False, True, stride=2),
        lambda: Deformed(1, 2, True, False, padding=(2, 1), dilation=(2, 1)),
        lambda: Deformed(2, 4, True, True, stride=(1, 2), padding=1),
    ],
    ids=["masked", "in groups", "dilated", "with offsets in groups"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deformed_windows_are_sampled_in_one_engine(model: Any, dtype: torch.dtype) -> None:
    made = model().eval()
    sizes = {"min_shape": (1, 4, 7, 6), "opt_shape": (2, 4, 9, 12), "max_shape": (3, 4, 14, 16)}
    compiled = trt_frontends.compile(
        made.to(dtype), arg_inputs=[Input(**sizes, dtype=dtype)], require_full_compilation=True
    )
    tolerance = 1e-4 if dtype is torch.float32 else 0.05  # eager has no kernel for bfloat16 on the CPU
    for size in ((1, 4, 7, 6), (2, 4, 9, 12), (3, 4, 13, 16)):
        x = torch.randn(size, dtype=dtype)
        with torch.no_grad():
            found, wanted = compiled(x).float(), made.float()(x.float())
        made.to(dtype)
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
