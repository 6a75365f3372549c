"""Padding, resizing, sampling and folding against eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from trt_converters.testing import ExtentOf, check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(4)

aten = torch.ops.aten
torch.manual_seed(0)
randn = torch.randn
X = randn(2, 3, 4, 5)
BATCH = {0: {0: (1, 2, 4)}}
ROOM = {0: {0: (1, 2, 4), 2: (3, 4, 7)}}
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", TYPES)
def test_constant_padding_and_cropping(dtype: torch.dtype) -> None:
    value = (X * 9).to(dtype)
    check_conversion(aten.constant_pad_nd.default, (value, [1, 2, -1, 3], 2.5 if dtype.is_floating_point else 1))
    check_conversion(aten.constant_pad_nd.default, (value, [1, 2, 0, 3], 1), dynamic=ROOM)
    check_conversion(aten.constant_pad_nd.default, (value, [-1, -1]))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("dtype", TYPES[:3])
def test_padding_by_own_elements(dtype: torch.dtype, mode: str) -> None:
    check_conversion(aten.pad.default, (X.to(dtype), [1, 2, 2, 1], mode), dynamic=ROOM)
    check_conversion(aten.pad.default, (X[0].to(dtype), [1, 2], mode))
    check_conversion(aten.pad.default, (randn(2, 3, 4, 5, 6).to(dtype), [1, 2, 1, 1, 2, 2], mode))


def test_circular_padding_that_crops_is_refused() -> None:
    result = check_conversion(aten.pad.default, (X[0], [1, -2, 2, 1], "circular"), expect_supported=False)
    assert result.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


RESIZES = [
    ("upsample_nearest1d", 1, ()),
    ("upsample_nearest2d", 2, ()),
    ("upsample_nearest3d", 3, ()),
    ("_upsample_nearest_exact1d", 1, ()),
    ("_upsample_nearest_exact2d", 2, ()),
    ("upsample_linear1d", 1, (False,)),
    ("upsample_linear1d", 1, (True,)),
    ("upsample_bilinear2d", 2, (False,)),
    ("upsample_bilinear2d", 2, (True,)),
    ("upsample_trilinear3d", 3, (False,)),
    ("upsample_bicubic2d", 2, (False,)),
    ("upsample_bicubic2d", 2, (True,)),
    ("_upsample_bilinear2d_aa", 2, (False,)),
    ("_upsample_bicubic2d_aa", 2, (False,)),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "spatial", "align"), RESIZES)
@pytest.mark.parametrize("size", [[8, 10, 12], [7, 3, 9], [4, 10, 1]])
def test_resizing_to_a_size(name: str, spatial: int, align: tuple[bool, ...], size: list[int]) -> None:
    value = randn(2, 3, *[4, 5, 6][:spatial])
    op = getattr(aten, name).default
    check_conversion(op, (value, size[:spatial], *align), dynamic=BATCH, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "spatial", "align"), RESIZES)
@pytest.mark.parametrize("scale", [2.0, 1.7, 0.6])
def test_resizing_by_a_factor_samples_with_the_factor(
    name: str, spatial: int, align: tuple[bool, ...], scale: float
) -> None:
    value = randn(2, 3, *[4, 5, 6][:spatial])
    check_conversion(getattr(aten, name).vec, (value, None, *align, [scale] * spatial), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "spatial", "align"), RESIZES)
@pytest.mark.parametrize("factors", [(0.5, 2.0, 3.0), (1.0, 1.1, 0.9), (7 / 3, 1.25, 2.5)])
@pytest.mark.parametrize("recompute", [None, False, True])
def test_interpolating_by_factors_whether_or_not_they_are_recomputed(
    name: str, spatial: int, align: tuple[bool, ...], factors: tuple[float, ...], recompute: bool | None
) -> None:
    if name.endswith("_aa") and recompute:
        pytest.skip("covered by sizes")
    value, chosen = randn(2, 3, *[5, 6, 4][:spatial]), factors[:spatial]
    if recompute:  # PyTorch then passes the extents, and no factor
        size = [math.floor(extent * factor) for extent, factor in zip(value.shape[2:], chosen, strict=True)]
        check_conversion(getattr(aten, name).vec, (value, size, *align, None), rtol=1e-4, atol=1e-5)
        return
    check_conversion(getattr(aten, name).vec, (value, None, *align, list(chosen)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [40, 41, 47, 97])
def test_nearest_neighbors_are_those_of_pytorch_for_great_factors(factor: int) -> None:
    value = torch.arange(50.0).reshape(1, 1, 50)
    check_conversion(aten.upsample_nearest1d.default, (value, [50 * factor]))
    check_conversion(aten.upsample_nearest1d.vec, (value, None, [float(factor)]))


def test_resizing_is_one_layer_where_extents_say_where_to_sample() -> None:
    assert emitted_layers(aten.upsample_nearest2d.default, (X, [8, 10])) == ("RESIZE",)
    assert emitted_layers(aten.upsample_bilinear2d.default, (X, [7, 9], False)) == ("RESIZE",)
    assert "RESIZE" not in emitted_layers(aten.upsample_bilinear2d.vec, (X, None, False, [1.7, 1.7]))


@pytest.mark.parametrize("factor", [2.0, 1.5, 1.3, 0.7, 1 / 3])
def test_scaled_extents_follow_the_input(factor: float) -> None:
    value = torch.randn(1, 2, 7, 3)
    check_conversion(aten.upsample_bicubic2d.vec, (value, None, True, [factor] * 2), dynamic={0: {2: (6, 7, 13)}})


@pytest.mark.parametrize("size", [79, 80, 89, 90, 91, 100, 110, 111, 360])
def test_scaled_extents_are_those_of_floats(size: int) -> None:
    """The double nearest to 0.7 times 90, 110 or 111 rounds down to another number than seven tenths of it."""
    dynamic = {0: {2: (2, size, 360)}}
    check_conversion(aten.upsample_nearest1d.vec, (torch.randn(1, 2, size), None, [0.7]), dynamic=dynamic)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", TYPES[:3])
@pytest.mark.parametrize("factor", [0.375, 1.25])
@pytest.mark.parametrize(("name", "spatial", "align"), RESIZES)
def test_resizing_by_a_factor_samples_pictures_of_any_size_where_pytorch_does(
    name: str, spatial: int, align: tuple[bool, ...], factor: float, dtype: torch.dtype
) -> None:
    if name.endswith("_aa") and dtype is not torch.float32:
        pytest.skip("PyTorch's kernel has no half types on a CPU")
    operator = getattr(aten, name).vec
    extents = [7, 6, 8][:spatial]
    value = randn(2, 3, *extents).to(dtype)
    room = {2 + axis: (6, extent, 13) for axis, extent in enumerate(extents)}
    check_conversion(operator, (value, None, *align, [factor] * spatial), dynamic={0: room}, **_ALLOWED[dtype])


_ALLOWED: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float16: {"rtol": 1e-2, "atol": 4e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 4e-2},  # PyTorch's kernels round weights to the type
}


@pytest.mark.parametrize("dtype", [torch.uint8, *TYPES[:3]])
@pytest.mark.parametrize("factor", [0.375, 0.5, 0.75, 1.25, 1.5])
@pytest.mark.sampled
def test_nearest_neighbors_are_those_of_pytorch_for_every_size(factor: float, dtype: torch.dtype) -> None:
    for name, spatial in (("upsample_nearest1d", 1), ("upsample_nearest2d", 2), ("_upsample_nearest_exact2d", 2)):
        for extent in (7, 21):
            value = torch.arange(extent).reshape(1, 1, extent, *[1] * (spatial - 1)).to(dtype)
            factors = [factor, 1.0][:spatial]
            check_conversion(
                getattr(aten, name).vec, (value, None, factors), dynamic={0: {2: (6, extent, 40)}}, rtol=0, atol=0
            )


@pytest.mark.parametrize("name", ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"])
def test_resizing_smoothly_to_sizes_of_the_picture(name: str) -> None:
    value, sizes = randn(2, 3, 6, 9), [ExtentOf(0, 3), 5]
    dynamic = {0: {2: (3, 6, 12), 3: (4, 9, 11)}}
    check_conversion(getattr(aten, name).vec, (value, sizes, False, None), dynamic=dynamic, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("interpolation", [0, 1, 2])
def test_grid_sampler(interpolation: int, padding: int, align: bool) -> None:
    grid = torch.rand(2, 4, 3, 2) * 2.6 - 1.3
    args = (randn(2, 3, 5, 6), grid, interpolation, padding, align)
    rows = {**BATCH, 1: {0: (1, 2, 4)}} if interpolation == 0 else None
    check_conversion(aten.grid_sampler_2d.default, args, dynamic=rows, atol=1e-5)
    if interpolation < 2:
        volume = (randn(2, 3, 4, 5, 6), torch.rand(2, 4, 3, 2, 3) * 2.6 - 1.3, interpolation, padding, align)
        check_conversion(aten.grid_sampler_3d.default, volume, atol=1e-5)


@pytest.mark.parametrize("align", [False, True])
def test_affine_grid(align: bool) -> None:
    check_conversion(aten.affine_grid_generator.default, (randn(2, 2, 3), [2, 3, 4, 5], align))
    check_conversion(aten.affine_grid_generator.default, (randn(2, 3, 4), [2, 3, 4, 1, 5], align))


def test_folding() -> None:
    check_conversion(aten.im2col.default, (randn(2, 3, 7, 8), [3, 2], [1, 2], [1, 1], [2, 1]))
    check_conversion(aten.im2col.default, (randn(3, 7, 8), [2, 2], [1, 1], [0, 0], [1, 1]))
    check_conversion(aten.col2im.default, (randn(2, 18, 16), [7, 8], [3, 2], [1, 2], [1, 1], [2, 2]), dynamic=BATCH)
    check_conversion(aten.col2im.default, (randn(12, 9), [7, 7], [2, 2], [1, 1], [0, 0], [2, 2]))
    widths = (randn(2, 9, 8), [1, ExtentOf(0, 2)], [1, 3], [1, 1], [0, 1], [1, 1])
    check_conversion(aten.col2im.default, widths, dynamic={0: {2: (4, 8, 12)}})


NAMES = [
    "constant_pad_nd", "nn.functional.pad", "nn.functional.interpolate", "nn.functional.upsample_nearest",
    "nn.functional.upsample_bilinear", "nn.functional.grid_sample", "nn.functional.unfold", "nn.functional.fold",
    "grid_sampler_2d", "grid_sampler_3d",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_samples_of_pytorch(name: str) -> None:
    for sample in samples_from_opinfo(name, torch.float32, 4):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None, rtol=1e-4, atol=1e-4)
